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
#include "text/split.h"
#include "text/suggestion.h"
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

struct CommandGroup {
  std::string_view title, nouns;
};
constexpr CommandGroup kGroups[] = {
    {"To begin", "run dev doctor"},
    {"Jobs and flows", "job flow workflow message queue"},
    {"Scripts, and what they may do", "executor plugin program policy sandbox secret"},
    {"To serve and look after", "agent coordinator health runner actor context key receipt rpc verify"},
    {"This program", "config completion version"},
};
constexpr std::string_view kOtherCommands = "Others", kVerbGroup = "Commands";
constexpr std::string_view kSettingsGroup = "Settings, also in environment or file";

// The formatter of CLI11 with lines that are wrapped at the width of the terminal. The help of a command lists its
// settings by name, so that it fits one screen; --help-all describes them.
class WrappedHelp final : public CLI::Formatter {
 public:
  explicit WrappedHelp(std::size_t columns)
      : width_(std::clamp<std::size_t>(columns, 40, 120)), indent_(width_ >= 76 ? 30 : kCommandColumn) {}

  // Removes the second of the two blank lines that CLI11 writes between groups.
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    describes_settings_ = mode == CLI::AppFormatMode::All;
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (auto gap = text.find("\n\n\n"); gap != std::string::npos; gap = text.find("\n\n\n", gap)) text.erase(gap, 1);
    return text;
  }

  std::string make_description(const CLI::App* app) const override {
    const std::string text = app->get_description();
    return text.empty() ? "" : wrap_text(text, width_) + "\n";
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string name = make_option_name(option, is_positional);
    constexpr std::string_view kFalseSuffix = "{false}";
    if (const auto begin = name.find(kFalseSuffix); begin != std::string::npos)
      name.erase(begin, kFalseSuffix.size());  // suffix of --no-local
    return format_row(name + make_option_opts(option), make_option_desc(option), indent_);
  }
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    return group == kSettingsGroup && !describes_settings_
               ? list_settings(options)
               : CLI::Formatter::make_group(std::move(group), is_positional, std::move(options));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return format_row(command->get_name(), command->get_description(), kCommandColumn);
  }
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode) const override {
    std::vector<CommandGroup> groups(std::begin(kGroups), std::end(kGroups));
    groups.push_back({kOtherCommands, ""});
    groups.push_back({kVerbGroup, ""});
    std::string out;
    for (const CommandGroup& group : groups) {
      std::vector<const CLI::App*> rows =
          app->get_subcommands([&group](const CLI::App* subcommand) { return subcommand->get_group() == group.title; });
      // The commands have the order of the table.
      std::stable_sort(rows.begin(), rows.end(), [&group](const CLI::App* a, const CLI::App* b) {
        return group.nouns.find(a->get_name()) < group.nouns.find(b->get_name());
      });
      if (!rows.empty()) out += "\n" + std::string(group.title) + ":\n";
      for (const CLI::App* subcommand : rows) out += make_subcommand(subcommand);
    }
    return out;
  }

 private:
  static constexpr std::size_t kCommandColumn = 18;  // column of the descriptions of commands; their names are short

  std::string list_settings(const std::vector<const CLI::Option*>& options) const {
    std::string names;
    for (const CLI::Option* option : options) names += " --" + option->get_lnames().front();
    return fmt::format("\n{} (--help-all: details):\n", kSettingsGroup) + "  " + wrap_indented(names.substr(1), 2) +
           "\n";
  }

  // Returns the name and the description beside it; a long name has a line of its own.
  std::string format_row(const std::string& name, const std::string& description, std::size_t indent) const {
    std::string line = "  " + name;
    if (count_columns(line) + 2 > indent) {
      line += "\n" + std::string(indent, ' ');
    } else {
      line.append(indent - count_columns(line), ' ');
    }
    return line + wrap_indented(description, indent) + "\n";
  }

  // Wraps a text of which each line but the first gets the indent.
  std::string wrap_indented(const std::string& text, std::size_t indent) const {
    std::string out;
    for (char c : wrap_text(text, width_ - indent))
      out += c == '\n' ? "\n" + std::string(indent, ' ') : std::string(1, c);
    return out;
  }

  std::size_t width_, indent_;
  mutable bool describes_settings_ = false;  // set by make_help(), since make_group() does not receive the mode
};

