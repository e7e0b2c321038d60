// mycojobs version, config print | check, completion
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "api/services.h"
#include "base/version.h"
#include "cli/commands/command_table.h"
#include "cli/commands/completion.h"
#include "cli/config/config.h"
#include "cli/store_session.h"
#include "cli/terminal.h"

namespace mycojobs {

int version_command(Invocation& call) {
  if (call.json) {
    print(nlohmann::json{{"version", kVersion}}.dump() + "\n");
  } else {
    print(std::string("mycojobs ") + kVersion + "\n");
  }
  return 0;
}

int config_print_command(Invocation& call) {
  auto config = load_config(system_sources(call.options));
  if (!config) return print_error(config.error());
  print(print_config(*config, call.json));
  return 0;
}

namespace {

// Returns the error in the format of load_config(): "FILE:LINE:COLUMN: redis: ...".
std::string refusal_text(const Config& config, const RejectedSetting& refused) {
  const std::string& why = refused.error.message;
  const std::string text = why.starts_with(refused.name + ": ") ? why : refused.name + ": " + why;
  for (const ConfigValue& value : config.values) {
    const bool chosen = value.name == refused.name && value.source != "default";
    if (chosen) return value.source + ": " + text;
  }
  return text;
}

// Warns of configured executors that do not work on this host; an agent starts without them.
void warn_of_executors(const Invocation& call, Config& config) {
  const auto& own = config.settings.executors;
  if (own.empty()) return;
  for (const auto& executor : call.parts.executors(config.settings)) {
    const bool is_own =
        std::any_of(own.begin(), own.end(), [&](const CommandSettings& each) { return each.name == executor->name(); });
    if (!is_own) continue;
    if (auto probed = executor->probe(); !probed)
      config.warnings.push_back(fmt::format("executors.{}: is missing here, and its queue not served: {}",
                                            executor->name(), probed.error().message));
  }
}

}  // namespace

namespace {

// Error not_found or invalid: the path is not a folder. A path that this user cannot access is accepted.
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
  std::error_code unseen;
  if (std::filesystem::exists(path + "/pyvenv.cfg", unseen) || unseen) return {};
  return fail(Code::invalid,
              path + ": is not a virtual environment: it has no pyvenv.cfg; make one with `python3 -m venv`");
}

// Returns configured folders that are missing. Services start without them, but jobs that need them fail. The default
// folder of secrets may be missing, because it was not configured.
std::vector<RejectedSetting> missing_folders(const Config& config, const HostFacts& host) {
  std::vector<RejectedSetting> missing;
  const std::string& secrets = config.settings.secrets_dir;
  if (!secrets.empty() && secrets != find_option("secrets_dir")->computed(host)) {
    if (auto there = check_configured_folder(secrets); !there) missing.push_back({"secrets_dir", there.error()});
  }
  for (const auto& [context, python] : config.settings.context_python) {
    if (python.venv.empty()) continue;
    if (auto there = check_venv(python.venv); !there)
      missing.push_back({fmt::format("contexts.{}.python.venv", context), there.error()});
  }
  return missing;
}

}  // namespace

int config_check_command(Invocation& call) {
  const Sources sources = system_sources(call.options);
  auto config = call.arguments.empty() ? load_config(sources) : check_config_file(call.arguments.front(), sources.host);
  if (!config) return print_error(config.error());
  std::string wrong;
  std::vector<RejectedSetting> refused = refused_settings(config->settings);
  for (RejectedSetting& each : missing_folders(*config, sources.host)) refused.push_back(std::move(each));
  for (const RejectedSetting& each : refused) wrong += (wrong.empty() ? "" : "\n") + refusal_text(*config, each);
  if (!refused.empty()) return print_error({refused.front().error.code, wrong});
  warn_of_executors(call, *config);
  for (const std::string& warning : config->warnings)
    print_message(paint(OutputStyle::warn, "warning: ", true) + warning);
  const std::string file = config->file.empty() ? "no file; environment and defaults" : config->file;
  if (call.json) {
    print(nlohmann::json{{"ok", true}, {"file", config->file}, {"warnings", config->warnings}}.dump() + "\n");
  } else {
    print(file + ": ok\n");
  }
  return 0;
}

namespace {

// Returns the argument of `mycojobs complete` that lists candidates for the command's first argument; empty: none.
std::string lister_of(const Command& command) {
  const std::string_view argument = command.arguments.substr(0, command.arguments.find_first_of(" |"));
  if (argument == "JOB") return "jobs";
  if (argument == "FLOW") return "flows";
  if (argument == "QUEUE") return "queues";
  if (argument == "NAME" && command.name.starts_with("flow schedule ") && command.name != "flow schedule add")
    return "schedules";
  return {};
}

std::string script_types(const Invocation& call) {
  std::string words;
  for (const auto& executor : call.parts.executors(call.settings)) {
    for (const auto& type : executor->script_types()) words += (words.empty() ? "" : " ") + type;
  }
  return words;
}

std::string methods_of_rpc(const Invocation& call) {
  const auto stores = call.parts.stores(call.settings, call.settings.redis);
  std::string words;
  api::Services services(*stores, call.parts.clock, {});
  for (const auto& method : api::methods_of(services, ApiRole::coordinator))
    words += (words.empty() ? "" : " ") + std::string(method.name);
  return words;
}

}  // namespace

int completion_command(Invocation& call) {
  const std::string& shell = call.arguments.front();
  if (shell != "bash" && shell != "zsh") {
    return print_error({Code::invalid, "\"" + shell + "\": there are completion scripts for bash and zsh"});
  }
  Commands rows;
  const std::string types = script_types(call), methods = methods_of_rpc(call);
  for (const Command& command : commands()) {
    CommandRow row{std::string(command.name), std::string(command.help),
                   configuration_flags(command.name.substr(0, command.name.find(' ')))};
    for (const FlagRow& flag : command.flags) {
      const bool is_type = flag.name == "type" && flag.choices.empty();
      row.options.push_back(
          {"--" + std::string(flag.name), !flag.value.empty(), is_type ? types : std::string(flag.choices)});
    }
    row.argument_from = lister_of(command);
    if (command.name == "rpc") row.argument_words = methods;
    row.options.push_back({"--json", false, ""});
    rows.push_back(std::move(row));
  }
  print(shell == "zsh" ? zsh_completion(rows) : bash_completion(rows));
  return 0;
}

}  // namespace mycojobs
