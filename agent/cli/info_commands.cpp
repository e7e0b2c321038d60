// mycojobs version, config print | check, completion
#include <nlohmann/json.hpp>

#include "base/version.h"
#include "cli/commands.h"
#include "cli/config/completion.h"
#include "cli/config/config.h"
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
  if (!config) return complain(config.error());
  print(print_config(*config, call.json));
  return 0;
}

int config_check_command(Invocation& call) {
  const Sources sources = system_sources(call.options);
  auto config = call.arguments.empty() ? load_config(sources) : check_config_file(call.arguments.front(), sources.host);
  if (!config) return complain(config.error());
  for (const std::string& warning : config->warnings) say(paint(Tone::warn, "warning: ", true) + warning);
  const std::string file = config->file.empty() ? "no file; environment and defaults" : config->file;
  if (call.json) {
    print(nlohmann::json{{"ok", true}, {"file", config->file}, {"warnings", config->warnings}}.dump() + "\n");
  } else {
    print(file + ": ok\n");
  }
  return 0;
}

int completion_command(Invocation& call) {
  if (call.arguments.front() != "bash") {
    return complain({Code::invalid, "\"" + call.arguments.front() + "\": only bash has a completion script"});
  }
  Commands rows;
  for (const Command& command : commands()) {
    CommandRow row{std::string(command.name), std::string(command.help),
                   configuration_flags(command.name.substr(0, command.name.find(' ')))};
    for (const FlagRow& flag : command.flags)
      row.options.push_back({"--" + std::string(flag.name), !flag.value.empty(), std::string(flag.choices)});
    row.options.push_back({"--json", false, ""});
    rows.push_back(std::move(row));
  }
  print(bash_completion(rows));
  return 0;
}

}  // namespace mycojobs
