#include "cli/config/config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/config/config_file.h"
#include "model/codec.h"
#include "net/host.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// Reader of [contexts.<id>.python], the virtual environment and preloaded modules of a context.

using nlohmann::json;

constexpr std::size_t kMaxModules = 32, kMaxBytes = 64U << 10;

// Accepts names such as "numpy" and "scipy.linalg".
bool is_module(const std::string& name) {
  bool begins = true;  // at the beginning of a part of the name
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    const bool digit = c >= '0' && c <= '9';
    if (!(letter || (!begins && (digit || c == '.')))) return false;
    begins = c == '.';
  }
  return !begins && name.size() <= 100;
}

// Accepts absolute paths in normalized form.
bool is_place(const std::string& path) {
  if (path.size() < 2 || path.size() >= 4096 || path.front() != '/' || path.back() == '/') return false;
  if (path.find('\0') != std::string::npos) return false;
  for (const char* part : {"//", "/./", "/../"}) {
    if ((path + "/").find(part) != std::string::npos) return false;
  }
  return true;
}

class PythonReader {
 public:
  PythonReader(Id context, const PolicyText& text)
      : name_("contexts." + std::to_string(context) + ".python"), text_(text) {}

  Result<PythonSettings> read() {
    const auto table = parse_json(text_.json);
    if (!table) return refuse("", "is not understood");
    for (const auto& [key, value] : table->items()) {
      if (key == "venv") {
        if (!value.is_string() || !is_place(value.get_ref<const std::string&>()))
          return refuse(key, "is not the whole path of a virtual environment, as \"/srv/venvs/seven\"");
        out_.venv = value.get<std::string>();
      } else if (key == "preload") {
        MJ_CHECK(modules(value));
      } else {
        return fail(Code::invalid, position_of(text_, key) + ": unknown key " + excerpt(name_ + "." + key, 80) +
                                       ": there are venv and preload");
      }
    }
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> refuse(const std::string& field, const std::string& what) const {
    return fail(Code::invalid,
                position_of(text_, field) + ": " + name_ + (field.empty() ? "" : "." + field) + ": " + what);
  }
  Result<void> modules(const json& value) {
    if (!value.is_array()) return refuse("preload", "is not a list of modules, as [\"numpy\"]");
    if (value.size() > kMaxModules) return refuse("preload", "has more than 32 modules");
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string field = "preload[" + std::to_string(i) + "]";
      if (!value[i].is_string() || !is_module(value[i].get_ref<const std::string&>()))
        return refuse(field, "is not the name of a module, as \"numpy\" or \"scipy.linalg\"");
      out_.preload.push_back(value[i].get<std::string>());
    }
    return {};
  }

  std::string name_;
  const PolicyText& text_;
  PythonSettings out_;
};

// Copies the tables of the file into the settings and into the values of `config print`. Error invalid:
// "FILE:LINE:COLUMN: ...".
Result<void> set_context_python(const FileValues& file, Config& config) {
  std::size_t bytes = 0;
  for (const auto& [id, text] : file.context_python) {
    bytes += 200 + text.json.size();
    if (bytes > kMaxBytes)
      return fail(Code::invalid, position_of(text, "") + ": contexts.*.python: all of them hold more than 64 KiB");
    MJ_TRY(settings, PythonReader(id, text).read());
    const std::string name = "contexts." + std::to_string(id) + ".python";
    if (!settings.venv.empty())
      config.values.push_back({name + ".venv", dump_json(json(settings.venv)), position_of(text, "venv"), true});
    if (!settings.preload.empty())
      config.values.push_back(
          {name + ".preload", dump_json(json(settings.preload)), position_of(text, "preload"), true});
    config.settings.context_python[id] = std::move(settings);
  }
  return {};
}

// Ceilings: the file overrides the built-in ceiling.

Result<PolicyRequest> read_ceiling(const PolicyText& text, const std::string& name) {
  ParsedPolicy read = read_policy(text.json, name, PolicyKind::ceiling);
  if (read.ok()) return std::move(read.request);
  const FieldProblem& first = read.problems.front();
  const std::string field = first.field.substr(std::min(name.size() + 1, first.field.size()));
  return fail(Code::invalid, position_of(text, field) + ": " + first.message);
}

