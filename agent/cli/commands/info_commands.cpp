// mycojobs version, config print | check, completion
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/version.h"
#include "cli/command_output.h"
#include "cli/commands/command_table.h"
#include "cli/commands/commands.h"
#include "cli/commands/completion.h"
#include "cli/config/config.h"
#include "cli/service_setup.h"
#include "cli/terminal.h"

namespace mycojobs {

Result<int> version_command(Invocation& call) {
  return print_answer(call, {{"version", kVersion}}, std::string("mycojobs ") + kVersion);
}

Result<int> config_print_command(Invocation& call) {
  MJ_TRY(config, load_config(read_system_sources(call.options)));
  print(format_config(config, call.json));
  return 0;
}

namespace {

// Returns the error in the format of load_config(): "FILE:LINE:COLUMN: redis: ...".
std::string format_rejection(const Config& config, const RejectedSetting& rejected) {
  const std::string& message = rejected.error.message;
  const std::string text = message.starts_with(rejected.name + ": ") ? message : rejected.name + ": " + message;
  for (const ConfigValue& value : config.values) {
    const bool is_chosen = value.name == rejected.name && value.source != "default";
    if (is_chosen) return value.source + ": " + text;
  }
  return text;
}

// Warns of configured executors that do not work on this host; an agent starts without them.
void warn_about_executors(const Invocation& call, Config& config) {
  const auto& configured = config.settings.executors;
  if (configured.empty()) return;
  for (const auto& executor : call.dependencies.make_executors(config.settings)) {
    const bool is_configured = std::any_of(configured.begin(), configured.end(), [&](const CommandSettings& entry) {
      return entry.name == executor->name();
    });
    if (!is_configured) continue;
    if (auto probe = executor->probe(); !probe)
      config.warnings.push_back(fmt::format("executors.{}: is missing here, and its queue not served: {}",
                                            executor->name(), probe.error().message));
  }
}

// Checks that the path is a folder. A path that this user cannot access is accepted. Errors: not_found, invalid.
Result<void> check_configured_folder(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    return fail(Code::not_found, path + ": there is no such folder; make it, or correct the path");
  if (error || status.type() == std::filesystem::file_type::directory) return {};
  return fail(Code::invalid, path + ": is not a folder");
}

Result<void> check_venv(const std::string& path) {
  MJ_CHECK(check_configured_folder(path));
  std::error_code error;
  if (std::filesystem::exists(path + "/pyvenv.cfg", error) || error) return {};
  return fail(Code::invalid,
              path + ": is not a virtual environment: it has no pyvenv.cfg; make one with `python3 -m venv`");
}

// Returns configured folders that are missing. Services start without them, but jobs that need them fail. The default
// folder of secrets may be missing, because it was not configured.
std::vector<RejectedSetting> find_missing_folders(const Config& config, const HostFacts& host) {
  std::vector<RejectedSetting> rejected_folders;
  const std::string& secrets = config.settings.secrets_dir;
  if (!secrets.empty() && secrets != find_option("secrets_dir")->computed(host)) {
    if (auto result = check_configured_folder(secrets); !result)
      rejected_folders.push_back({"secrets_dir", result.error()});
  }
  for (const auto& [context, python] : config.settings.context_python) {
    if (python.venv.empty()) continue;
    if (auto result = check_venv(python.venv); !result)
      rejected_folders.push_back({fmt::format("contexts.{}.python.venv", context), result.error()});
  }
  return rejected_folders;
}

}  // namespace

Result<int> config_check_command(Invocation& call) {
  const ConfigSources sources = read_system_sources(call.options);
  MJ_TRY(config,
         call.arguments.empty() ? load_config(sources) : check_config_file(call.arguments.front(), sources.host));
  std::string problems;
  std::vector<RejectedSetting> rejected = find_rejected_settings(config.settings);
  for (RejectedSetting& entry : find_missing_folders(config, sources.host)) rejected.push_back(std::move(entry));
  for (const RejectedSetting& entry : rejected)
    problems += (problems.empty() ? "" : "\n") + format_rejection(config, entry);
  if (!rejected.empty()) return fail(rejected.front().error.code, problems);
  warn_about_executors(call, config);
  for (const std::string& warning : config.warnings) print_warning(warning);
  const std::string file = config.file.empty() ? "no file; environment and defaults" : config.file;
  return print_answer(call, {{"ok", true}, {"file", config.file}, {"warnings", config.warnings}}, file + ": ok");
}

namespace {

// Returns the argument of `mycojobs complete` that lists candidates for the command's first argument, or an empty text.
std::string find_candidate_list(const Command& command) {
  const std::string_view argument = command.arguments.substr(0, command.arguments.find_first_of(" |"));
  if (argument == "JOB") return "jobs";
  if (argument == "FLOW") return "flows";
  if (argument == "QUEUE") return "queues";
  if (argument == "NAME" && command.name.starts_with("flow schedule ") && command.name != "flow schedule add")
    return "schedules";
  return {};
}

std::string list_script_types(const Invocation& call) {
  std::string names;
  for (const auto& executor : call.dependencies.make_executors(call.settings)) {
    for (const auto& type : executor->script_types()) names += (names.empty() ? "" : " ") + type;
  }
  return names;
}

std::string list_rpc_methods() {
  std::string names;
  for (const service::Request& request : service::requests())
    names += (names.empty() ? "" : " ") + std::string(request.name);
  return names;
}

}  // namespace

Result<int> completion_command(Invocation& call) {
  const std::string& shell = call.arguments.front();
  if (shell != "bash" && shell != "zsh") {
    return fail(Code::invalid, "\"" + shell + "\": there are completion scripts for bash and zsh");
  }
  CommandRows command_rows;
  const std::string types = list_script_types(call), methods = list_rpc_methods();
  for (const Command& command : commands()) {
    CommandRow command_row{std::string(command.name), std::string(command.help),
                           list_configuration_flags(command.name.substr(0, command.name.find(' ')))};
    for (const FlagRow& flag : command.flags) {
      const bool is_type = flag.name == "type" && flag.choices.empty();
      command_row.options.push_back(
          {"--" + std::string(flag.name), !flag.value.empty(), is_type ? types : std::string(flag.choices)});
    }
    command_row.argument_list = find_candidate_list(command);
    if (command.name == "rpc") command_row.argument_words = methods;
    command_row.options.push_back({"--json", false, ""});
    command_rows.push_back(std::move(command_row));
  }
  print(shell == "zsh" ? make_zsh_completion(command_rows) : make_bash_completion(command_rows));
  return 0;
}

}  // namespace mycojobs