void set_formatter(CLI::App& app, const std::shared_ptr<CLI::FormatterBase>& formatter) {
  app.formatter(formatter);
  for (CLI::App* subcommand : app.get_subcommands({})) set_formatter(*subcommand, formatter);
}

// Returns the width of the terminal. If the output is a pager or a file, returns the usual width of terminals.
std::size_t get_help_columns() {
  for (std::FILE* stream : {stdout, stderr}) {
    if (const Terminal terminal = get_terminal(stream); terminal.lines > 0) return terminal.columns;
  }
  constexpr std::size_t kDefaultColumns = 80;
  return kDefaultColumns;
}

std::string_view get_first_word(std::string_view text) { return text.substr(0, text.find(' ')); }

// Wraps the help of all commands to this width and groups the commands.
void format_help(CLI::App& root, std::size_t columns) {
  set_formatter(root, std::make_shared<WrappedHelp>(columns));
  for (CLI::App* subcommand : root.get_subcommands({})) {
    const std::string_view group = get_command_group(subcommand->get_name());
    subcommand->group(is_hidden_command(subcommand->get_name()) ? ""
                                                                : std::string(group.empty() ? kOtherCommands : group));
    for (CLI::App* verb : subcommand->get_subcommands({})) verb->group(std::string(kVerbGroup));
  }
}

}  // namespace

std::string_view get_command_group(std::string_view noun) {
  for (const CommandGroup& group : kGroups) {
    if (contains_word(group.nouns, noun)) return group.title;
  }
  return {};
}

namespace {

// Returns "did you mean `job explain` or `flow explain`?" for a verb without a noun.
std::string suggest_nouns(std::string_view verb) {
  std::string text;
  for (const Command& row : commands()) {
    const std::size_t space = row.name.find(' ');
    if (space == std::string_view::npos || row.name.substr(space + 1) != verb) continue;
    text += fmt::format("{}`{}`", text.empty() ? "; did you mean " : " or ", row.name);
  }
  return text.empty() ? text : text + '?';
}

// Verbs of other programs, with the corresponding verbs of this program.
constexpr std::pair<std::string_view, std::string_view> kForeignVerbs[] = {
    {"get", "show"},   {"info", "show"},   {"describe", "show"}, {"status", "show"},
    {"ls", "list"},    {"rm", "delete"},   {"remove", "delete"}, {"new", "create"},
    {"add", "create"}, {"kill", "cancel"}, {"stop", "cancel"},   {"why", "explain"}};

std::string suggest_verb(std::string_view word, const std::set<std::string_view>& known_words) {
  for (const auto& [foreign_verb, verb] : kForeignVerbs) {
    if (foreign_verb == word && known_words.contains(verb)) return fmt::format("; did you mean \"{}\"?", verb);
  }
  return "";
}

}  // namespace

std::string find_unknown_command(int argc, const char* const* argv) {
  std::string path;  // "job "
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with('-')) return "";  // flags are checked by the parser
    if (path.empty() && is_hidden_command(word)) return "";
    std::set<std::string_view> known_words;
    for (const Command& row : commands()) {
      if (row.name.starts_with(path)) known_words.insert(get_first_word(row.name.substr(path.size())));
    }
    if (!known_words.contains(word)) {
      const std::vector<std::string_view> candidates(known_words.begin(), known_words.end());
      std::string suggestion = did_you_mean(word, candidates);
      if (suggestion.empty()) suggestion = path.empty() ? suggest_nouns(word) : suggest_verb(word, known_words);
      return fmt::format("there is no command {}{}", excerpt(path + std::string(word), 80),
                         suggestion.empty() ? fmt::format("; `mycojobs {}--help` lists them", path) : suggestion);
    }
    path += word;
    const bool is_complete =
        std::any_of(commands().begin(), commands().end(), [&](const Command& row) { return row.name == path; });
    if (is_complete) return "";
    path += ' ';
  }
  return "";
}

