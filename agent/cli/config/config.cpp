#include "cli/config/config.h"

#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/config/ceilings.h"
#include "cli/config/config_file.h"
#include "cli/config/context_python.h"
#include "cli/config/executors.h"
#include "domain/codec.h"

namespace mycojobs {

namespace {

// The file to read; empty: none.
std::string choose_file(const Sources& sources) {
  if (!sources.flags.config_file.empty()) return sources.flags.config_file;
  if (auto named = sources.host.variable("MYCOJOBS_CONFIG"); !named.empty()) return named;
  std::string path = "/etc";
  if (!sources.host.root) {
    path = sources.host.variable("XDG_CONFIG_HOME");
    if (!path.starts_with('/')) path = sources.host.variable("HOME") + "/.config";
  }
  path += "/mycojobs/config.toml";
  std::error_code missing;
  return std::filesystem::exists(path, missing) ? path : "";
}

// "redis://:password@host", "redis://user:password@host".
bool holds_password(std::string_view text) {
  const auto scheme = text.find("://");
  if (scheme == std::string_view::npos) return false;
  const auto at = text.find('@', scheme);
  const auto colon = text.find(':', scheme + 3);
  return at != std::string_view::npos && colon != std::string_view::npos && colon + 1 < at;
}

// Later layers replace what earlier ones set.
class Layers {
 public:
  explicit Layers(const HostFacts& host) {
    for (const Option& option : options()) {
      config_.values.push_back({std::string(option.name),
                                option.computed ? option.computed(host) : std::string(option.fallback), "default"});
    }
  }
  void put(ConfigValue value) {
    if (const auto now = present_name(value.name); now != value.name) {
      config_.warnings.push_back(value.source + ": " + value.name + " is called " + std::string(now) +
                                 " now: write that; the former name will go");
      value.name = now;
    }
    const auto found = std::find_if(config_.values.begin(), config_.values.end(),
                                    [&](const ConfigValue& each) { return each.name == value.name; });
    if (found != config_.values.end()) *found = value;
  }
  void put_file(const std::string& path, FileValues file) {
    config_.file = path;
    for (const auto& value : file.options) put(value);
    for (const auto& [id, value] : file.context_redis) {
      config_.settings.context_redis[id] = value.text;
      config_.values.push_back(value);
    }
    file_ = std::move(file);
    warn_of_passwords();
  }
  void put_environment(const HostFacts& host) {
    for (const auto& entry : host.environment) {
      const std::string& name = entry.first;
      if (!name.starts_with("MYCOJOBS_") || name == "MYCOJOBS_CONFIG" || name == "MYCOJOBS_TOKEN") continue;
      if (const auto option = option_of(name); !option.empty()) {
        put({std::string(option), entry.second, name});
      } else {
        config_.warnings.push_back("the variable " + name + " is no option and was passed over");
      }
    }
  }
  void put_flags(const FlagValues& flags) {
    for (const auto& [name, text] : flags.values) {
      if (find_option(present_name(name)) != nullptr) put({name, text, flag_of(name)});
    }
  }
  Result<Config> finish() {
    for (const auto& value : config_.values) {
      const Option* option = find_option(value.name);
      if (option == nullptr) continue;  // a context's Redis
      if (auto set = set_option(*option, value.text, config_.settings); !set) {
        const bool file = !config_.file.empty() && value.source.starts_with(config_.file + ':');
        const bool itself = value.source == flag_of(*option) || value.source == environment_of(*option);
        return fail(set.error(), itself ? value.source : file ? value.source + ": " + value.name : value.name);
      }
    }
    config_.settings.contexts_chosen = std::any_of(config_.values.begin(), config_.values.end(), [](const auto& value) {
      return value.name == "context" && value.source != "default";
    });
    config_.settings.api_listen_chosen =
        std::any_of(config_.values.begin(), config_.values.end(),
                    [](const auto& value) { return value.name == "api.listen" && value.source != "default"; });
    if (config_.settings.state_dir.empty()) {
      return fail(Code::invalid, "state_dir: there is no HOME to put it in: give --state-dir or MYCOJOBS_STATE_DIR");
    }
    MJ_CHECK(set_ceilings(file_, config_));
    MJ_CHECK(set_executors(file_, config_));
    MJ_CHECK(set_context_python(file_, config_));
    return std::move(config_);
  }

