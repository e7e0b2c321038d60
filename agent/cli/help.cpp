#include "cli/help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "cli/commands.h"
#include "domain/nearest.h"
#include "domain/screen_text.h"
#include "domain/utf8.h"

namespace mycojobs {
namespace {

struct Group {
  std::string_view title, nouns;
};
constexpr Group kGroups[] = {
    {"To begin", "run dev doctor"},
    {"Jobs and flows", "job flow queue"},
    {"Scripts, and what they may do", "executor plugin program policy sandbox secret"},
    {"To serve and look after", "agent coordinator health runner context key rpc verify"},
    {"This program", "config completion version"},
};
constexpr std::string_view kOthers = "Others", kVerbs = "Commands";

bool names(std::string_view nouns, std::string_view noun) {
  return (" " + std::string(nouns) + " ").find(" " + std::string(noun) + " ") != std::string::npos;
}

// CLI11's own, with lines that end where the terminal does.
class WrappedHelp final : public CLI::Formatter {
 public:
  explicit WrappedHelp(std::size_t columns)
      : width_(std::clamp<std::size_t>(columns, 40, 120)), indent_(width_ >= 76 ? 30 : 18) {}

  std::string make_description(const CLI::App* app) const override {
    const std::string text = app->get_description();
    return text.empty() ? "" : wrapped(text, width_) + "\n";
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return row(make_option_name(option, is_positional) + make_option_opts(option), make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return row(command->get_name(), command->get_description());
  }
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode) const override {
    std::vector<Group> groups(std::begin(kGroups), std::end(kGroups));
    groups.push_back({kOthers, ""});
    groups.push_back({kVerbs, ""});
    std::string out;
    for (const Group& group : groups) {
      std::vector<const CLI::App*> rows =
          app->get_subcommands([&group](const CLI::App* each) { return each->get_group() == group.title; });
      // In the table's order.
      std::stable_sort(rows.begin(), rows.end(), [&group](const CLI::App* a, const CLI::App* b) {
        return group.nouns.find(a->get_name()) < group.nouns.find(b->get_name());
      });
      if (!rows.empty()) out += "\n" + std::string(group.title) + ":\n";
      for (const CLI::App* each : rows) out += make_subcommand(each);
    }
    return out;
  }

 private:
  // The name, and what it is beside it; a name that is too long has a line of its own.
  std::string row(const std::string& name, const std::string& about) const {
    std::string line = "  " + name;
    if (columns(line) + 2 > indent_) {
      line += "\n" + std::string(indent_, ' ');
    } else {
      line.append(indent_ - columns(line), ' ');
    }
    const std::string text = wrapped(about, width_ - indent_);
    for (char c : text) line += c == '\n' ? "\n" + std::string(indent_, ' ') : std::string(1, c);
    return line + "\n";
  }

  std::size_t width_, indent_;
};

void shape(CLI::App& app, const std::shared_ptr<CLI::FormatterBase>& help) {
  app.formatter(help);
  for (CLI::App* each : app.get_subcommands({})) shape(*each, help);
}

std::string_view first_word(std::string_view text) { return text.substr(0, text.find(' ')); }

}  // namespace

std::string_view command_group(std::string_view noun) {
  for (const Group& group : kGroups) {
    if (names(group.nouns, noun)) return group.title;
  }
  return {};
}

void shape_help(CLI::App& root, std::size_t columns) {
  shape(root, std::make_shared<WrappedHelp>(columns));
  for (CLI::App* each : root.get_subcommands({})) {
    const std::string_view group = command_group(each->get_name());
    each->group(std::string(group.empty() ? kOthers : group));
    for (CLI::App* verb : each->get_subcommands({})) verb->group(std::string(kVerbs));
  }
}

std::string unknown_command(int argc, const char* const* argv) {
  std::string before;  // "job "
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with('-')) return "";  // a flag, for which the parser is there
    std::set<std::string_view> known;
    for (const Command& row : commands()) {
      if (row.name.starts_with(before)) known.insert(first_word(row.name.substr(before.size())));
    }
    if (!known.contains(word)) {
      const std::vector<std::string_view> candidates(known.begin(), known.end());
      const std::string meant = did_you_mean(word, candidates);
      return fmt::format("there is no command {}{}", shown(before + std::string(word), 80),
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
      return fmt::format("`mycojobs {}` takes no {}{}", name, shown(flag, 80),
                         meant.empty() ? "; its --help lists those there are" : meant);
    }
  }
  return "";
}

}  // namespace mycojobs