namespace {

// Returns an error message for the first unknown flag ("--tpye") of this command, with a suggestion, or an empty text.
std::string find_unknown_flag(const CLI::App& command, std::string_view name, int argc, const char* const* argv) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& long_name : option->get_lnames()) flags.push_back("--" + long_name);
  }
  const std::vector<std::string_view> known_flags(flags.begin(), flags.end());
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return "";
    const std::string_view flag = word.substr(0, word.find('='));
    const bool is_flag = flag.starts_with("--") && flag.size() > 2;
    if (is_flag && std::find(known_flags.begin(), known_flags.end(), flag) == known_flags.end()) {
      const std::string suggestion = did_you_mean(flag, known_flags);
      return fmt::format("`mycojobs {}` takes no {}{}", name, excerpt(flag, 80),
                         suggestion.empty() ? "; its --help lists those there are" : suggestion);
    }
  }
  return "";
}

// The parser of one command, with the values that CLI11 sets. It must exist until the end of the parse.
struct CommandParser {
  const Command* row = nullptr;
  CLI::App* app = nullptr;
  std::deque<std::pair<std::string, CLI::Option*>> arguments;
  std::vector<std::string> list_argument;  // values of the last argument, if it is FILE...
  std::deque<std::pair<std::string_view, std::vector<std::string>>> values;
  std::deque<std::pair<std::string_view, bool>> switches;
  FlagValues options;
  bool json = false;
};

// End of Command::arguments if the words after `--` are arguments of the script, whatever they look like.
constexpr std::string_view kScriptArguments = " [-- ARG...]";

// Removes and returns the words after `--` of a command with arguments for a script.
std::vector<std::string> pop_script_arguments(std::vector<std::string>& words) {
  const auto separator = std::find(words.begin(), words.end(), "--");
  const auto has_name = [&](const Command& row) {
    const std::size_t space = row.name.find(' ');
    return row.arguments.ends_with(kScriptArguments) && get_first_word(row.name) == words.front() &&
           (space == std::string_view::npos || (words.size() > 1 && row.name.substr(space + 1) == words[1]));
  };
  if (separator == words.end() || std::none_of(commands().begin(), commands().end(), has_name)) return {};
  std::vector<std::string> arguments(separator + 1, words.end());
  words.erase(separator, words.end());
  return arguments;
}

void add_arguments_and_flags(CommandParser& parser) {
  const Command& row = *parser.row;
  CLI::App& app = *parser.app;
  for (std::string_view remaining_text = row.arguments.substr(0, row.arguments.find(kScriptArguments));
       !remaining_text.empty();) {
    std::string_view name = remaining_text.substr(0, remaining_text.find(' '));
    remaining_text.remove_prefix(std::min(name.size() + 1, remaining_text.size()));
    const bool is_optional = name.front() == '[';
    if (is_optional) name = name.substr(1, name.size() - 2);
    if (name.ends_with("...")) {
      app.add_option(std::string(name.substr(0, name.size() - 3)), parser.list_argument)->required(!is_optional);
      continue;
    }
    auto& [text, option] = parser.arguments.emplace_back();
    option = app.add_option(std::string(name), text)->required(!is_optional);
  }
  for (const FlagRow& flag : row.flags) {
    const std::string name = "--" + std::string(flag.name);
    if (flag.value.empty()) {
      app.add_flag(name, parser.switches.emplace_back(flag.name, false).second, std::string(flag.help));
    } else {
      const std::string choices = flag.choices.empty() ? "" : "; one of " + std::string(flag.choices);
      auto* option = app.add_option(name, parser.values.emplace_back(flag.name, std::vector<std::string>()).second,
                                    std::string(flag.help) + choices);
      option->type_name(std::string(flag.value))->expected(1)->allow_extra_args(false);
      option->multi_option_policy(flag.is_repeatable ? CLI::MultiOptionPolicy::TakeAll
                                                     : CLI::MultiOptionPolicy::TakeLast);
    }
  }
  app.add_flag("--json", parser.json, "Answer in JSON on stdout");
  app.option_defaults()->group(std::string(kSettingsGroup));
  add_options(app, row.name.substr(0, row.name.find(' ')), parser.options);
}

