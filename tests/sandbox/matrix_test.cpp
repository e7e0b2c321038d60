// SH6: the other layers must still refuse attempts when one layer is left out. matrix.h defines the terms.
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "matrix.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

const std::string kTablePath = mj::test::source_path("tests/sandbox/matrix.txt");
const std::string kPagePath = mj::test::source_path("docs/sandbox-matrix.md");
const char* const kBegin = "<!-- matrix: written by sandbox_tests from tests/sandbox/matrix.txt -->\n";
const char* const kEnd = "<!-- end of matrix -->\n";

bool is_to_be_written() { return std::getenv("MYCOJOBS_MATRIX_WRITE") != nullptr; }

std::string kernel_version() {
  utsname names{};
  ::uname(&names);
  const std::string release = names.release;
  return release.substr(0, release.find_first_not_of("0123456789", release.find('.') + 1));
}

int landlock_abi_here() {
  const long abi = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, 1);
  return abi > 0 ? static_cast<int>(abi) : 0;
}

SandboxConfig config_without(const std::vector<std::string>& layers) {
  SandboxConfig config = test_config();
  config.disabled_steps = layers;
  // Without a layer, an attempt can change the sandbox, so no other attempt may use the same sandbox.
  if (!layers.empty()) config.sandbox_runs = 1;
  return config;
}

bool holds(char letter) { return letter == 'D' || letter == 'V' || letter == '-'; }

// Without the sandbox's limits, jobs inherit the agent's limits, which depend on the host.
bool is_up_to_the_host(const MatrixRow& row, const std::string& column) {
  if (column != "rlimits") return false;
  return row.row == "SQ10" || row.row == "SQ11" || row.row == "SQ23" || row.row == "SZ25";
}

// Other kernels may lack the target of an attempt, so more attempts may be denied than the table says, but never fewer.
bool agrees(char expected, char found, const MatrixTable& table) {
  if (expected == found) return true;
  const bool as_recorded = table.kernel == kernel_version() && table.landlock == landlock_abi_here();
  return !as_recorded && expected != ' ' && (holds(found) || !holds(expected));
}

// The kernel refuses to change speculation if the processor needs no mitigation or enforces it.
bool depends_on_processor(const MatrixRow& row) { return row.name.starts_with("prctl_full 53 "); }

// Returns the reason that this host cannot check the column, or "". The second layer of some rows may be missing.
std::string not_comparable(const std::string& column, const MatrixTable& table) {
  if (column == "all") return "";
  if (::geteuid() != 0) return "an ordinary user's jobs share one id: another sandbox";
  if (column == "cgroups" && !may_limit_by_cgroup()) return "no group can be made and limited here";
  const int needed = column == "landlock" ? 1 : table.landlock;
  return landlock_abi_here() >= needed ? "" : "this kernel has less of Landlock than the table's";
}