void tell(const Policy& max, const std::string& name, const PolicyRequest& own, const PolicyText* text, bool all,
          Config& config) {
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    if (!has_ceiling(field) || (!all && !own.named[i])) continue;
    const std::string source = own.named[i] ? position_of(*text, std::string(to_string(field))) : "default";
    config.values.push_back({name + '.' + std::string(to_string(field)), value_text(field, max), source, true});
  }
}

// The built-in ceiling is raised to the operator's defaults, so that these are permitted without a configured ceiling.
Policy built_in(const Settings& settings) {
  Policy max = default_ceiling();
  max.memory_bytes = std::max(max.memory_bytes, settings.sandbox_memory_bytes);
  max.pids = std::max(max.pids, settings.sandbox_pids);
  max.disk_bytes = std::max(max.disk_bytes, settings.sandbox_tmp_bytes);
  max.output_bytes = std::max(max.output_bytes, settings.job_output_bytes);
  return max;
}

// Adds the folder in normal form, and with resolved links, for the comparison with paths of policies.
void add_own(std::vector<std::string>& folders, const std::filesystem::path& folder) {
  if (folder.empty()) return;
  std::error_code unknown;
  const auto absolute = std::filesystem::absolute(folder, unknown).lexically_normal();
  for (const auto& path : {absolute, std::filesystem::weakly_canonical(absolute, unknown)}) {
    std::string text = path.string();
    while (text.size() > 1 && text.ends_with('/')) text.pop_back();
    if (!text.empty() && std::find(folders.begin(), folders.end(), text) == folders.end()) folders.push_back(text);
  }
}

// Sets settings.ceilings and appends a value for each field of [ceiling] and for each field of a context's ceiling.
// REQUIRES: the options are set. Error invalid: "FILE:LINE:COLUMN: ceiling.memory: ...".
Result<void> set_ceilings(const FileValues& file, Config& config) {
  Settings& settings = config.settings;
  Ceilings& ceilings = settings.ceilings;
  PolicyRequest standard;
  const auto own = file.ceilings.find(0);
  if (own != file.ceilings.end()) {
    MJ_TRY(read, read_ceiling(own->second, "ceiling"));
    standard = std::move(read);
  }
  ceilings.written[0] = standard.named;
  ceilings.standard = apply_request(built_in(settings), standard);
  tell(ceilings.standard, "ceiling", standard, own == file.ceilings.end() ? nullptr : &own->second, true, config);
  for (const auto& [id, text] : file.ceilings) {
    if (id == 0) continue;
    const std::string name = "contexts." + std::to_string(id) + ".ceiling";
    MJ_TRY(read, read_ceiling(text, name));
    ceilings.written[id] = read.named;
    ceilings.contexts[id] = apply_request(ceilings.standard, read);
    tell(ceilings.contexts[id], name, read, &text, false, config);
  }
  add_own(ceilings.own_folders, settings.state_dir);
  add_own(ceilings.own_folders, settings.secrets_dir);
  add_own(ceilings.own_folders, settings.plugins_dir);
  add_own(ceilings.own_folders, config.file);  // a file, but access to a parent folder includes it
  return {};
}

using nlohmann::json;

// Reads one table [executors.<name>] as JSON. Errors contain the position in the file.
class ExecutorReader {
 public:
  ExecutorReader(std::string name, const PolicyText& text) : text_(text) { out_.name = std::move(name); }

