#include "cli/commands/man_pages.h"

#include <vector>

#include "cli/commands/command_line.h"
#include "cli/commands/command_table.h"

namespace mycojobs {
namespace {

// Escapes characters with a special meaning in scdoc.
std::string escape(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (std::string_view("\\*_`#[]|<>~+.'-").find(c) != std::string_view::npos) out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string bold(std::string_view text) { return "*" + escape(text) + "*"; }

std::string capitalize(std::string_view text) {
  std::string out(text);
  if (!out.empty() && out[0] >= 'a' && out[0] <= 'z') out[0] = static_cast<char>(out[0] - 'a' + 'A');
  return out;
}

// Returns the title "name(1) "mycojobs" ..." and the section NAME.
std::string make_heading(std::string_view name, char section, std::string_view description) {
  return std::string(name) + "(" + section + ") \"mycojobs\" \"mycojobs\"\n\n# NAME\n\n" + std::string(name) + " - " +
         std::string(description) + "\n\n";
}

std::string format_definition(const std::string& term, std::string_view description) {
  return term + "\n\t" + escape(capitalize(description)) + ".\n\n";
}

std::string format_definition(const FlagRow& flag) {
  const std::string value = flag.value.empty() ? "" : " " + escape(flag.value);
  std::string description(flag.help);
  if (!flag.choices.empty()) description += "; one of " + std::string(flag.choices);
  if (flag.is_repeatable) description += "; may be given often";
  return format_definition(bold("--" + std::string(flag.name)) + value, description);
}

std::string format_definition(const Option& option) {
  const std::string value(value_placeholder(option));
  std::string term = bold(get_flag_name(option)) + (value.empty() ? "" : " " + escape(value));
  if (option.type == OptionType::flag) term += ", " + bold("--no-" + get_flag_name(option).substr(2));
  std::string description(option.help);
  if (!option.choices.empty()) description += "; one of " + std::string(option.choices);
  if (!option.fallback.empty()) description += "; default " + std::string(option.fallback);
  description += "; in the file " + std::string(option.name) + ", in the environment " + get_variable_name(option);
  if (!option.commands.empty()) description += "; a flag of " + std::string(option.commands) + " and config";
  return format_definition(term, description);
}

const std::string kCommonFlags =
    format_definition("*--config* FILE", "configuration file, TOML; in the environment MYCOJOBS_CONFIG") +
    format_definition("*--json*", "answer in JSON on stdout") +
    format_definition("*--help*, *-h*", "print what a command takes, with the names of its settings") +
    format_definition("*--help-all*", "print what a command takes, with its settings");

std::string format_settings_of_command(std::string_view command) {
  std::string out;
  for (const Option& option : options()) {
    if (accepts_flag(option, command)) out += format_definition(option);
  }
  return out;
}

std::string format_all_settings() {
  std::string out;
  for (const Option& option : options()) out += format_definition(option);
  return out;
}

std::string format_exit_status() {
  static const std::vector<std::pair<std::string_view, std::string_view>> kExitCodes = {
      {"0", "it is done; of run, flow start --follow, flow watch and flow result: job or flow has finished"},
      {"1", "it has found an error; of commands that reflect a job or a flow: it has failed"},
      {"64, 65, 66", "a wrong command line; a wrong input or setting; no such file, job or flow"},
      {"69", "a server, a helper or a layer of the sandbox is not available"},
      {"70", "an internal error, described in one line"},
      {"74, 75, 77", "the system refused a file; try again later; wrong password or rights"},
      {"124, 126, 130, 137", "the job ran out of time; made a forbidden call; was cancelled; ran out of memory"},
      {"141", "the reader of its output has exited"},
  };
  std::string out = "# EXIT STATUS\n\n";
  for (const auto& [code, description] : kExitCodes) out += format_definition(bold(code), description);
  return out;
}

constexpr std::string_view kFiles =
    "# FILES\n\n"
    "_/etc/mycojobs/config.toml_, _~/.config/mycojobs/config.toml_\n\tSettings of root, of an ordinary user: "
    "*mycojobs.toml*(5).\n\n"
    "_/etc/mycojobs/secrets_\n\tSecrets that jobs may ask for, CONTEXT/NAME.\n\n"
    "_/var/lib/mycojobs_, _~/.local/state/mycojobs_\n\tWork folders, artifacts, the private Redis.\n\n";

std::string format_see_also(std::string_view page) {
  std::string out;
  for (std::string_view name : kManPages) {
    if (name == page) continue;
    const auto dot = name.rfind('.');
    out += (out.empty() ? "" : ", ") + bold(name.substr(0, dot)) + "(" + std::string(name.substr(dot + 1)) + ")";
  }
  return "# SEE ALSO\n\n" + out +
         "\n\nThe manual is _/usr/share/doc/mycojobs/docs/manual.md_ where the package is installed.\n";
}

std::string make_program_page() {
  std::string out = make_heading("mycojobs", '1', "runs scripts as jobs on many hosts with Redis between them");
  out +=
      "# SYNOPSIS\n\n*mycojobs* COMMAND \\[FLAGS\\] \\[ARGUMENTS\\]\n\n# DESCRIPTION\n\n"
      "Agents take jobs from lists of Redis and run each in a sandbox; coordinators advance flows of jobs. Answers are "
      "on stdout, messages on stderr. All commands but *agent*, *coordinator* and *dev* use the Redis that *--redis* "
      "names, "
      "else the one of a running *mycojobs dev*, else a private one for as long as they need it.\n\n"
      "JOB is CALLER:ID, or ID for caller 1. QUEUE is a script type or a key that *mycojobs queue list* shows.\n\n"
      "# COMMANDS\n\n";
  for (const Command& command : commands()) {
    const std::string arguments = command.arguments.empty() ? "" : " " + std::string(command.arguments);
    out += "## mycojobs " + std::string(command.name) + arguments + "\n\n" +  // scdoc takes a heading as it is
           escape(capitalize(command.help)) + ".\n\n";
    for (const FlagRow& flag : command.flags) out += format_definition(flag);
  }
  return out + "# FLAGS OF EVERY COMMAND\n\n" + kCommonFlags +
         "# SETTINGS AS FLAGS\n\nA flag is over the environment, that over the file, that over the default. Where a "
         "line "
         "names commands, these alone take the flag.\n\n" +
         format_all_settings() + format_exit_status() + std::string(kFiles) + format_see_also("mycojobs.1");
}

// The man page of a service.
struct ServicePage {
  std::string_view page, command, summary, description;
};
constexpr ServicePage kServicePages[] = {
    {"mycojobs-agent.8", "agent", "worker of mycojobs: takes jobs from Redis and runs each in a sandbox",
     "Serves the queues of a Redis as a runner, until TERM. The first TERM or INT drains: nothing more is "
     "claimed, running jobs finish. A second one returns the running jobs to their queues. A third exits immediately: "
     "the jobs are delivered again when their leases have run out. HUP reloads ceilings, volumes, secrets and the "
     "log's "
     "level.\n\n"
     "Under systemd, *mycojobs-agent@20.service* is runner 20; *mycojobs-agent.service* is the runner that the "
     "configuration names. Either is enabled with *systemctl enable --now* once _/etc/mycojobs/config.toml_ names the "
     "Redis. A stop drains for TimeoutStopSec=, two minutes. *mycojobs doctor* shows what a host lacks."},
    {"mycojobs-coordinator.8", "coordinator", "advances the flows of mycojobs and starts flows by schedule",
     "Advances the flows of a Redis, starts flows by schedule, calls webhooks and serves JSON-RPC, until TERM. It "
     "runs no jobs. Without *--context* it serves all contexts that it finds. Run as many as you like on any hosts: "
     "one "
     "leads a context, the others take over when it stops responding.\n\n"
     "Under systemd it is *mycojobs-coordinator.service*."},
};

std::string make_service_page(const ServicePage& service) {
  const std::string_view name = service.page.substr(0, service.page.rfind('.'));
  return make_heading(name, '8', service.summary) + "# SYNOPSIS\n\n*mycojobs " + escape(service.command) +
         "* \\[FLAGS\\]\n\n# DESCRIPTION\n\n" + std::string(service.description) + "\n\n# FLAGS\n\n" + kCommonFlags +
         format_settings_of_command(service.command) + format_exit_status() + std::string(kFiles) +
         format_see_also(service.page);
}

std::string make_settings_page() {
  std::string out = make_heading("mycojobs.toml", '5', "settings of mycojobs");
  out +=
      "# DESCRIPTION\n\nA file in TOML: _/etc/mycojobs/config.toml_ of root, _~/.config/mycojobs/config.toml_ of an "
      "ordinary user, or what *--config* or MYCOJOBS\\_CONFIG names. Flags are over the environment, that over the "
      "file, "
      "that over the default. Unknown settings are rejected with their line; *mycojobs config check* reads the file, "
      "*mycojobs config print* shows each setting and its source.\n\n"
      "A name with a dot is a key of a table: sandbox.memory is memory in \\[sandbox\\]. The tables "
      "\\[ceiling\\], "
      "\\[contexts.N\\] and \\[executors.NAME\\] are explained in the manual.\n\n# SETTINGS\n\n";
  for (const Option& option : options()) {
    std::string description(option.help);
    if (!option.choices.empty()) description += "; one of " + std::string(option.choices);
    if (!option.fallback.empty()) description += "; default " + std::string(option.fallback);
    out += format_definition(bold(option.name), description);
  }
  return out +
         "# EXAMPLE\n\n```\nredis = \"redis://10.0.0.5:6379\"\nslots = 8\n\n[sandbox]\nmemory = \"512MiB\"\n```\n\n" +
         std::string(kFiles) + format_see_also("mycojobs.toml.5");
}

}  // namespace

std::string make_man_page(std::string_view name) {
  if (name == "mycojobs.1") return make_program_page();
  if (name == "mycojobs.toml.5") return make_settings_page();
  for (const ServicePage& service : kServicePages) {
    if (service.page == name) return make_service_page(service);
  }
  return "";
}

}  // namespace mycojobs