void add_to_description(CLI::App& group, const std::string& word) {
  group.description(group.get_description() + (group.get_description().empty() ? "" : ", ") + word);
}

// Adds the parser of a command below the parsers of its nouns: "job list" is the subcommand list of the subcommand job.
CLI::App* add_command(CLI::App& root, const Command& row) {
  CLI::App* group = &root;
  std::string_view remaining_name = row.name;
  for (auto word_end = remaining_name.find(' '); word_end != std::string_view::npos;
       word_end = remaining_name.find(' ')) {
    const std::string noun(remaining_name.substr(0, word_end));
    remaining_name.remove_prefix(word_end + 1);
    const auto groups = group->get_subcommands([&](const CLI::App* app) { return app->get_name() == noun; });
    CLI::App* subcommand = groups.empty() ? group->add_subcommand(noun) : groups.front();
    if (groups.empty() && group != &root) add_to_description(*group, noun);
    group = subcommand;
    group->require_subcommand(1);
  }
  const std::string verb(remaining_name);
  if (group != &root) add_to_description(*group, verb);
  return group->add_subcommand(verb, std::string(row.help));
}

CommandLine make_error_line(const std::string& problem, int exit_code = EX_USAGE) {
  CommandLine line;
  line.exit_code = print_error({Code::invalid, problem}, exit_code);
  return line;
}

// Returns an error message for a flag value that is not one of the choices, or an empty text.
std::string find_unknown_choice(const CommandLine& line) {
  for (const FlagRow& flag : line.command->flags) {
    const auto values = line.flags.find(std::string(flag.name));
    if (flag.choices.empty() || values == line.flags.end()) continue;
    for (const std::string& word : values->second) {
      if (!contains_word(flag.choices, word))
        return fmt::format("--{}: {} is not one of: {}", flag.name, excerpt(word, 80), flag.choices);
    }
  }
  return "";
}

// Moves settings that precede the command ("--context 7 job list") to its end.
std::vector<std::string> move_settings_to_end(int argc, const char* const* argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  const auto is_noun = [](const std::string& word) {
    return is_hidden_command(word) || std::any_of(commands().begin(), commands().end(),
                                                  [&](const Command& row) { return get_first_word(row.name) == word; });
  };
  const auto noun = std::find_if(words.begin(), words.end(), is_noun);
  if (noun == words.end() || noun == words.begin() || !words.front().starts_with('-')) return words;
  std::rotate(words.begin(), noun, words.end());
  const auto settings_begin = words.end() - (noun - words.begin());
  const auto separator =
      std::find(words.begin(), settings_begin, "--");  // the words after -- are arguments of the script
  std::rotate(separator, settings_begin, words.end());
  return words;
}

std::string make_missing_command_error(const std::vector<std::string>& words) {
  if (words.front().starts_with('-')) return "name a command behind the settings: `mycojobs --help` lists them";
  std::string group = words.front();  // "flow", "flow schedule"
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string prefix = group + ' ' + words[i] + ' ';
    if (std::none_of(commands().begin(), commands().end(),
                     [&](const Command& row) { return row.name.starts_with(prefix); }))
      break;
    group += ' ' + words[i];
  }
  return fmt::format("name a command of {0}: `mycojobs {0} --help` lists them", group);
}

// Returns an error message for a surplus argument, or an empty text.
std::string find_surplus_argument(const CLI::App& command, const Command& row) {
  const auto surplus = command.remaining(true);
  if (surplus.empty()) return "";
  return fmt::format("{} is one word too many: `mycojobs {}` takes {}; its --help says what each is",
                     excerpt(surplus.front(), 80), row.name, row.arguments.empty() ? "flags alone" : row.arguments);
}