  Result<CommandSettings> read() {
    if (!is_script_type(out_.name)) return refuse("", "a script type is a-z, 0-9, _ and -, at most 32, a letter first");
    if (out_.name == "rust") return refuse("", "is a script type of the executor native: choose another name");
    const auto table = parse_json(text_.json);
    if (!table) return refuse("", "is not understood");
    for (const auto& [key, value] : table->items()) {
      if (key == "command") {
        MJ_CHECK(words(key, value, out_.command));
      } else if (key == "version") {
        MJ_CHECK(words(key, value, out_.version));
      } else if (key == "file") {
        if (!value.is_string() || !is_file_name(value.get_ref<const std::string&>()))
          return refuse(key, "is not a file name such as \"script.js\"");
        out_.file = value.get<std::string>();
      } else if (key == "environment") {
        MJ_CHECK(variables(key, value));
      } else if (key == "policy") {
        MJ_CHECK(policy(key, value));
      } else {
        return refuse(key, "is unknown: there are command, file, version, environment, policy");
      }
    }
    if (out_.command.empty()) return refuse("", "has no command: as in command = [\"/bin/bash\", \"{script}\"]");
    if (!out_.command.front().starts_with('/'))
      return refuse("command[0]", "is not the whole path of a program, as /usr/bin/perl");
    const bool has_script = std::any_of(out_.command.begin(), out_.command.end(), [](const std::string& word) {
      return word.find("{script}") != std::string::npos;
    });
    if (!has_script) return refuse("command", "has no {script}, so that the program would not find the script");
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> refuse(const std::string& field, const std::string& what) const {
    return fail(Code::invalid, position_of(text_, field) + ": executors." +
                                   (is_script_type(out_.name) ? out_.name : excerpt(out_.name, 60)) +
                                   (field.empty() ? "" : "." + field) + ": " + what);
  }
  static bool is_file_name(const std::string& name) {
    return !name.empty() && name.size() <= 100 && name.front() != '.' && name.find('/') == std::string::npos &&
           name.find('\0') == std::string::npos && name != "artifacts" && name != "secrets" && name != "inputs" &&
           name != "inputs.json" && name != "flow.json";
  }
  Result<void> words(const std::string& key, const json& value, std::vector<std::string>& out) const {
    if (!value.is_array() || value.size() > 100) return refuse(key, "is not a list of texts");
    out.clear();
    for (const auto& word : value) {
      if (!word.is_string() || word.get_ref<const std::string&>().find('\0') != std::string::npos)
        return refuse(key, "is not a list of texts");
      out.push_back(word.get<std::string>());
    }
    return {};
  }
  Result<void> variables(const std::string& key, const json& value) {
    if (!value.is_object()) return refuse(key, "is not a table of texts");
    for (const auto& [name, text] : value.items()) {
      const bool fine = text.is_string() && !name.empty() &&
                        name.find_first_of(std::string("=\0", 2)) == std::string::npos &&
                        text.get_ref<const std::string&>().find('\0') == std::string::npos;
      if (!fine) return refuse(key + '.' + name, "is not text, or its name has = or NUL in it");
      if (name.starts_with("MYCOJOBS_"))
        return refuse(key + '.' + name, "is set for each job by mycojobs itself: choose another name");
      out_.environment[name] = text.get<std::string>();
    }
    return {};
  }
  Result<void> policy(const std::string& key, const json& value) {
    ParsedPolicy read = read_policy(dump_json(value), "policy");
    if (!read.ok()) {
      const FieldProblem& first = read.problems.front();
      const std::string_view message = first.message;
      const bool named = message.starts_with(first.field + ": ");  // refuse() adds the field's name too
      return refuse(first.field.starts_with(key) ? first.field : key,
                    std::string(named ? message.substr(first.field.size() + 2) : message));
    }
    if (read.request.names(PolicyField::exec) && !read.request.values.exec)
      return refuse("policy.exec", "is false, but its jobs are programs: leave it out");
    out_.policy = std::move(read.request);
    return {};
  }

  const PolicyText& text_;
  CommandSettings out_;
};

// Copies the tables [executors.<name>] of the file into the settings and into the values of `config print`. Error
// invalid: "FILE:LINE:COLUMN: ...".
Result<void> set_executors(const FileValues& file, Config& config) {
  for (const auto& [name, text] : file.executors) {
    MJ_TRY(settings, ExecutorReader(name, text).read());
    config.values.push_back(
        {"executors." + name + ".command", dump_json(json(settings.command)), position_of(text, "command"), true});
    config.settings.executors.push_back(std::move(settings));
  }
  return {};
}

// Returns the path of the file to read, or an empty path.
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

// Recognizes "redis://:password@host" and "redis://user:password@host".
bool holds_password(std::string_view text) {
  const auto scheme = text.find("://");
  if (scheme == std::string_view::npos) return false;
  const auto at = text.find('@', scheme);
  const auto colon = text.find(':', scheme + 3);
  return at != std::string_view::npos && colon != std::string_view::npos && colon + 1 < at;
}

// Combines the sources. Values of a later call replace those of earlier calls.
class Layers {
 public:
  explicit Layers(const HostFacts& host) {
    for (const Option& option : options()) {
      config_.values.push_back({std::string(option.name),
                                option.computed ? option.computed(host) : std::string(option.fallback), "default"});
    }
  }
  void put(ConfigValue value) {
    for (const RenamedOption& each : renamed_options()) {
      if (each.before != value.name) continue;
      if (each.is_former)
        config_.warnings.push_back(value.source + ": " + value.name + " is called " + std::string(each.now) +
                                   " now: write that; the former name will go");
      value.name = each.now;
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
        config_.warnings.push_back("the variable " + name + " is not a setting and was ignored");
      }
    }
  }
  void put_flags(const FlagValues& flags) {
    for (const auto& [name, text] : flags.values) {
      if (find_option(current_name(name)) != nullptr) put({name, text, flag_of(name)});
    }
  }
  Result<Config> finish() {
    for (const auto& value : config_.values) {
      const Option* option = find_option(value.name);
      if (option == nullptr) continue;  // such as the Redis of a context
      if (auto set = set_option(*option, value.text, config_.settings); !set) {
        const bool file = !config_.file.empty() && value.source.starts_with(config_.file + ':');
        const bool itself = value.source == flag_of(*option) || value.source == environment_of(*option);
        return fail(set.error(), itself ? value.source : file ? value.source + ": " + value.name : value.name);
      }
    }
    config_.settings.contexts_chosen = is_chosen("context");
    config_.settings.api_listen_chosen = is_chosen("api.listen");
    MJ_CHECK(set_mycelium());
    if (is_chosen("retry.min") && config_.settings.retry_min_ms > config_.settings.retry_max_ms)
      config_.warnings.push_back("retry.min is above retry.max: every pause is as long as retry.max says");
    if (config_.settings.state_dir.empty()) {
      return fail(Code::invalid, "state_dir: HOME is not set: give --state-dir or MYCOJOBS_STATE_DIR");
    }
    MJ_CHECK(set_ceilings(file_, config_));
    MJ_CHECK(set_executors(file_, config_));
    MJ_CHECK(set_context_python(file_, config_));
    return std::move(config_);
  }

