// The man pages contain every command, flag and setting that --help contains.
#include "cli/commands/man_pages.h"

#include <gtest/gtest.h>

#include <set>

#include "cli/commands/command_line.h"
#include "cli/commands/command_table.h"
#include "cli/commands/hidden_commands.h"

namespace mycojobs {
namespace {

std::string remove_marks(const std::string& page) {
  std::string out;
  for (std::size_t i = 0; i < page.size(); ++i) {
    if (page[i] == '\\' && i + 1 < page.size()) {
      out += page[++i];
    } else if (page[i] != '*') {
      out += page[i];
    }
  }
  return out;
}

// Returns the flags at the line starts of `mycojobs <command> --help-all`.
std::set<std::string> list_flags_of_help(std::string_view command) {
  std::vector<std::string> words{"mycojobs"};
  for (std::size_t from = 0; from <= command.size();) {
    const auto blank = std::min(command.find(' ', from), command.size());
    words.emplace_back(command.substr(from, blank - from));
    from = blank + 1;
  }
  words.emplace_back("--help-all");
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  testing::internal::CaptureStdout();
  const CommandLine line = parse_command_line(static_cast<int>(argv.size()), argv.data());
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_EQ(line.exit_code, 0) << command;
  std::set<std::string> flags;
  for (std::size_t at = help.find("\n  -"); at != std::string::npos; at = help.find("\n  -", at + 1)) {
    std::string row = help.substr(at + 3, help.find('\n', at + 1) - at - 3);
    for (std::size_t flag = row.find("--"); flag != std::string::npos; flag = row.find("--", flag + 2)) {
      if (flag > 0 && row[flag - 1] != ',') break;  // the help text follows
      flags.insert(row.substr(flag, row.find_first_of(" ,", flag) - flag));
    }
  }
  return flags;
}

// Returns the text below the heading of a command.
std::string find_section(const std::string& page, const Command& row) {
  const auto at = page.find("\n## mycojobs " + std::string(row.name) + (row.arguments.empty() ? "\n" : " "));
  EXPECT_NE(at, std::string::npos) << row.name;
  return at == std::string::npos ? "" : page.substr(at, page.find("\n#", at + 1) - at);
}

TEST(ManPages, HaveEveryCommandWithItsHelpAndArguments) {
  const std::string page = remove_marks(make_man_page("mycojobs.1"));
  for (const Command& row : commands()) {
    const std::string section = find_section(page, row);
    EXPECT_NE(section.find(std::string(row.help.substr(1))), std::string::npos) << row.name;
    EXPECT_NE(section.find(std::string(row.arguments)), std::string::npos) << row.name;
    for (const FlagRow& flag : row.flags)
      EXPECT_NE(section.find("\n--" + std::string(flag.name)), std::string::npos) << row.name << " " << flag.name;
  }
}

TEST(ManPages, HaveEveryFlagOfEachHelp) {
  const std::string page = remove_marks(make_man_page("mycojobs.1"));
  const std::string common = page.substr(page.find("# FLAGS OF EVERY COMMAND"));
  for (const Command& row : commands()) {
    const std::string section = find_section(page, row) + common;
    const auto flags = list_flags_of_help(row.name);
    EXPECT_TRUE(flags.contains("--help") && flags.contains("--json") && flags.contains("--redis")) << row.name;
    for (const std::string& flag : flags) {
      const bool found =
          section.find("\n" + flag) != std::string::npos || section.find(", " + flag) != std::string::npos;
      EXPECT_TRUE(found) << row.name << " " << flag;
    }
  }
}

TEST(ManPages, OfServicesHaveTheFlagsOfTheirHelpAndNoOthers) {
  for (const std::string name : {"agent", "coordinator"}) {
    const std::string page = remove_marks(make_man_page("mycojobs-" + name + ".8"));
    const auto flags = list_flags_of_help(name);
    std::set<std::string> documented_flags;
    for (std::size_t at = page.find("\n--"); at != std::string::npos; at = page.find("\n--", at + 1)) {
      const std::string line = page.substr(at + 1, page.find('\n', at + 1) - at - 1);
      for (std::size_t flag = line.find("--"); flag != std::string::npos; flag = line.find("--", flag + 2))
        documented_flags.insert(line.substr(flag, line.find_first_of(" ,", flag) - flag));
    }
    EXPECT_EQ(documented_flags, flags) << name;
  }
}

TEST(ManPages, HaveEverySettingOfTheFile) {
  const std::string page = remove_marks(make_man_page("mycojobs.toml.5"));
  for (const Option& option : options())
    EXPECT_NE(page.find("\n" + std::string(option.name) + "\n\t"), std::string::npos) << option.name;
}

TEST(ManPages, TextIsNotInterpretedAsMarkup) {
  const std::string page = make_man_page("mycojobs.1");
  EXPECT_NE(page.find("MYCOJOBS\\_REDIS"), std::string::npos);
  EXPECT_EQ(make_man_page("mycojobs.7"), "");
  for (std::string_view name : kManPages) EXPECT_FALSE(make_man_page(name).empty()) << name;
}

TEST(HiddenCommands, AreNotInUserTables) {
  for (const Command& hidden : hidden_commands()) {
    for (const Command& row : commands()) EXPECT_NE(row.name, hidden.name);
    EXPECT_EQ(make_man_page("mycojobs.1").find("mycojobs " + std::string(hidden.name)), std::string::npos);
  }
}

}  // namespace
}  // namespace mycojobs
