// The faulty plugins of this folder, loaded as an agent loads them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/clock.h"
#include "executors/plugin/plugin_client.h"
#include "support/build_paths.h"
#include "support/process.h"

namespace mycojobs::test {

inline std::string get_plugin_path(const std::string& fault) {
  return std::string(BROKEN_PLUGINS) + "/plugin_" + fault + ".so";
}

// Copies the plugin to a private folder, because the build folder may be writable for other users.
inline std::string copy_plugin(const TempDir& folder, const std::string& fault) {
  const std::string path = folder / (fault + ".so");
  std::filesystem::copy_file(get_plugin_path(fault), path, std::filesystem::copy_options::overwrite_existing);
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  return path;
}

// Long time-outs for correct plugins, so that a busy machine causes no failure.
inline plugin::PluginOptions make_options(const std::string& file) {
  plugin::PluginOptions options;
  options.host = mj::test::program_path("mycojobs-pluginhost");
  options.file = file;
  options.load_timeout_ms = options.probe_timeout_ms = options.prepare_timeout_ms = options.interpret_timeout_ms =
      20000;
  return options;
}

class Plugins : public ::testing::Test {
 protected:
  Result<std::unique_ptr<plugin::PluginClient>> load(const std::string& fault, const Clock& clock) {
    return plugin::PluginClient::load(make_options(copy_plugin(folder_, fault)), clock);
  }
  Result<std::unique_ptr<plugin::PluginClient>> load(const std::string& fault) { return load(fault, clock_); }
  // Returns the error with which the plugin is rejected, or "" if it is accepted.
  std::string get_rejection(const std::string& fault) {
    const auto loaded = load(fault);
    return loaded ? "" : loaded.error().message;
  }

  TempDir folder_;
  SystemClock clock_;
};

inline constexpr const char* kJob = R"({"id": 1, "script": "x"})";

}  // namespace mycojobs::test