std::string read_text(const char* path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Returns the page with this table between the two marks.
std::string page_with(const MatrixTable& table) {
  const std::string page = read_text(kPagePath.c_str());
  const std::size_t begin = page.find(kBegin), end = page.find(kEnd);
  if (begin == std::string::npos || end == std::string::npos) return page;
  return page.substr(0, begin) + kBegin + "\n" + table.markdown() + "\n" + page.substr(end);
}

class MatrixColumns : public testing::TestWithParam<MatrixColumn> {};

TEST_P(MatrixColumns, MatchTheTable) {
  const MatrixColumn& column = GetParam();
  MatrixTable table = read_matrix(kTablePath);
  const std::string why_not = is_to_be_written() ? "" : not_comparable(column.name, table);
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  const HostThings host;
  auto sandbox = start_sandbox(config_without(column.disabled_steps));
  ASSERT_TRUE(sandbox) << sandbox.error().message;
  std::vector<std::pair<std::string, char>> letters;
  std::size_t in_table = 0;
  for (const MatrixRow& row : matrix_rows(host)) {
    char letter = '-';
    std::string how;
    if (may_be_tried(row, column)) {
      RunSpec spec = spec_with();
      const std::uint64_t wall_ms = spec.limits.wall_ms;
      spec.limits = row.limits;
      spec.limits.wall_ms = wall_ms;
      spec.limits.exec = row.exec;
      const RunResult run_result = run_attempts(**sandbox, spec, row.before + row.lines);
      letter = get_outcome_letter(row, column, run_result);
      how = std::string(to_string(run_result.outcome.status)) + " " + run_result.outcome.reason;
      for (const auto& [line, result] : run_result.answers) how += "; " + line + ": " + result;
    }
    letters.emplace_back(make_row_key(row), letter);
    if (column.name == "all") {
      EXPECT_TRUE(letter == 'D' || letter == 'V') << make_row_key(row) << " -> " << how;
    }
    EXPECT_NE(letter, '?') << make_row_key(row) << " -> " << how;
    if (is_to_be_written()) {
      if (!holds(letter))
        std::cout << column.name << ": " << letter << " " << make_row_key(row) << " -> " << how << "\n";
      continue;
    }
    const char expected = table.at(make_row_key(row), column.name);
    in_table += expected != ' ' ? 1 : 0;
    EXPECT_TRUE(is_up_to_the_host(row, column.name) || agrees(expected, letter, table) ||
                (depends_on_processor(row) && holds(letter)))
        << "without " << column.name << ", " << make_row_key(row) << ": '" << expected << "' expected, found '"
        << letter << "': " << how;
  }
  if (is_to_be_written()) {
    table.kernel = kernel_version();
    table.landlock = landlock_abi_here();
    table.set_column(column.name, letters);
    std::ofstream(kTablePath) << table.text();
    const std::string page = page_with(table);
    std::ofstream(kPagePath) << page;
  } else {
    EXPECT_EQ(in_table, table.keys.size()) << "the table has rows that are not tried";
  }
}

INSTANTIATE_TEST_SUITE_P(Without, MatrixColumns, testing::ValuesIn(matrix_columns()), [](const auto& column) {
  std::string name = column.param.name;
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
});

// Why this layer has no column: a process without capabilities needs no_new_privs to set Landlock and seccomp rules. A
// job without it is never started.
TEST(Matrix, NoJobRunsWithoutNoNewPrivs) {
  auto sandbox = start_sandbox(config_without({"no_new_privs"}));
  ASSERT_TRUE(sandbox) << sandbox.error().message;
  const RunResult run_result = run_attempts(**sandbox, spec_with(), "getuid\n");
  EXPECT_EQ(to_string(run_result.outcome.status), "setup_error");
  ASSERT_TRUE(run_result.outcome.setup_error);
  EXPECT_EQ(run_result.outcome.setup_error->error, EPERM);
  EXPECT_EQ(run_result.outcome.setup_error->step, landlock_abi_here() > 0 ? "landlock" : "seccomp");
  EXPECT_TRUE(run_result.answers.empty());
}

TEST(Matrix, PageShowsTheTable) {
  const MatrixTable table = read_matrix(kTablePath);
  const std::string page = read_text(kPagePath.c_str());
  ASSERT_NE(page.find(kBegin), std::string::npos);
  if (is_to_be_written()) GTEST_SKIP() << "the columns write it";
  EXPECT_TRUE(page == page_with(table))
      << "docs/sandbox-matrix.md differs from tests/sandbox/matrix.txt; run the tests with MYCOJOBS_MATRIX_WRITE=1";
}

// The page must explain each row that only one layer refuses.
TEST(Matrix, PageNamesEveryRowThatDependsOnOneLayer) {
  const MatrixTable table = read_matrix(kTablePath);
  const std::string page = read_text(kPagePath.c_str());
  const std::size_t begin = page.find("### What rests on one layer");
  ASSERT_NE(begin, std::string::npos);
  const std::string prose = page.substr(begin, page.find(kBegin) - begin);
  for (const auto& key : table.keys) {
    const std::string row = key.substr(0, key.find(": "));
    const std::string word = row.substr(0, row.find(" pair"));
    for (const auto& column : matrix_columns()) {
      if (column.disabled_steps.size() != 1 || holds(table.at(key, column.name))) continue;
      EXPECT_NE(prose.find(word), std::string::npos) << key << " rests on " << column.name << " alone";
      EXPECT_NE(prose.find("**" + column.name + "**"), std::string::npos) << column.name;
    }
  }
}

}  // namespace
}  // namespace mycojobs::test
