// Each executor has a row in docs/executors/README.md and a page; the contract page names every case.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/clock.h"
#include "cli/executor_contract.h"
#include "executors/executor_table.h"
#include "support/build_paths.h"

namespace mycojobs {
namespace {

const std::string kPages = mj::test::source_path("docs/executors/");

std::string read_file_of_page(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(kPages + name).rdbuf();
  return text.str();
}

std::string find_row(const std::string& table, const std::string& executor) {
  const auto at = table.find("\n| " + executor + " | ");
  return at == std::string::npos ? "" : table.substr(at + 1, table.find('\n', at + 1) - at - 1);
}

// Returns the target of the row's link, "](bash.md)".
std::string read_page(const std::string& row) {
  const auto at = row.rfind("](");
  return at == std::string::npos ? "" : row.substr(at + 2, row.find(')', at) - at - 2);
}

TEST(ExecutorPages, EachExecutorHasARowAndAPage) {
  const SystemClock clock;
  const std::string nowhere = "/nonexistent";
  const CommandSettings command{.name = "command", .command = {"/bin/true", "{script}"}};
  const std::string table = read_file_of_page("README.md");
  for (const auto& executor : create_executors({nowhere, nowhere, {command}, nowhere, "", {}, {}, clock})) {
    const std::string name(executor->name());
    const std::string row = find_row(table, name);
    ASSERT_NE(row, "") << name;
    for (const Stage& stage : executor->stages())
      EXPECT_NE(row.find("`" + stage.profile + "`"), std::string::npos) << name << ": " << stage.profile;
    for (const std::string& type : executor->script_types()) {
      const bool is_there = row.find("`" + type + "`") != std::string::npos;
      EXPECT_TRUE(is_there || name == command.name) << name << ": " << type;  // a command executor may serve any name
    }
    EXPECT_TRUE(std::filesystem::is_regular_file(kPages + read_page(row))) << row;
  }
}

TEST(ExecutorPages, ContractListsEachCaseInTheOrderOfTheSuite) {
  const std::string text = read_file_of_page("contract.md");
  std::size_t after = 0;
  std::size_t rows = 0;
  for (const ContractCase& each : contract_cases()) {
    after = text.find("\n| `" + std::string(each.name) + "` | ", after);
    ASSERT_NE(after, std::string::npos) << each.name;
  }
  for (std::size_t at = 0; (at = text.find("\n| `", at)) != std::string::npos; ++at) ++rows;
  EXPECT_EQ(rows, contract_cases().size());
}

}  // namespace
}  // namespace mycojobs