// Returns an error message for words that the command does not accept, or an empty text if the message of CLI11 is
// sufficient.
std::string find_rejected_word(const std::deque<CommandParser>& parsers, int argc, const char* const* argv) {
  const auto selected =
      std::find_if(parsers.begin(), parsers.end(), [](const CommandParser& parser) { return parser.app->parsed(); });
  if (selected == parsers.end()) return "";
  const std::string flag = find_unknown_flag(*selected->app, selected->row->name, argc, argv);
  return flag.empty() ? find_surplus_argument(*selected->app, *selected->row) : flag;
}

// Moves the values of a parsed command into the line.
void store_values(CommandParser& parser, CommandLine& line) {
  line.command = parser.row;
  line.json = parser.json;
  for (const auto& [text, option] : parser.arguments) {
    if (option->count() > 0) line.arguments.push_back(text);
  }
  line.arguments.insert(line.arguments.end(), parser.list_argument.begin(), parser.list_argument.end());
  for (auto& [name, values] : parser.values) {
    if (!values.empty()) line.flags[std::string(name)] = values;
  }
  for (auto& [name, is_set] : parser.switches) {
    if (is_set) line.flags[std::string(name)] = {"true"};
  }
  line.options = std::move(parser.options);
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CLI::App root("mycojobs: runs scripts as jobs on many hosts with nothing but Redis between them", "mycojobs");
  root.require_subcommand(1);
  root.set_help_all_flag("--help-all", "Print this help message with all settings and exit");
  std::vector<std::string> words = move_settings_to_end(argc, argv);
  const std::vector<std::string> script_arguments = pop_script_arguments(words);
  std::deque<CommandParser> parsers;
  for (const auto* table : {&commands(), &hidden_commands()}) {
    for (const Command& row : *table) {
      CommandParser& parser = parsers.emplace_back();
      parser.row = &row;
      parser.app = add_command(root, row);
      // Arguments and flags are added to the selected command only. For all commands this would double the start time.
      if (!words.empty() && get_first_word(row.name) == words.front()) add_arguments_and_flags(parser);
    }
  }
  format_help(root, get_help_columns());
  CommandLine line;
  std::vector<const char*> arguments{"mycojobs"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  if (argc == 2 && (words.front() == "--version" || words.front() == "-V")) arguments.back() = "version";
  argc = static_cast<int>(arguments.size());
  argv = arguments.data();
  if (words.empty())
    return make_error_line("name a command: `mycojobs --help` lists them; `mycojobs run FILE` runs a script");
  if (const std::string problem = find_unknown_command(argc, argv); !problem.empty()) return make_error_line(problem);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    const std::string message = find_rejected_word(parsers, argc, argv);
    return make_error_line(message.empty() ? error.what() : message);
  } catch (const CLI::RequiredError& error) {
    const bool has_command =
        std::any_of(parsers.begin(), parsers.end(), [](const CommandParser& parser) { return parser.app->parsed(); });
    if (!has_command) return make_error_line(make_missing_command_error(words));
    return make_error_line(error.what() + std::string(script_arguments.empty()
                                                          ? ""
                                                          : "; the words after -- are arguments of the script: name "
                                                            "its FILE before, as in ./-x.py"));
  } catch (const CLI::ParseError& error) {
    const bool is_error = error.get_exit_code() != 0;
    if (is_error && prints_errors_as_json()) {
      line.exit_code = print_error({Code::invalid, error.what()}, EX_USAGE);
    } else {
      line.exit_code = root.exit(error) == 0 ? EX_OK : EX_USAGE;
    }
    return line;
  }
  for (CommandParser& parser : parsers) {
    if (!parser.app->parsed()) continue;
    store_values(parser, line);
    line.arguments.insert(line.arguments.end(), script_arguments.begin(), script_arguments.end());
    if (const std::string problem = find_unknown_choice(line); !problem.empty())
      return make_error_line(problem, EX_DATAERR);
  }
  return line;
}

}  // namespace mycojobs
