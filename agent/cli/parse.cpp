#include "cli/parse.h"

#include <sysexits.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <deque>

#include "cli/flow_live.h"
#include "cli/help.h"
#include "cli/hidden_commands.h"
#include "cli/terminal.h"

namespace mycojobs {
namespace {

// What CLI11 fills for one command; kept until the parse is over.
struct Slot {
  const Command* row = nullptr;
  CLI::App* app = nullptr;
  std::deque<std::pair<std::string, CLI::Option*>> arguments;
  std::deque<std::pair<std::string_view, std::vector<std::string>>> values;
  std::deque<std::pair<std::string_view, bool>> switches;
  FlagValues options;
  bool json = false;
};

void build(Slot& slot) {
  const Command& row = *slot.row;
  CLI::App& app = *slot.app;
  for (std::string_view left = row.arguments; !left.empty();) {
    std::string_view name = left.substr(0, left.find(' '));
    left.remove_prefix(std::min(name.size() + 1, left.size()));
    const bool optional = name.front() == '[';
    if (optional) name = name.substr(1, name.size() - 2);
    auto& [text, option] = slot.arguments.emplace_back();
    option = app.add_option(std::string(name), text)->required(!optional);
  }
  for (const FlagRow& flag : row.flags) {
    const std::string name = "--" + std::string(flag.name);
    if (flag.value.empty()) {
      app.add_flag(name, slot.switches.emplace_back(flag.name, false).second, std::string(flag.help));
    } else {
      auto* option = app.add_option(name, slot.values.emplace_back(flag.name, std::vector<std::string>()).second,
                                    std::string(flag.help));
      option->type_name(std::string(flag.value))->expected(1)->allow_extra_args(false);
      option->multi_option_policy(flag.repeats ? CLI::MultiOptionPolicy::TakeAll : CLI::MultiOptionPolicy::TakeLast);
    }
  }
  app.add_flag("--json", slot.json, "Answer in JSON on stdout");
  app.option_defaults()->group("Settings, also in environment and configuration file");
  add_options(app, row.name.substr(0, row.name.find(' ')), slot.options);
}

void describe_also(CLI::App& group, const std::string& word) {
  group.description(group.get_description() + (group.get_description().empty() ? "" : ", ") + word);
}

// "job list" is the subcommand list of the subcommand job.
CLI::App* find_or_add(CLI::App& root, const Command& row) {
  CLI::App* group = &root;
  std::string_view left = row.name;
  for (auto blank = left.find(' '); blank != std::string_view::npos; blank = left.find(' ')) {
    const std::string noun(left.substr(0, blank));
    left.remove_prefix(blank + 1);
    const auto groups = group->get_subcommands([&](const CLI::App* app) { return app->get_name() == noun; });
    CLI::App* next = groups.empty() ? group->add_subcommand(noun) : groups.front();
    if (groups.empty() && group != &root) describe_also(*group, noun);
    group = next;
    group->require_subcommand(1);
  }
  const std::string verb(left);
  if (group != &root) describe_also(*group, verb);
  return group->add_subcommand(verb, std::string(row.help));
}

CommandLine refused(const std::string& problem) {
  CommandLine line;
  line.exit_code = complain({Code::invalid, problem}, EX_USAGE);
  return line;
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CLI::App root("mycojobs: runs scripts as jobs on many hosts with nothing but Redis between them", "mycojobs");
  root.require_subcommand(1);
  std::deque<Slot> slots;
  for (const auto* table : {&commands(), &hidden_commands()}) {
    for (const Command& row : *table) {
      Slot& slot = slots.emplace_back();
      slot.row = &row;
      slot.app = find_or_add(root, row);
      build(slot);
    }
  }
  shape_help(root, terminal_of(stdout).columns);
  CommandLine line;
  if (const std::string problem = unknown_command(argc, argv); !problem.empty()) return refused(problem);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    const auto slot = std::find_if(slots.begin(), slots.end(), [](const Slot& each) { return each.app->parsed(); });
    const std::string flag = slot == slots.end() ? "" : unknown_flag(*slot->app, slot->row->name, argc, argv);
    return refused(flag.empty() ? error.what() : flag);
  } catch (const CLI::ParseError& error) {
    const bool wrong = error.get_exit_code() != 0;
    if (wrong && complains_in_json()) {
      line.exit_code = complain({Code::invalid, error.what()}, EX_USAGE);
    } else {
      line.exit_code = root.exit(error) == 0 ? EX_OK : EX_USAGE;
    }
    return line;
  }
  for (Slot& slot : slots) {
    if (!slot.app->parsed()) continue;
    line.command = slot.row;
    line.json = slot.json;
    for (const auto& [text, option] : slot.arguments) {
      if (option->count() > 0) line.arguments.push_back(text);
    }
    for (auto& [name, values] : slot.values) {
      if (!values.empty()) line.flags[std::string(name)] = values;
    }
    for (auto& [name, set] : slot.switches) {
      if (set) line.flags[std::string(name)] = {"true"};
    }
    line.options = std::move(slot.options);
  }
  return line;
}

}  // namespace mycojobs