 private:
  // Returns the option of a variable, by any of its names; empty: none.
  static std::string_view option_of(const std::string& variable) {
    for (const Option& each : options()) {
      if (environment_of(each) == variable) return each.name;
    }
    for (const RenamedOption& each : renamed_options()) {
      if (environment_of(each.before) == variable) return each.before;
    }
    return {};
  }
  bool is_chosen(std::string_view name) const {  // set by file, variable or flag
    return std::any_of(config_.values.begin(), config_.values.end(),
                       [name](const auto& value) { return value.name == name && value.source != "default"; });
  }
  Result<void> set_mycelium() {
    Settings& settings = config_.settings;
    if (is_chosen("mycelium.ip") || is_chosen("mycelium.port")) {
      if (is_chosen("mycelium.url")) {
        config_.warnings.push_back("mycelium.ip and mycelium.port are passed over: mycelium.url is set");
      } else {
        const auto ip = parse_ip(settings.mycelium_ip);
        settings.mycelium_url = "http://" + (ip && ip->v6 ? "[" + settings.mycelium_ip + "]" : settings.mycelium_ip) +
                                ":" + std::to_string(settings.mycelium_port);
      }
    }
    std::string& url = settings.mycelium_url;
    while (url.ends_with('/')) url.pop_back();
    if (url.empty()) return {};
    const auto scheme = url.starts_with("http://") ? 7U : url.starts_with("https://") ? 8U : 0U;
    if (scheme == 0 || !parse_host_port(url.substr(scheme), 80))
      return fail(Code::invalid, "mycelium.url: " + excerpt(url, 80) + " is not http://HOST:PORT or https://HOST:PORT");
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
  FileValues file_;  // empty: no file
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

// Removes the password from "redis://user:secret@host", because users paste the output into reports. A password may
// contain '@' and '/'.
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
    // JSON's texts, numbers, booleans and lists of these are valid TOML. A default ceiling is printed as a comment,
    // since an explicit ceiling has a different effect.
    out += value.literal && value.source == "default" ? "# " : "";
    out +=
        padded(padded(value.name, width) + " = " + dump_json(typed(value)), width + 24) + "  # " + value.source + "\n";
  }
  return out;
}

}  // namespace mycojobs
