#include "cli/config/config.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/parse.h"
#include "base/sha256.h"
#include "cli/config/config_file.h"
#include "model/codec.h"
#include "net/allow_list.h"
#include "net/host.h"
#include "net/web_address.h"
#include "store/redis/redis_endpoint.h"
#include "text/json.h"
#include "text/units.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxPreloadedModules = 32, kMaxPythonBytes = 64U << 10;

// Accepts names such as "numpy" and "scipy.linalg".
bool is_module_name(const std::string& name) {
  bool is_part_begin = true;  // at the beginning of a part of the name
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    const bool digit = c >= '0' && c <= '9';
    if (!(letter || (!is_part_begin && (digit || c == '.')))) return false;
    is_part_begin = c == '.';
  }
  return !is_part_begin && name.size() <= 100;
}

// Accepts absolute paths in normalized form.
bool is_normalized_path(const std::string& path) {
  if (path.size() < 2 || path.size() >= 4096 || path.front() != '/' || path.back() == '/') return false;
  if (path.find('\0') != std::string::npos) return false;
  for (const char* part : {"//", "/./", "/../"}) {
    if ((path + "/").find(part) != std::string::npos) return false;
  }
  return true;
}

// Reads one table [contexts.<id>.python]: the virtual environment, the preloaded modules and the packages of a context.
class PythonReader {
 public:
  PythonReader(Id context, const PolicyText& text)
      : name_("contexts." + std::to_string(context) + ".python"), text_(text) {}

  Result<PythonSettings> read(const json& table) {
    for (const auto& [key, value] : table.items()) {
      if (key == "venv") {
        if (!value.is_string() || !is_normalized_path(value.get_ref<const std::string&>()))
          return reject(key, "is not the whole path of a virtual environment, as \"/srv/venvs/seven\"");
        settings_.venv = value.get<std::string>();
      } else if (key == "preload") {
        MJ_CHECK(read_modules(value));
      } else if (key == "packages") {
        settings_.packages.emplace();
        MJ_CHECK(read_packages(value));
      } else {
        return fail(Code::invalid, find_position(text_, key) + ": unknown key " + excerpt(name_ + "." + key, 80) +
                                       ": there are venv, preload and packages");
      }
    }
    return std::move(settings_);
  }

 private:
  tl::unexpected<Error> reject(const std::string& field, const std::string& problem) const {
    return fail(Code::invalid,
                find_position(text_, field) + ": " + name_ + (field.empty() ? "" : "." + field) + ": " + problem);
  }
  Result<void> read_modules(const json& value) {
    if (!value.is_array()) return reject("preload", "is not a list of modules, as [\"numpy\"]");
    if (value.size() > kMaxPreloadedModules) return reject("preload", "has more than 32 modules");
    for (std::size_t i = 0; i < value.size(); ++i) {
      const std::string field = "preload[" + std::to_string(i) + "]";
      if (!value[i].is_string() || !is_module_name(value[i].get_ref<const std::string&>()))
        return reject(field, "is not the name of a module, as \"numpy\" or \"scipy.linalg\"");
      settings_.preload.push_back(value[i].get<std::string>());
    }
    return {};
  }

