#include "cli/commands/command_line.h"

#include <fmt/format.h>
#include <sysexits.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "cli/commands/command_table.h"
#include "cli/commands/hidden_commands.h"
#include "cli/terminal.h"
#include "text/suggestion.h"
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

struct Group {
  std::string_view title, nouns;
};
constexpr Group kGroups[] = {
    {"To begin", "run dev doctor"},
    {"Jobs and flows", "job flow workflow message queue"},
    {"Scripts, and what they may do", "executor plugin program policy sandbox secret"},
    {"To serve and look after", "agent coordinator health runner actor context key receipt rpc verify"},
    {"This program", "config completion version"},
};
constexpr std::string_view kOthers = "Others", kVerbs = "Commands";

bool names(std::string_view nouns, std::string_view noun) {
  return (" " + std::string(nouns) + " ").find(" " + std::string(noun) + " ") != std::string::npos;
}

// The formatter of CLI11 with lines that are wrapped at the width of the terminal.
class WrappedHelp final : public CLI::Formatter {
 public:
  explicit WrappedHelp(std::size_t columns)
      : width_(std::clamp<std::size_t>(columns, 40, 120)), indent_(width_ >= 76 ? 30 : kCommands) {}

  // CLI11 writes two blank lines between groups.
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (auto at = text.find("\n\n\n"); at != std::string::npos; at = text.find("\n\n\n", at)) text.erase(at, 1);
    return text;
  }

  std::string make_description(const CLI::App* app) const override {
    const std::string text = app->get_description();
    return text.empty() ? "" : wrapped(text, width_) + "\n";
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string name = make_option_name(option, is_positional);
    if (const auto off = name.find("{false}"); off != std::string::npos) name.erase(off, 7);  // suffix of --no-local
    return row(name + make_option_opts(option), make_option_desc(option), indent_);
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return row(command->get_name(), command->get_description(), kCommands);
  }
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode) const override {
    std::vector<Group> groups(std::begin(kGroups), std::end(kGroups));
    groups.push_back({kOthers, ""});
    groups.push_back({kVerbs, ""});
    std::string out;
    for (const Group& group : groups) {
      std::vector<const CLI::App*> rows =
          app->get_subcommands([&group](const CLI::App* each) { return each->get_group() == group.title; });
      // Keeps the order of the table.
      std::stable_sort(rows.begin(), rows.end(), [&group](const CLI::App* a, const CLI::App* b) {
        return group.nouns.find(a->get_name()) < group.nouns.find(b->get_name());
      });
      if (!rows.empty()) out += "\n" + std::string(group.title) + ":\n";
      for (const CLI::App* each : rows) out += make_subcommand(each);
    }
    return out;
  }

 private:
  static constexpr std::size_t kCommands = 18;  // column of the descriptions of commands, whose names are short

  // Returns the name and the description beside it; a long name has a line of its own.
  std::string row(const std::string& name, const std::string& about, std::size_t indent) const {
    std::string line = "  " + name;
    if (columns(line) + 2 > indent) {
      line += "\n" + std::string(indent, ' ');
    } else {
      line.append(indent - columns(line), ' ');
    }
    const std::string text = wrapped(about, width_ - indent);
    for (char c : text) line += c == '\n' ? "\n" + std::string(indent, ' ') : std::string(1, c);
    return line + "\n";
  }

  std::size_t width_, indent_;
};

void shape(CLI::App& app, const std::shared_ptr<CLI::FormatterBase>& help) {
  app.formatter(help);
  for (CLI::App* each : app.get_subcommands({})) shape(*each, help);
}

// Output to a pager or a file fits the usual width of terminals.
std::size_t help_columns() {
  for (std::FILE* stream : {stdout, stderr}) {
    if (const Terminal terminal = terminal_of(stream); terminal.lines > 0) return terminal.columns;
  }
  constexpr std::size_t kUsual = 80;
  return kUsual;
}

std::string_view first_word(std::string_view text) { return text.substr(0, text.find(' ')); }

// Wraps the help of all commands to this width and groups the commands.
void shape_help(CLI::App& root, std::size_t columns) {
  shape(root, std::make_shared<WrappedHelp>(columns));
  for (CLI::App* each : root.get_subcommands({})) {
    const std::string_view group = command_group(each->get_name());
    each->group(is_hidden(each->get_name()) ? "" : std::string(group.empty() ? kOthers : group));
    for (CLI::App* verb : each->get_subcommands({})) verb->group(std::string(kVerbs));
  }
}

}  // namespace

std::string_view command_group(std::string_view noun) {
  for (const Group& group : kGroups) {
    if (names(group.nouns, noun)) return group.title;
  }
  return {};
}

