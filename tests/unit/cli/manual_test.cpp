// The manual documents every command, every flag and every result of `job explain` and `verify`, and no others.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "cli/commands/command_table.h"
#include "inspect/explain.h"
#include "inspect/flow_view.h"
#include "inspect/verify/job_verify.h"
#include "model/policy_json.h"
#include "store/keys.h"
#include "support/build_paths.h"

namespace mycojobs {
namespace {

std::string read_docs_page(const char* name) {
  std::ostringstream text;
  text << std::ifstream(mj::test::source_path("docs/") + std::string(name)).rdbuf();
  return text.str();
}
// Returns the pages of the manual, in sequence.
std::string read_manual() {
  std::string text;
  for (const char* page : {"commands.md", "settings.md", "policies.md", "systemd.md", "troubleshooting.md"})
    text += read_docs_page(page);
  return text;
}

// Returns the text below each heading, by heading: "`mycojobs job list`" -> text.
std::map<std::string, std::string> split_sections(const std::string& text) {
  std::map<std::string, std::string> all;
  std::string heading;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) {
      heading = line.substr(line.find_first_not_of("# "));
    } else {
      all[heading] += line + "\n";
    }
  }
  return all;
}

// Returns the text below the heading that names the command, or "" without such a heading.
std::string find_section(const std::map<std::string, std::string>& all, std::string_view command) {
  const std::string name = "`mycojobs " + std::string(command);
  for (const auto& [heading, text] : all) {
    const auto at = heading.find(name);
    if (at == std::string::npos) continue;
    const char after = heading[at + name.size()];
    if (after == ' ' || after == '`') return text;
  }
  return "";
}

TEST(Manual, HasASectionForEveryCommandWithEachOfItsFlags) {
  const auto all = split_sections(read_manual());
  for (const Command& command : commands()) {
    std::string text = find_section(all, command.name);
    EXPECT_FALSE(text.empty()) << "no heading contains " << command.name;
    if (command.name == "job submit") text += find_section(all, "run");  // `job submit` also has the flags of `run`
    text += all.at("Common flags");
    for (const FlagRow& flag : command.flags) {
      EXPECT_NE(text.find("`--" + std::string(flag.name)), std::string::npos)
          << command.name << " does not explain --" << flag.name;
    }
  }
}

TEST(Manual, NamesNoUnknownFlag) {
  std::vector<std::string> known_flags{"--", "--json", "--help", "--help-all", "--yes", "--config"};
  for (const Command& command : commands()) {
    for (const FlagRow& flag : command.flags) known_flags.push_back("--" + std::string(flag.name));
  }
  for (const Option& option : options()) {
    known_flags.push_back(get_flag_name(option));
    known_flags.push_back("--no-" + get_flag_name(option).substr(2));
  }
  const std::string text = read_manual();
  for (auto at = text.find("`--"); at != std::string::npos; at = text.find("`--", at + 1)) {
    const std::string flag = text.substr(at + 1, text.find_first_of("` =\n", at + 1) - at - 1);
    EXPECT_NE(std::find(known_flags.begin(), known_flags.end(), flag), known_flags.end()) << flag;
  }
}

TEST(Manual, HasARowForEveryExplainCause) {
  const std::string text = read_manual();
  for (const CauseRow& row : causes()) {
    const std::string state = row.state == "*" ? "any" : std::string(row.state);
    const std::string cells = "| " + state + " | `" + std::string(row.cause) + "` | " + std::string(row.meaning) + " |";
    EXPECT_NE(text.find(cells), std::string::npos) << cells;
  }
}

TEST(Manual, HasARowForEveryFlowExplainCause) {
  const std::string text = read_manual();
  for (const FlowCauseRow& row : flow_causes()) {
    const std::string cells = "| `" + std::string(row.cause) + "` | " + std::string(row.meaning) + " |";
    EXPECT_NE(text.find(cells), std::string::npos) << cells;
  }
}

TEST(Protocol, HasARowForEveryLostKey) {
  const std::string text = read_docs_page("protocol.md");
  std::size_t rows = 0;
  for (const InternalKey& key : internal_keys()) {
    if (key.loss.empty()) continue;
    ++rows;
    const std::string cells = "| `" + std::string(key.pattern) + "` | " + std::string(key.loss) + " |";
    EXPECT_NE(text.find(cells), std::string::npos) << cells;
  }
  EXPECT_GT(rows, 40U);
}

// The meaning of a rule is in the output of `verify`.
TEST(Manual, NamesEveryRuleOfVerifyAsAViolationOrANote) {
  const auto all = split_sections(read_manual());
  const std::string text = find_section(all, "verify");
  const std::size_t notes = text.find("\nA note reports");
  ASSERT_NE(notes, std::string::npos);
  for (const VerifyRule& rule : verify_rules()) {
    const std::size_t at = text.find('`' + std::string(rule.name) + '`');
    EXPECT_NE(at, std::string::npos) << rule.name;
    EXPECT_EQ(at < notes, rule.violation) << rule.name;
  }
}

TEST(Manual, HasARowForEveryFieldOfAPolicy) {
  const std::string text = read_docs_page("policies.md");
  for (std::size_t i = 0; i < kPolicyFields; ++i) {
    const std::string field = '`' + std::string(to_string(static_cast<PolicyField>(i))) + '`';
    const bool found =
        text.find("\n| " + field) != std::string::npos || text.find(", " + field + " |") != std::string::npos;
    EXPECT_TRUE(found) << field;
  }
}

}  // namespace
}  // namespace mycojobs