  Result<std::vector<std::string>> read_texts(const std::string& field, const json& value) const {
    constexpr std::size_t kMaxTexts = 1000;
    std::vector<std::string> texts;
    const auto is_text = [](const json& item) { return item.is_string(); };
    if (!value.is_array() || value.size() > kMaxTexts || !std::all_of(value.begin(), value.end(), is_text))
      return reject(field, "is not a list of at most 1000 texts");
    for (const json& item : value) texts.push_back(item.get<std::string>());
    return texts;
  }
  // Reads a size ("512MiB") or a duration ("14d") above 0.
  Result<void> read_limit(const std::string& field, const json& value, Result<std::uint64_t> (*parse)(std::string_view),
                          std::uint64_t& out) const {
    const auto limit = value.is_string() ? parse(value.get_ref<const std::string&>())
                                         : Result<std::uint64_t>(fail(Code::invalid, "is not text in quotes"));
    if (!limit) return reject(field, limit.error().message);
    if (*limit == 0) return reject(field, "must be above 0");
    out = *limit;
    return {};
  }
  // Returns null if the field is not a list of texts.
  static std::vector<std::string> PackageSettings::*const* find_package_list(std::string_view key) {
    static constexpr std::pair<std::string_view, std::vector<std::string> PackageSettings::*> kLists[] = {
        {"hosts", &PackageSettings::hosts},
        {"allow", &PackageSettings::allow},
        {"build", &PackageSettings::build},
        {"hashes", &PackageSettings::hashes}};
    for (const auto& [name, list] : kLists) {
      if (name == key) return &list;
    }
    return nullptr;
  }
  static bool is_package_pattern(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '*';
    });
  }
  // Reads the table [contexts.<id>.python.packages].
  Result<void> read_packages(const json& table) {
    if (!table.is_object()) return reject("packages", "is not a table");
    PackageSettings& packages = *settings_.packages;
    for (const auto& [key, value] : table.items()) {
      const std::string field = "packages." + key;
      if (key == "index") {
        if (!value.is_string()) return reject(field, "is not text in quotes");
        packages.index = value.get<std::string>();
      } else if (key == "netrc" || key == "ca") {
        if (!value.is_string() || !is_normalized_path(value.get_ref<const std::string&>()))
          return reject(field, "is not the whole path of a file, as \"/etc/mycojobs/index." + key + "\"");
        (key == "ca" ? packages.ca : packages.netrc) = value.get<std::string>();
      } else if (const auto* list = find_package_list(key); list != nullptr) {
        MJ_TRY(texts, read_texts(field, value));
        packages.*(*list) = std::move(texts);
      } else if (key == "max_bytes" || key == "cache_bytes") {
        MJ_CHECK(read_limit(field, value, parse_bytes, key == "max_bytes" ? packages.max_bytes : packages.cache_bytes));
      } else if (key == "cache_age") {
        MJ_CHECK(read_limit(field, value, parse_duration_ms, packages.cache_age_ms));
      } else {
        return fail(
            Code::invalid,
            find_position(text_, field) + ": unknown key " + excerpt(name_ + "." + field, 80) +
                ": there are index, netrc, ca, hosts, allow, build, hashes, max_bytes, cache_bytes and cache_age");
      }
    }
    return check_packages(packages);
  }
  Result<void> check_packages(const PackageSettings& packages) const {
    if (const auto index = parse_web_address(packages.index); !index)
      return reject("packages.index", index.error().message + "; write it as \"https://pypi.org/simple\"");
    if (const auto hosts = parse_allow(packages.hosts); !hosts) return reject("packages.hosts", hosts.error().message);
    if (packages.allow.empty())
      return reject("packages.allow", "names no package; write names as [\"numpy\", \"acme-*\"], or [\"*\"] for all");
    for (const std::string& pattern : packages.allow) {
      if (!is_package_pattern(pattern))
        return reject("packages.allow",
                      "\"" + pattern + "\" is not a name of lower-case letters, digits and -, with * for any text");
    }
    for (const std::string& name : packages.build) {
      if (!is_package_pattern(name) || name.find('*') != std::string::npos)
        return reject("packages.build", "\"" + name + "\" is not a name of lower-case letters, digits and -");
    }
    for (const std::string& hash : packages.hashes) {
      if (!is_hex(hash, kSha256Digits))
        return reject("packages.hashes", "\"" + hash + "\" is not a SHA-256 of 64 hex digits");
    }
    return {};
  }

  std::string name_;
  const PolicyText& text_;
  PythonSettings settings_;
};

// Copies the tables of the file into the settings and into the values of `config print`. Error invalid:
// "FILE:LINE:COLUMN: ...".
Result<void> set_context_python(const FileValues& file, Config& config) {
  std::size_t bytes = 0;
  for (const auto& [id, text] : file.context_python) {
    bytes += 200 + text.json.size();
    if (bytes > kMaxPythonBytes)
      return fail(Code::invalid, find_position(text, "") + ": contexts.*.python: all of them hold more than 64 KiB");
    const std::string name = "contexts." + std::to_string(id) + ".python";
    const auto table = parse_json(text.json);
    if (!table) return fail(Code::invalid, find_position(text, "") + ": " + name + ": is not understood");
    MJ_TRY(settings, PythonReader(id, text).read(*table));
    if (!settings.venv.empty())
      config.values.push_back({name + ".venv", dump_json(json(settings.venv)), find_position(text, "venv"), true});
    if (!settings.preload.empty())
      config.values.push_back(
          {name + ".preload", dump_json(json(settings.preload)), find_position(text, "preload"), true});
    if (settings.packages) {
      for (const auto& [key, value] : (*table)["packages"].items())
        config.values.push_back(
            {name + ".packages." + key, dump_json(value), find_position(text, "packages." + key), true});
    }
    config.settings.context_python[id] = std::move(settings);
  }
  return {};
}