namespace {

// Returns "did you mean `job explain` or `flow explain`?" for a verb without a noun.
std::string nouns_of(std::string_view verb) {
  std::string text;
  for (const Command& row : commands()) {
    const std::size_t space = row.name.find(' ');
    if (space == std::string_view::npos || row.name.substr(space + 1) != verb) continue;
    text += fmt::format("{}`{}`", text.empty() ? "; did you mean " : " or ", row.name);
  }
  return text.empty() ? text : text + '?';
}

// Verbs of other programs and the corresponding verb of this program.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"get", "show"},   {"info", "show"},   {"describe", "show"}, {"status", "show"},
    {"ls", "list"},    {"rm", "delete"},   {"remove", "delete"}, {"new", "create"},
    {"add", "create"}, {"kill", "cancel"}, {"stop", "cancel"},   {"why", "explain"}};

std::string verb_meant(std::string_view word, const std::set<std::string_view>& known) {
  for (const auto& [theirs, ours] : kElsewhere) {
    if (theirs == word && known.contains(ours)) return fmt::format("; did you mean \"{}\"?", ours);
  }
  return "";
}

}  // namespace

std::string unknown_command(int argc, const char* const* argv) {
  std::string before;  // "job "
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with('-')) return "";  // flags are checked by the parser
    if (before.empty() && is_hidden(word)) return "";
    std::set<std::string_view> known;
    for (const Command& row : commands()) {
      if (row.name.starts_with(before)) known.insert(first_word(row.name.substr(before.size())));
    }
    if (!known.contains(word)) {
      const std::vector<std::string_view> candidates(known.begin(), known.end());
      std::string meant = did_you_mean(word, candidates);
      if (meant.empty()) meant = before.empty() ? nouns_of(word) : verb_meant(word, known);
      return fmt::format("there is no command {}{}", excerpt(before + std::string(word), 80),
                         meant.empty() ? fmt::format("; `mycojobs {}--help` lists them", before) : meant);
    }
    before += word;
    const bool whole =
        std::any_of(commands().begin(), commands().end(), [&](const Command& row) { return row.name == before; });
    if (whole) return "";
    before += ' ';
  }
  return "";
}

namespace {

// Returns an error message for the first unknown flag ("--tpye") of this command, with a suggestion; empty: none.
std::string unknown_flag(const CLI::App& command, std::string_view name, int argc, const char* const* argv) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& each : option->get_lnames()) flags.push_back("--" + each);
  }
  const std::vector<std::string_view> known(flags.begin(), flags.end());
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return "";
    const std::string_view flag = word.substr(0, word.find('='));
    const bool may_be = flag.starts_with("--") && flag.size() > 2;
    if (may_be && std::find(known.begin(), known.end(), flag) == known.end()) {
      const std::string meant = did_you_mean(flag, known);
      return fmt::format("`mycojobs {}` takes no {}{}", name, excerpt(flag, 80),
                         meant.empty() ? "; its --help lists those there are" : meant);
    }
  }
  return "";
}

// Values that CLI11 sets for one command; must exist until the end of the parse.
struct ParsedValues {
  const Command* row = nullptr;
  CLI::App* app = nullptr;
  std::deque<std::pair<std::string, CLI::Option*>> arguments;
  std::vector<std::string> rest;  // values of the last argument, if it is FILE...
  std::deque<std::pair<std::string_view, std::vector<std::string>>> values;
  std::deque<std::pair<std::string_view, bool>> switches;
  FlagValues options;
  bool json = false;
};