 private:
  // Of a variable, by any name; empty: none.
  static std::string_view option_of(const std::string& variable) {
    for (const Option& each : options()) {
      if (environment_of(each) == variable) return each.name;
    }
    for (const RenamedOption& each : renamed_options()) {
      if (environment_of(each.before) == variable) return each.before;
    }
    return {};
  }
  void warn_of_passwords() {
    struct stat info {};
    if (::stat(config_.file.c_str(), &info) != 0 || (info.st_mode & S_IROTH) == 0) return;
    for (const ConfigValue& value : config_.values) {
      if (!value.source.starts_with(config_.file + ':') || !holds_password(value.text)) continue;
      config_.warnings.push_back(value.source + ": " + value.name +
                                 " holds a password, and every user of this host may read the file: chmod o-r " +
                                 config_.file);
    }
  }

  Config config_;
  FileValues file_;  // empty: none
};

}  // namespace

Sources system_sources(FlagValues flags) {
  Sources sources;
  sources.flags = std::move(flags);
  sources.host.cpus = std::thread::hardware_concurrency();
  sources.host.root = ::geteuid() == 0;
  std::error_code unknown;
  sources.host.program_dir = std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path().string();
  const auto installed = std::filesystem::path(sources.host.program_dir).parent_path() / "libexec" / "mycojobs";
  if (std::filesystem::is_directory(installed, unknown)) sources.host.installed_helpers = installed.string();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos)
      sources.host.environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return sources;
}

Result<Config> load_config(const Sources& sources) {
  Layers layers(sources.host);
  if (const std::string path = choose_file(sources); !path.empty()) {
    MJ_TRY(file, read_config_file(path));
    layers.put_file(path, std::move(file));
  }
  layers.put_environment(sources.host);
  layers.put_flags(sources.flags);
  return layers.finish();
}

Result<Config> check_config_file(const std::string& path, const HostFacts& host) {
  Layers layers(host);
  MJ_TRY(file, read_config_file(path));
  layers.put_file(path, std::move(file));
  return layers.finish();
}

namespace {

// "redis://user:secret@host" without the secret: what is printed is pasted into reports. A password may hold '@' and
// '/'.
std::string without_password(const std::string& text) {
  const auto scheme = text.find("://");
  if (scheme == std::string::npos) return text;
  const auto colon = text.find(':', scheme + 3);
  const auto at = text.rfind('@');
  if (at == std::string::npos || colon > at) return text;
  return text.substr(0, colon + 1) + "***" + text.substr(at);
}

nlohmann::json typed(const ConfigValue& value) {
  if (value.literal) {
    auto parsed = parse_json(value.text);
    return parsed ? std::move(*parsed) : nlohmann::json(value.text);
  }
  const Option* option = find_option(value.name);
  const OptionType type = option ? option->type : OptionType::text;
  if (type == OptionType::flag) return value.text == "true";
  const auto number = [](const std::string& text) { return nlohmann::json(std::strtoull(text.c_str(), nullptr, 10)); };
  if (type == OptionType::count) return number(value.text);
  if (!is_list(type)) return without_password(value.text);
  auto items = nlohmann::json::array();
  const bool ids = std::holds_alternative<std::vector<Id> Settings::*>(option->member);
  for (std::size_t from = 0; from < value.text.size();) {
    const auto comma = std::min(value.text.find(',', from), value.text.size());
    const std::string item = value.text.substr(from, comma - from);
    items.push_back(ids ? number(item) : nlohmann::json(item));
    from = comma + 1;
  }
  return items;
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

}  // namespace

std::string print_config(const Config& config, bool as_json) {
  if (as_json) {
    auto out = nlohmann::json::object();
    for (const auto& value : config.values) out[value.name] = {{"value", typed(value)}, {"source", value.source}};
    return dump_json(out, 2) + "\n";
  }
  std::size_t width = 0;
  for (const auto& value : config.values) width = std::max(width, value.name.size());
  std::string out;
  for (const auto& value : config.values) {
    // JSON's text, numbers, booleans and lists of these are TOML's too.
    // To write a ceiling down is to set it, so one that nobody wrote is a comment.
    out += value.literal && value.source == "default" ? "# " : "";
    out +=
        padded(padded(value.name, width) + " = " + dump_json(typed(value)), width + 24) + "  # " + value.source + "\n";
  }
  return out;
}

}  // namespace mycojobs