// Reads one table [contexts.<id>.redis_tls].
Result<TlsSettings> read_redis_tls(const std::string& name, const PolicyText& text) {
  TlsSettings settings;
  settings.table = name;
  const std::pair<std::string_view, std::string TlsSettings::*> fields[] = {{"ca", &TlsSettings::ca},
                                                                            {"cert", &TlsSettings::certificate},
                                                                            {"key", &TlsSettings::key},
                                                                            {"server_name", &TlsSettings::server_name}};
  const auto table = parse_json(text.json);
  if (!table) return fail(Code::invalid, find_position(text, "") + ": " + name + ": is not understood");
  for (const auto& [key, value] : table->items()) {
    const std::string prefix = find_position(text, key) + ": ";
    const auto* field = std::find_if(std::begin(fields), std::end(fields),
                                     [&key = key](const auto& candidate) { return candidate.first == key; });
    if (key == "insecure") {
      if (!value.is_boolean()) return fail(Code::invalid, prefix + name + ".insecure: is not true or false");
      settings.insecure = value.get<bool>();
    } else if (field == std::end(fields)) {
      return fail(Code::invalid, prefix + "unknown key " + excerpt(name + "." + key, 80) +
                                     ": there are ca, cert, key, server_name and insecure");
    } else if (!value.is_string()) {
      return fail(Code::invalid, prefix + name + "." + key + ": is not text in quotes");
    } else {
      settings.*(field->second) = value.get<std::string>();
    }
  }
  return settings;
}

// Copies the tables [contexts.<id>.redis_tls] of the file into the settings and into the values of `config print`.
// Error invalid: "FILE:LINE:COLUMN: ...".
Result<void> set_context_redis_tls(const FileValues& file, Config& config) {
  for (const auto& [id, text] : file.context_redis_tls) {
    const std::string name = "contexts." + std::to_string(id) + ".redis_tls";
    if (!file.context_redis.contains(id)) {
      return fail(Code::invalid, find_position(text, "") + ": " + name +
                                     ": the context has no server of its own: add " + "contexts." + std::to_string(id) +
                                     ".redis, or use [redis_tls]");
    }
    MJ_TRY(settings, read_redis_tls(name, text));
    const auto table = parse_json(text.json);
    for (const auto& [key, value] : table->items())
      config.values.push_back({name + "." + key, dump_json(value), find_position(text, key), true});
    config.settings.context_redis_tls[id] = std::move(settings);
  }
  return {};
}

Result<PolicyRequest> read_ceiling(const PolicyText& text, const std::string& name) {
  ParsedPolicy parsed_policy = read_policy(text.json, name, PolicyKind::ceiling);
  if (parsed_policy.ok() && parsed_policy.request.names(PolicyField::volumes)) {
    return fail(Code::invalid, find_position(text, "volumes") + ": " + name +
                                   ".volumes: the volumes of a context are its ceiling: write "
                                   "[contexts.<id>.volumes.<name>]");
  }
  if (parsed_policy.ok()) return std::move(parsed_policy.request);
  const FieldProblem& problem = parsed_policy.problems.front();
  const std::string field = problem.field.substr(std::min(name.size() + 1, problem.field.size()));
  return fail(Code::invalid, find_position(text, field) + ": " + problem.message);
}

// Appends the fields of a ceiling to the values of `config print`. request: the fields that the file sets.
void add_ceiling_values(const Policy& max, const std::string& name, const PolicyRequest& request,
                        const PolicyText* text, bool include_defaults, Config& config) {
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const auto field = static_cast<PolicyField>(i);
    if (!has_ceiling(field) || field == PolicyField::volumes) continue;
    if (!include_defaults && !request.named_fields[i]) continue;
    const std::string source =
        request.named_fields[i] ? find_position(*text, std::string(to_string(field))) : "default";
    config.values.push_back(
        {name + '.' + std::string(to_string(field)), format_policy_value(field, max), source, true});
  }
}

// The built-in ceiling is raised to the operator's defaults, so that these are permitted without a configured ceiling.
Policy make_builtin_ceiling(const Settings& settings) {
  Policy max = default_ceiling();
  max.memory_bytes = std::max(max.memory_bytes, settings.sandbox_memory_bytes);
  max.pids = std::max(max.pids, settings.sandbox_pids);
  max.disk_bytes = std::max(max.disk_bytes, settings.sandbox_tmp_bytes);
  max.output_bytes = std::max(max.output_bytes, settings.job_output_bytes);
  max.log_bytes = std::max(max.log_bytes, settings.job_log_bytes);
  return max;
}