void build(ParsedValues& slot) {
  const Command& row = *slot.row;
  CLI::App& app = *slot.app;
  for (std::string_view left = row.arguments; !left.empty();) {
    std::string_view name = left.substr(0, left.find(' '));
    left.remove_prefix(std::min(name.size() + 1, left.size()));
    const bool optional = name.front() == '[';
    if (optional) name = name.substr(1, name.size() - 2);
    if (name.ends_with("...")) {
      app.add_option(std::string(name.substr(0, name.size() - 3)), slot.rest)->required(!optional);
      continue;
    }
    auto& [text, option] = slot.arguments.emplace_back();
    option = app.add_option(std::string(name), text)->required(!optional);
  }
  for (const FlagRow& flag : row.flags) {
    const std::string name = "--" + std::string(flag.name);
    if (flag.value.empty()) {
      app.add_flag(name, slot.switches.emplace_back(flag.name, false).second, std::string(flag.help));
    } else {
      const std::string choices = flag.choices.empty() ? "" : "; one of " + std::string(flag.choices);
      auto* option = app.add_option(name, slot.values.emplace_back(flag.name, std::vector<std::string>()).second,
                                    std::string(flag.help) + choices);
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

CommandLine refused(const std::string& problem, int exit = EX_USAGE) {
  CommandLine line;
  line.exit_code = print_error({Code::invalid, problem}, exit);
  return line;
}

// Returns an error message for a flag value that is not one of the choices; empty: none.
std::string unknown_choice(const CommandLine& line) {
  for (const FlagRow& flag : line.command->flags) {
    const auto given = line.flags.find(std::string(flag.name));
    if (flag.choices.empty() || given == line.flags.end()) continue;
    for (const std::string& word : given->second) {
      if (!names(flag.choices, word))
        return fmt::format("--{}: {} is not one of: {}", flag.name, excerpt(word, 80), flag.choices);
    }
  }
  return "";
}

// Moves settings that precede the command ("--context 7 job list") to its end.
std::vector<std::string> settings_last(int argc, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const auto is_noun = [](const std::string& word) {
    return is_hidden(word) || std::any_of(commands().begin(), commands().end(),
                                          [&](const Command& row) { return first_word(row.name) == word; });
  };
  const auto noun = std::find_if(words.begin(), words.end(), is_noun);
  if (noun == words.end() || noun == words.begin() || !words.front().starts_with('-')) return words;
  std::rotate(words.begin(), noun, words.end());
  const auto before = words.end() - (noun - words.begin());
  const auto rest = std::find(words.begin(), before, "--");  // the words after -- are arguments of the script
  std::rotate(rest, before, words.end());
  return words;
}

std::string no_command(const std::vector<std::string>& words) {
  if (words.front().starts_with('-')) return "name a command behind the settings: `mycojobs --help` lists them";
  std::string group = words.front();  // "flow", "flow schedule"
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string below = group + ' ' + words[i] + ' ';
    if (std::none_of(commands().begin(), commands().end(),
                     [&](const Command& row) { return row.name.starts_with(below); }))
      break;
    group += ' ' + words[i];
  }
  return fmt::format("name a command of {0}: `mycojobs {0} --help` lists them", group);
}

// Returns an error message for a surplus argument; empty: none.
std::string word_too_many(const CLI::App& command, const Command& row) {
  const auto more = command.remaining(true);
  if (more.empty()) return "";
  return fmt::format("{} is one word too many: `mycojobs {}` takes {}; its --help says what each is",
                     excerpt(more.front(), 80), row.name, row.arguments.empty() ? "flags alone" : row.arguments);
}

// Returns an error message for words that the command does not accept; empty: use the parser's message.
std::string untaken(const std::deque<ParsedValues>& slots, int argc, const char* const* argv) {
  const auto slot =
      std::find_if(slots.begin(), slots.end(), [](const ParsedValues& each) { return each.app->parsed(); });
  if (slot == slots.end()) return "";
  const std::string flag = unknown_flag(*slot->app, slot->row->name, argc, argv);
  return flag.empty() ? word_too_many(*slot->app, *slot->row) : flag;
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CLI::App root("mycojobs: runs scripts as jobs on many hosts with nothing but Redis between them", "mycojobs");
  root.require_subcommand(1);
  const std::vector<std::string> words = settings_last(argc, argv);
  std::deque<ParsedValues> slots;
  for (const auto* table : {&commands(), &hidden_commands()}) {
    for (const Command& row : *table) {
      ParsedValues& slot = slots.emplace_back();
      slot.row = &row;
      slot.app = find_or_add(root, row);
      // Only the selected command is built: building all takes twice as long as the rest of the start.
      if (!words.empty() && first_word(row.name) == words.front()) build(slot);
    }
  }
  shape_help(root, help_columns());
  CommandLine line;
  std::vector<const char*> typed{"mycojobs"};
  for (const std::string& word : words) typed.push_back(word.c_str());
  if (argc == 2 && (words.front() == "--version" || words.front() == "-V")) typed.back() = "version";
  argc = static_cast<int>(typed.size());
  argv = typed.data();
  if (words.empty()) return refused("name a command: `mycojobs --help` lists them; `mycojobs run FILE` runs a script");
  if (const std::string problem = unknown_command(argc, argv); !problem.empty()) return refused(problem);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    const std::string wrong = untaken(slots, argc, argv);
    return refused(wrong.empty() ? error.what() : wrong);
  } catch (const CLI::RequiredError& error) {
    const bool any =
        std::any_of(slots.begin(), slots.end(), [](const ParsedValues& each) { return each.app->parsed(); });
    return refused(any ? error.what() : no_command(words));
  } catch (const CLI::ParseError& error) {
    const bool wrong = error.get_exit_code() != 0;
    if (wrong && prints_errors_as_json()) {
      line.exit_code = print_error({Code::invalid, error.what()}, EX_USAGE);
    } else {
      line.exit_code = root.exit(error) == 0 ? EX_OK : EX_USAGE;
    }
    return line;
  }
  for (ParsedValues& slot : slots) {
    if (!slot.app->parsed()) continue;
    line.command = slot.row;
    line.json = slot.json;
    for (const auto& [text, option] : slot.arguments) {
      if (option->count() > 0) line.arguments.push_back(text);
    }
    line.arguments.insert(line.arguments.end(), slot.rest.begin(), slot.rest.end());
    for (auto& [name, values] : slot.values) {
      if (!values.empty()) line.flags[std::string(name)] = values;
    }
    for (auto& [name, set] : slot.switches) {
      if (set) line.flags[std::string(name)] = {"true"};
    }
    line.options = std::move(slot.options);
    if (const std::string problem = unknown_choice(line); !problem.empty()) return refused(problem, EX_DATAERR);
  }
  return line;
}

}  // namespace mycojobs
