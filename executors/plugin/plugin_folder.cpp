#include "executors/plugin/plugin_folder.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "text/utf8.h"

namespace mycojobs::plugin {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxPlugins = 64;

struct RegisteredNames {
  std::set<std::string> names, types;

  // Adds the names of the plugin. Returns the reason why they cannot be added, or an empty text.
  std::string add(const PluginDescription& description) {
    if (names.contains(description.name))
      return fmt::format("name: an executor {} exists already", excerpt(description.name));
    for (const std::string& type : description.script_types) {
      if (types.contains(type)) return fmt::format("script_types: another executor serves {} already", excerpt(type));
    }
    names.insert(description.name);
    types.insert(description.script_types.begin(), description.script_types.end());
    return {};
  }
};

struct PluginFolderListing {
  std::vector<std::string> files;
  std::string problem;  // reason why the folder could not be read
};

PluginFolderListing list_plugin_files(const std::string& folder) {
  PluginFolderListing listing;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (entry->path().extension() == ".so") listing.files.push_back(entry->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) listing.problem = error.message();
  std::sort(listing.files.begin(), listing.files.end());
  return listing;
}

}  // namespace

PluginFolder load_plugins(const std::string& folder, const std::string& host, std::set<std::string> taken_names,
                          std::set<std::string> taken_types, const Clock& clock) {
  PluginFolder result;
  RegisteredNames registered{std::move(taken_names), std::move(taken_types)};
  const PluginFolderListing listing = list_plugin_files(folder);
  const auto refuse = [&result](const std::string& file, std::string reason) {
    PluginReport report;
    report.file = file;
    report.reason = std::move(reason);
    result.reports.push_back(std::move(report));
  };
  if (!listing.problem.empty()) refuse(folder, listing.problem);
  for (const std::string& file : listing.files) {
    if (result.reports.size() >= kMaxPlugins) {
      refuse(file, fmt::format("at most {} plugins are loaded: remove others from the folder", kMaxPlugins));
      break;
    }
    PluginOptions options;
    options.host = host;
    options.file = file;
    auto client = PluginClient::load(std::move(options), clock);
    if (!client) {
      refuse(file, client.error().message);
      continue;
    }
    const PluginDescription& description = (*client)->description();
    std::string reason = registered.add(description);
    const auto state = reason.empty() ? PluginState::loaded : PluginState::refused;
    result.reports.push_back({file, description.name, description.version, description.abi, description.script_types,
                              state, std::move(reason)});
    if (state == PluginState::loaded) result.loaded.push_back(std::move(*client));
  }
  return result;
}

}  // namespace mycojobs::plugin