// Adds a folder that policies must not grant: in normal form, and with resolved links.
void add_own_folder(std::vector<std::string>& folders, const std::filesystem::path& folder) {
  if (folder.empty()) return;
  std::error_code error;
  const auto absolute = std::filesystem::absolute(folder, error).lexically_normal();
  for (const auto& path : {absolute, std::filesystem::weakly_canonical(absolute, error)}) {
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
  PolicyRequest default_request;
  const auto default_text = file.ceilings.find(0);
  if (default_text != file.ceilings.end()) {
    MJ_TRY(parsed_policy, read_ceiling(default_text->second, "ceiling"));
    default_request = std::move(parsed_policy);
  }
  ceilings.written_fields[0] = default_request.named_fields;
  ceilings.standard = apply_request(make_builtin_ceiling(settings), default_request);
  add_ceiling_values(ceilings.standard, "ceiling", default_request,
                     default_text == file.ceilings.end() ? nullptr : &default_text->second, true, config);
  for (const auto& [id, text] : file.ceilings) {
    if (id == 0) continue;
    const std::string name = "contexts." + std::to_string(id) + ".ceiling";
    MJ_TRY(parsed_policy, read_ceiling(text, name));
    ceilings.written_fields[id] = parsed_policy.named_fields;
    ceilings.contexts[id] = apply_request(ceilings.standard, parsed_policy);
    add_ceiling_values(ceilings.contexts[id], name, parsed_policy, &text, false, config);
  }
  add_own_folder(ceilings.agent_folders, settings.state_dir);
  add_own_folder(ceilings.agent_folders, settings.secrets_dir);
  add_own_folder(ceilings.agent_folders, settings.plugins_dir);
  add_own_folder(ceilings.agent_folders, settings.artifacts_store_credentials);
  add_own_folder(ceilings.agent_folders, config.file);  // access to a folder that contains the file includes the file
  return {};
}

// Returns the user and its primary group by name or by id, or no value if there is no such user. The group of an id
// without a user is the same number.
std::optional<FileOwner> find_owner(const std::string& text) {
  std::uint64_t uid = 0;
  const bool is_id = parse_u64(text, uid) && uid < 0xffffffffU;
  const passwd* user = is_id ? ::getpwuid(static_cast<uid_t>(uid)) : ::getpwnam(text.c_str());
  if (user != nullptr) return FileOwner{user->pw_uid, user->pw_gid};
  if (!is_id) return std::nullopt;
  return FileOwner{static_cast<std::uint32_t>(uid), static_cast<std::uint32_t>(uid)};
}

// Returns whether the text means root without a lookup.
bool is_root(const std::string& user) {
  std::uint64_t uid = 0;
  return user == "root" || (parse_u64(user, uid) && uid == 0);
}

constexpr const char* kNeverRoot = "jobs never write as root: name another user, or use mode = \"ro\"";

// Reads the tables [contexts.<id>.volumes.<name>] and [contexts.<id>.files]. Owners are only recorded in
// Settings::owners: commands of other hosts use the same file, and a lookup can wait for a directory service. Errors
// contain the position in the file.
class ContextFilesReader {
 public:
  ContextFilesReader(Id context, const std::string& table, const PolicyText& text, Config& config)
      : context_(context), table_("contexts." + std::to_string(context) + '.' + table), text_(text), config_(config) {}

  Result<void> read_volumes() {
    const auto table = parse_json(text_.json);
    if (!table) return reject("", "is not understood");
    for (const auto& [name, value] : table->items()) {
      if (auto checked = policies::check_volume(name); !checked) return reject(name, checked.error().message);
      if (!value.is_object()) return reject(name, "is not a table with path, mode and owner");
      MJ_CHECK(read_volume(name, value));
    }
    return {};
  }

  Result<void> read_files() {
    const auto table = parse_json(text_.json);
    if (!table) return reject("", "is not understood");
    ContextFiles files;
    files.context = static_cast<ContextId>(context_);
    files.owner = kUnknownFileOwner;
    for (const auto& [key, value] : table->items()) {
      if (key == "owner") {
        MJ_CHECK(read_owner(key, value, ""));
      } else if (key == "fixed_uid") {
        if (!value.is_boolean()) return reject(key, "is not true or false");
        files.has_fixed_uid = value.get<bool>();
      } else {
        return reject(key, "is unknown: there are owner and fixed_uid");
      }
      add_value(key, value);
    }
    if (!table->contains("owner")) return reject("", "has no owner: name the user to whom files of jobs belong");
    config_.settings.context_files.push_back(files);
    return {};
  }

 private:
  Result<void> read_volume(const std::string& name, const json& table) {
    Volume volume;
    volume.name = name;
    volume.owner = kUnknownFileOwner;
    for (const auto& [key, value] : table.items()) {
      const std::string field = name + '.' + key;
      if (key == "path") {
        if (!value.is_string() || !is_normalized_path(value.get_ref<const std::string&>()))
          return reject(field, "is not the whole path of a folder, as \"/srv/backup\"");
        volume.path = value.get<std::string>();
        MJ_CHECK(check_path(field, volume.path));
      } else if (key == "mode") {
        if (value != "ro" && value != "rw") return reject(field, "is not \"ro\" or \"rw\"");
        volume.writable = value == "rw";
      } else if (key == "owner") {
        MJ_CHECK(read_owner(field, value, name));
      } else {
        return reject(field, "is unknown: there are path, mode and owner");
      }
      add_value(field, value);
    }
    for (const char* key : {"path", "mode", "owner"}) {
      if (!table.contains(key)) return reject(name, "has no " + std::string(key));
    }
    const std::string owner_field = name + ".owner";
    if (volume.writable && is_root(config_.settings.owners.at(format_name(owner_field)).user))
      return reject(owner_field, kNeverRoot);
    config_.settings.ceilings.volumes[context_].push_back(std::move(volume));
    return {};
  }
  Result<void> check_path(const std::string& field, const std::string& path) const {
    for (const char* folder : {"/proc", "/sys", "/dev"}) {
      if (policies::is_within(path, folder)) return reject(field, std::string("is below ") + folder);
    }
    for (const std::string& folder : config_.settings.ceilings.agent_folders) {
      if (policies::overlaps(path, folder))
        return reject(field, "leads to the agent's own folder " + folder + ", which no job may have");
    }
    return {};
  }
  Result<void> read_owner(const std::string& field, const json& value, const std::string& volume) {
    const bool is_text = value.is_string() && !value.get_ref<const std::string&>().empty();
    if (!is_text && !value.is_number_unsigned()) return reject(field, "is not the name or the id of a user");
    config_.settings.owners[format_name(field)] = {context_, volume,
                                                   is_text ? value.get<std::string>() : dump_json(value)};
    return {};
  }
  std::string format_name(const std::string& field) const { return field.empty() ? table_ : table_ + '.' + field; }
  void add_value(const std::string& field, const json& value) {
    config_.values.push_back({format_name(field), dump_json(value), find_position(text_, field), true});
  }
  tl::unexpected<Error> reject(const std::string& field, const std::string& problem) const {
    return fail(Code::invalid, find_position(text_, field) + ": " + format_name(field) + ": " + problem);
  }

  Id context_;
  std::string table_;
  const PolicyText& text_;
  Config& config_;
};

// Sets the volumes and the owners of files of all contexts, and appends their values. REQUIRES: the ceilings are set.
Result<void> set_context_files(const FileValues& file, Config& config) {
  constexpr std::size_t kMaxBytes = 24U << 10;  // the launcher receives all volumes in one message
  std::size_t bytes = 0;
  for (const auto& [id, text] : file.context_volumes) {
    bytes += text.json.size();
    if (bytes > kMaxBytes)
      return fail(Code::invalid, find_position(text, "") + ": contexts.*.volumes: all of them hold more than 24 KiB");
    MJ_CHECK(ContextFilesReader(id, "volumes", text, config).read_volumes());
  }
  for (const auto& [id, text] : file.context_files)
    MJ_CHECK(ContextFilesReader(id, "files", text, config).read_files());
  return {};
}

// Reads one table [executors.<name>] as JSON. Errors contain the position in the file.
class ExecutorReader {
 public:
  ExecutorReader(std::string name, const PolicyText& text) : text_(text) { settings_.name = std::move(name); }

  Result<CommandSettings> read() {
    if (!is_script_type(settings_.name))
      return reject("", "a script type is a-z, 0-9, _ and -, at most 32, a letter first");
    if (settings_.name == "rust") return reject("", "is a script type of the executor native: choose another name");
    const auto table = parse_json(text_.json);
    if (!table) return reject("", "is not understood");
    for (const auto& [key, value] : table->items()) {
      if (key == "command") {
        MJ_CHECK(read_strings(key, value, settings_.command));
      } else if (key == "version") {
        MJ_CHECK(read_strings(key, value, settings_.version));
      } else if (key == "file") {
        if (!value.is_string() || !is_file_name(value.get_ref<const std::string&>()))
          return reject(key, "is not a file name such as \"script.js\"");
        settings_.file = value.get<std::string>();
      } else if (key == "environment") {
        MJ_CHECK(read_environment(key, value));
      } else if (key == "policy") {
        MJ_CHECK(read_policy_table(key, value));
      } else {
        return reject(key, "is unknown: there are command, file, version, environment, policy");
      }
    }
    if (settings_.command.empty()) return reject("", "has no command: as in command = [\"/bin/bash\", \"{script}\"]");
    if (!settings_.command.front().starts_with('/'))
      return reject("command[0]", "is not the whole path of a program, as /usr/bin/perl");
    const bool has_script =
        std::any_of(settings_.command.begin(), settings_.command.end(),
                    [](const std::string& item) { return item.find("{script}") != std::string::npos; });
    if (!has_script) return reject("command", "has no {script}, so that the program would not find the script");
    return std::move(settings_);
  }

 private:
  tl::unexpected<Error> reject(const std::string& field, const std::string& problem) const {
    return fail(Code::invalid, find_position(text_, field) + ": executors." +
                                   (is_script_type(settings_.name) ? settings_.name : excerpt(settings_.name, 60)) +
                                   (field.empty() ? "" : "." + field) + ": " + problem);
  }
  static bool is_file_name(const std::string& name) {
    return !name.empty() && name.size() <= 100 && name.front() != '.' && name.find('/') == std::string::npos &&
           name.find('\0') == std::string::npos && name != "artifacts" && name != "secrets" && name != "inputs" &&
           name != "inputs.json" && name != "flow.json";
  }
  Result<void> read_strings(const std::string& key, const json& value, std::vector<std::string>& out) const {
    if (!value.is_array() || value.size() > 100) return reject(key, "is not a list of texts");
    out.clear();
    for (const auto& item : value) {
      if (!item.is_string() || item.get_ref<const std::string&>().find('\0') != std::string::npos)
        return reject(key, "is not a list of texts");
      out.push_back(item.get<std::string>());
    }
    return {};
  }
  Result<void> read_environment(const std::string& key, const json& value) {
    if (!value.is_object()) return reject(key, "is not a table of texts");
    for (const auto& [name, text] : value.items()) {
      const bool is_valid = text.is_string() && !name.empty() &&
                            name.find_first_of(std::string("=\0", 2)) == std::string::npos &&
                            text.get_ref<const std::string&>().find('\0') == std::string::npos;
      if (!is_valid) return reject(key + '.' + name, "is not text, or its name has = or NUL in it");
      if (name.starts_with("MYCOJOBS_"))
        return reject(key + '.' + name, "is set for each job by mycojobs itself: choose another name");
      settings_.environment[name] = text.get<std::string>();
    }
    return {};
  }
  Result<void> read_policy_table(const std::string& key, const json& value) {
    ParsedPolicy policy = read_policy(dump_json(value), "policy");
    if (!policy.ok()) {
      const FieldProblem& problem = policy.problems.front();
      const std::string_view message = problem.message;
      const bool repeats_field = message.starts_with(problem.field + ": ");  // reject() adds the field's name too
      return reject(problem.field.starts_with(key) ? problem.field : key,
                    std::string(repeats_field ? message.substr(problem.field.size() + 2) : message));
    }
    if (policy.request.names(PolicyField::exec) && !policy.request.values.exec)
      return reject("policy.exec", "is false, but its jobs are programs: leave it out");
    settings_.policy = std::move(policy.request);
    return {};
  }

  const PolicyText& text_;
  CommandSettings settings_;
};

// Copies the tables [executors.<name>] of the file into the settings and into the values of `config print`. Error
// invalid: "FILE:LINE:COLUMN: ...".
Result<void> set_executors(const FileValues& file, Config& config) {
  for (const auto& [name, text] : file.executors) {
    MJ_TRY(settings, ExecutorReader(name, text).read());
    config.values.push_back(
        {"executors." + name + ".command", dump_json(json(settings.command)), find_position(text, "command"), true});
    config.settings.executors.push_back(std::move(settings));
  }
  return {};
}

// Returns the path of the file to read, or an empty path.
std::string find_config_file(const ConfigSources& sources) {
  if (!sources.flags.config_file.empty()) return sources.flags.config_file;
  if (auto file = sources.host.variable("MYCOJOBS_CONFIG"); !file.empty()) return file;
  std::string path = "/etc";
  if (!sources.host.root) {
    path = sources.host.variable("XDG_CONFIG_HOME");
    if (!path.starts_with('/')) path = sources.host.variable("HOME") + "/.config";
  }
  path += "/mycojobs/config.toml";
  std::error_code error;
  return std::filesystem::exists(path, error) ? path : "";
}

// Returns true for URLs such as "redis://:password@host" and "redis://user:password@host".
bool contains_password(std::string_view text) {
  const auto scheme = text.find("://");
  if (scheme == std::string_view::npos) return false;
  const auto at_sign = text.find('@', scheme);
  const auto colon = text.find(':', scheme + 3);
  return at_sign != std::string_view::npos && colon != std::string_view::npos && colon + 1 < at_sign;
}

// Combines the sources of a configuration. Each call of apply_file(), apply_environment() or apply_flags() replaces
// values of earlier calls.
class ConfigBuilder {
 public:
  explicit ConfigBuilder(const HostFacts& host) {
    for (const Option& option : options()) {
      config_.values.push_back({std::string(option.name),
                                option.computed ? option.computed(host) : std::string(option.fallback), "default"});
    }
  }
  void set_value(ConfigValue value) {
    for (const RenamedOption& entry : renamed_options()) {
      if (entry.alternative != value.name) continue;
      if (entry.is_former)
        config_.warnings.push_back(value.source + ": " + value.name + " is called " + std::string(entry.current) +
                                   " now: write that; the former name will go");
      value.name = entry.current;
    }
    const auto entry = std::find_if(config_.values.begin(), config_.values.end(),
                                    [&](const ConfigValue& existing) { return existing.name == value.name; });
    if (entry != config_.values.end()) *entry = value;
  }
  void apply_file(const std::string& path, FileValues file) {
    config_.file = path;
    for (const auto& value : file.options) set_value(value);
    for (const auto& [id, value] : file.context_redis) {
      config_.settings.context_redis[id] = value.text;
      config_.values.push_back(value);
    }
    file_ = std::move(file);
    warn_about_passwords();
  }
  void apply_environment(const HostFacts& host) {
    for (const auto& entry : host.environment) {
      const std::string& name = entry.first;
      if (!name.starts_with("MYCOJOBS_") || name == "MYCOJOBS_CONFIG" || name == "MYCOJOBS_TOKEN") continue;
      if (const auto option = find_option_of_variable(name); !option.empty()) {
        set_value({std::string(option), entry.second, name});
      } else {
        config_.warnings.push_back("the variable " + name + " is not a setting and was ignored");
      }
    }
  }
  void apply_flags(const FlagValues& flags) {
    for (const auto& [name, text] : flags.values) {
      if (find_option(resolve_option_name(name)) != nullptr) set_value({name, text, get_flag_name(name)});
    }
  }
  Result<Config> build() {
    for (const auto& value : config_.values) {
      const Option* option = find_option(value.name);
      if (option == nullptr) continue;  // such as the Redis of a context
      if (auto result = set_option(*option, value.text, config_.settings); !result) {
        const bool is_from_file = !config_.file.empty() && value.source.starts_with(config_.file + ':');
        const bool names_option = value.source == get_flag_name(*option) || value.source == get_variable_name(*option);
        return fail(result.error(), names_option   ? value.source
                                    : is_from_file ? value.source + ": " + value.name
                                                   : value.name);
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
    MJ_CHECK(set_context_files(file_, config_));
    MJ_CHECK(set_executors(file_, config_));
    MJ_CHECK(set_context_python(file_, config_));
    MJ_CHECK(set_context_redis_tls(file_, config_));
    warn_about_unused_tls();
    warn_about_unused_sentinel_settings();
    return std::move(config_);
  }

 private:
  // Returns the option that a variable sets, under any name of the option, or an empty text.
  static std::string_view find_option_of_variable(const std::string& variable) {
    for (const Option& entry : options()) {
      if (get_variable_name(entry) == variable) return entry.name;
    }
    for (const RenamedOption& entry : renamed_options()) {
      if (get_variable_name(entry.alternative) == variable) return entry.alternative;
    }
    return {};
  }
  // Returns true if the file, a variable or a flag sets the option.
  bool is_chosen(std::string_view name) const {
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
        settings.mycelium_url = "http://" +
                                (ip && ip->is_v6 ? "[" + settings.mycelium_ip + "]" : settings.mycelium_ip) + ":" +
                                std::to_string(settings.mycelium_port);
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
  // An operator who sets certificates expects TLS.
  void warn_about_unused_tls() {
    const Settings& settings = config_.settings;
    const auto uses_tls = [](const std::string& url) { return is_tls_redis_url(url); };
    const bool is_table_used =
        uses_tls(settings.redis) ||
        std::any_of(settings.context_redis.begin(), settings.context_redis.end(), [&](const auto& entry) {
          return uses_tls(entry.second) && !settings.context_redis_tls.contains(entry.first);
        });
    const auto has_table_name = [](const ConfigValue& value) {
      const bool is_set = !value.text.empty() && value.text != "false";
      return value.name.starts_with("redis_tls.") && is_set;
    };
    const auto value = std::find_if(config_.values.begin(), config_.values.end(), has_table_name);
    if (!is_table_used && value != config_.values.end())
      config_.warnings.push_back(
          value->source + ": " + value->name +
          " has no effect: no address of Redis that uses it begins with rediss:// or rediss+sentinel://");
    for (const auto& [id, tls] : settings.context_redis_tls) {
      if (!uses_tls(settings.context_redis.at(id)))
        config_.warnings.push_back(tls.table +
                                   " has no effect: the address of the context does not begin with rediss://");
    }
  }
  void warn_about_unused_sentinel_settings() {
    const Settings& settings = config_.settings;
    const auto uses_sentinels = [](const std::string& url) { return url.find("+sentinel://") != std::string::npos; };
    if (uses_sentinels(settings.redis) || std::any_of(settings.context_redis.begin(), settings.context_redis.end(),
                                                      [&](const auto& entry) { return uses_sentinels(entry.second); }))
      return;
    for (const ConfigValue& value : config_.values) {
      if (value.name.starts_with("redis_sentinel.") && !value.text.empty())
        config_.warnings.push_back(value.source + ": " + value.name +
                                   " has no effect: no address of Redis begins with redis+sentinel://");
    }
  }
  void warn_about_passwords() {
    struct stat info {};
    if (::stat(config_.file.c_str(), &info) != 0 || (info.st_mode & S_IROTH) == 0) return;
    for (const ConfigValue& value : config_.values) {
      if (!value.source.starts_with(config_.file + ':') || !contains_password(value.text)) continue;
      config_.warnings.push_back(value.source + ": " + value.name +
                                 " holds a password, and every user of this host may read the file: chmod o-r " +
                                 config_.file);
    }
  }

  Config config_;
  FileValues file_;  // empty: no file
};

}  // namespace

ConfigSources read_system_sources(FlagValues flags) {
  ConfigSources sources;
  sources.flags = std::move(flags);
  sources.host.cpus = std::thread::hardware_concurrency();
  sources.host.root = ::geteuid() == 0;
  std::error_code error;
  sources.host.program_dir = std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
  const auto installed = std::filesystem::path(sources.host.program_dir).parent_path() / "libexec" / "mycojobs";
  if (std::filesystem::is_directory(installed, error)) sources.host.installed_helpers = installed.string();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos)
      sources.host.environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return sources;
}

Result<Config> load_config(const ConfigSources& sources) {
  ConfigBuilder builder(sources.host);
  if (const std::string path = find_config_file(sources); !path.empty()) {
    MJ_TRY(file, read_config_file(path));
    builder.apply_file(path, std::move(file));
  }
  builder.apply_environment(sources.host);
  builder.apply_flags(sources.flags);
  return builder.build();
}

std::vector<RejectedSetting> resolve_owners(Settings& settings, const std::vector<Id>& contexts) {
  std::map<std::string, Error> errors;
  for (const auto& [name, setting] : settings.owners) {
    const auto owner = find_owner(setting.user);
    if (!owner) errors[name] = {Code::not_found, "there is no user " + setting.user + " on this host"};
    if (!owner) continue;
    if (setting.volume.empty()) {
      for (ContextFiles& files : settings.context_files) {
        if (files.context == setting.context) files.owner = *owner;
      }
      continue;
    }
    for (Volume& volume : settings.ceilings.volumes[setting.context]) {
      if (volume.name != setting.volume) continue;
      volume.owner = *owner;
      if (volume.writable && (owner->uid == 0 || owner->gid == 0)) errors[name] = {Code::invalid, kNeverRoot};
    }
  }
  std::vector<RejectedSetting> rejected;
  for (const Id context : contexts) {
    for (const auto& [name, error] : errors) {
      if (settings.owners.at(name).context == context) rejected.push_back({name, error});
    }
  }
  return rejected;
}

Result<Config> check_config_file(const std::string& path, const HostFacts& host) {
  ConfigBuilder builder(host);
  MJ_TRY(file, read_config_file(path));
  builder.apply_file(path, std::move(file));
  return builder.build();
}

namespace {

// Removes the password from "redis://user:secret@host", because users paste the output into reports. A password may
// contain '@' and '/'.
std::string mask_password(const std::string& text) {
  const auto scheme = text.find("://");
  if (scheme == std::string::npos) return text;
  const auto colon = text.find(':', scheme + 3);
  const auto at_sign = text.rfind('@');
  if (at_sign == std::string::npos || colon > at_sign) return text;
  return text.substr(0, colon + 1) + "***" + text.substr(at_sign);
}

nlohmann::json to_json_value(const ConfigValue& value) {
  if (value.is_json) {
    auto parsed = parse_json(value.text);
    return parsed ? std::move(*parsed) : nlohmann::json(value.text);
  }
  const Option* option = find_option(value.name);
  const OptionType type = option ? option->type : OptionType::text;
  if (type == OptionType::flag) return value.text == "true";
  const auto number = [](const std::string& text) { return nlohmann::json(std::strtoull(text.c_str(), nullptr, 10)); };
  if (type == OptionType::count) return number(value.text);
  if (!is_list(type)) return mask_password(value.text);
  auto items = nlohmann::json::array();
  const bool ids = std::holds_alternative<std::vector<Id> Settings::*>(option->member);
  for (std::size_t item_begin = 0; item_begin < value.text.size();) {
    const auto comma = std::min(value.text.find(',', item_begin), value.text.size());
    const std::string item = value.text.substr(item_begin, comma - item_begin);
    items.push_back(ids ? number(item) : nlohmann::json(item));
    item_begin = comma + 1;
  }
  return items;
}

std::string pad_right(std::string text, std::size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

}  // namespace

std::string format_config(const Config& config, bool as_json) {
  if (as_json) {
    auto out = nlohmann::json::object();
    for (const auto& value : config.values)
      out[value.name] = {{"value", to_json_value(value)}, {"source", value.source}};
    return dump_json(out, 2) + "\n";
  }
  std::size_t width = 0;
  for (const auto& value : config.values) width = std::max(width, value.name.size());
  std::string out;
  for (const auto& value : config.values) {
    // JSON's texts, numbers, booleans and lists of these are valid TOML. A default ceiling is printed as a comment,
    // since an explicit ceiling has a different effect.
    out += value.is_json && value.source == "default" ? "# " : "";
    out += pad_right(pad_right(value.name, width) + " = " + dump_json(to_json_value(value)), width + 24) + "  # " +
           value.source + "\n";
  }
  return out;
}

}  // namespace mycojobs
