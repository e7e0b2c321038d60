// Compares rows.txt with the list of ids, with the tables, and with the existing tests.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "sandbox/denied/denied.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

// The numbers of the attempts that must fail, by section. Section SZ has no fixed numbers.
const std::map<std::string, std::string> kExpectedIds = {
    {"SF", "1 2 3 4 6 7 8 10 11 12 13 14 15 16 17 19 20 21 23 24 26 27 28 30"},
    {"SP", "1 2 3 4 5 6 7 9 10 12 15 16 18"},
    {"SN", "1 2 3 5 6 9 10 11 12 14 15"},
    {"SK", "4 5 6 7 8 9 11 13 14 15 16 17 19 20"},
    {"SR", "1 2 3 4 6 7 9"},
    {"SQ", "1 2 3 5 6 7 8 10 11 12 13 14 16 17 18 20 21 23 24 25 26"},
    {"SI", "1 3 4 5 6 9 11 12 13 14"},
    {"SY", "1 2 4 6 7 9 10 11 12 15 16 17"},
    {"SX", "1 2 4 6 7 8 9 10 11"},
    {"SH", "1 2 3 4 6 7"},
};

struct RowCoverage {
  std::vector<std::string> tests;
  std::string remark;  // The text after "|" or ":".
};

std::map<std::string, RowCoverage> read_rows() {
  std::map<std::string, RowCoverage> rows;
  std::ifstream file(mj::test::source_path("tests/sandbox/rows.txt"));
  EXPECT_TRUE(file);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t end = std::min(line.find(" | "), line.find(" : "));
    std::istringstream words(line.substr(0, end));
    std::string id, test;
    words >> id;
    EXPECT_FALSE(rows.contains(id)) << id << " is listed twice";
    while (words >> test) rows[id].tests.push_back(test);
    rows[id].remark = end == std::string::npos ? "" : line.substr(end + 3);
  }
  return rows;
}

// Returns Suite.Name of all tests of this program and of every TEST below tests/. Parameterized tests are named
// Prefix/Suite.
std::set<std::string> find_existing_tests() {
  std::set<std::string> tests;
  const auto& unit = *::testing::UnitTest::GetInstance();
  for (int i = 0; i < unit.total_test_suite_count(); ++i) {
    const auto& suite = *unit.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const std::string name = suite.GetTestInfo(j)->name();
      tests.insert(std::string(suite.name()) + "." + name.substr(0, name.find('/')));
    }
  }
  for (const auto& entry : fs::recursive_directory_iterator(mj::test::source_path("tests"))) {
    if (entry.path().extension() != ".cpp") continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      const std::size_t open = line.find('('), comma = line.find(", "), close = line.find(')');
      if (line.rfind("TEST", 0) != 0 || comma == std::string::npos || close == std::string::npos) continue;
      tests.insert(line.substr(open + 1, comma - open - 1) + "." + line.substr(comma + 2, close - comma - 2));
    }
  }
  return tests;
}

TEST(Rows, EachIsCoveredOrNamed) {
  const auto rows = read_rows();
  std::size_t listed_count = 0;
  for (const auto& [section, numbers] : kExpectedIds) {
    std::istringstream words(numbers);
    for (std::string number; words >> number; ++listed_count) {
      EXPECT_TRUE(rows.contains(section + number)) << section + number << " is missing";
    }
  }
  const auto additional =
      std::count_if(rows.begin(), rows.end(), [](const auto& row) { return row.first.starts_with("SZ"); });
  EXPECT_EQ(rows.size(), listed_count + static_cast<std::size_t>(additional)) << "the row is in no list";
  const auto tests = find_existing_tests();
  for (const auto& [id, row] : rows) {
    const bool has_reason = row.remark.starts_with("not exercised: ") || row.remark.starts_with("waiting: ");
    EXPECT_TRUE(!row.tests.empty() || has_reason) << id << " has neither a test nor a reason";
    for (const auto& test : row.tests) {
      // Prefix/Suite.Name of another program appears as Suite.Name in its source
      const std::size_t slash = test.find('/');
      const bool exists =
          tests.contains(test) || (slash != std::string::npos && tests.contains(test.substr(slash + 1)));
      EXPECT_TRUE(exists) << id << " names " << test << ", which does not exist";
      if (test.find(".DISABLED_") != std::string::npos) {
        EXPECT_TRUE(row.remark.starts_with("waiting: ")) << id << " does not name the reason for waiting";
      }
    }
  }
}

TEST(Rows, TableRowsAreInTheList) {
  const auto rows = read_rows();
  for (const auto* table :
       {&file_rows(), &network_rows(), &kernel_rows(), &capability_rows(), &combined_rows(), &exec_rows()}) {
    for (const auto& row : *table) {
      const std::string id = row.id;
      const bool has_number =
          id.size() > 2 && id[0] == 'S' && id.find_first_not_of("0123456789", 2) == std::string::npos;
      EXPECT_TRUE(!has_number || rows.contains(id)) << id << ": " << row.attempt;
    }
  }
}

// Without this check, the run as an unprivileged user would test less than it appears to.
TEST(Rows, DelegatedGroupsAreUsed) {
  if (std::getenv("MYCOJOBS_TEST_DELEGATED") == nullptr) GTEST_SKIP() << "no group was delegated to this run";
  EXPECT_NE(::geteuid(), 0U);
  EXPECT_TRUE(can_limit_by_cgroup());
}

}  // namespace
}  // namespace mycojobs::test
