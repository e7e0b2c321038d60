// SH6: the other layers must still refuse attempts when one layer is left out. matrix.h defines the terms.
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "matrix.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

const std::string kTablePath = mj::test::source_path("tests/sandbox/matrix.txt");
const std::string kPagePath = mj::test::source_path("docs/sandbox-matrix.md");
const char* const kBeginMark = "<!-- matrix: written by sandbox_tests from tests/sandbox/matrix.txt -->\n";
const char* const kEndMark = "<!-- end of matrix -->\n";

bool should_write_table() { return std::getenv("MYCOJOBS_MATRIX_WRITE") != nullptr; }

std::string read_kernel_version() {
  utsname names{};
  ::uname(&names);
  const std::string release = names.release;
  return release.substr(0, release.find_first_not_of("0123456789", release.find('.') + 1));
}

int read_landlock_abi() {
  const long abi = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, 1);
  return abi > 0 ? static_cast<int>(abi) : 0;
}

SandboxConfig make_config_without(const std::vector<std::string>& layers) {
  SandboxConfig config = make_test_config();
  config.disabled_steps = layers;
  // Without a layer, an attempt can change the sandbox, so no other attempt may use the same sandbox.
  if (!layers.empty()) config.max_sandbox_runs = 1;
  return config;
}

bool is_denied(char letter) { return letter == 'D' || letter == 'V' || letter == '-'; }

// Without the sandbox's limits, jobs inherit the agent's limits, which depend on the host.
bool depends_on_host(const MatrixRow& row, const std::string& column) {
  if (column != "rlimits") return false;
  return row.id == "SQ10" || row.id == "SQ11" || row.id == "SQ23" || row.id == "SZ25";
}

// Other kernels may lack the target of an attempt, so more attempts may be denied than in the table, but never fewer.
bool is_compatible(char expected, char actual, const MatrixTable& table) {
  if (expected == actual) return true;
  const bool is_same_kernel = table.kernel == read_kernel_version() && table.landlock == read_landlock_abi();
  return !is_same_kernel && expected != ' ' && (is_denied(actual) || !is_denied(expected));
}

// The kernel refuses to change speculation if the processor needs no mitigation or enforces it.
bool depends_on_processor(const MatrixRow& row) { return row.name.starts_with("prctl_full 53 "); }

// Returns the reason that this host cannot check the column, or "". The second layer of some rows may be missing.
std::string find_skip_reason(const std::string& column, const MatrixTable& table) {
  if (column == "all") return "";
  if (::geteuid() != 0) return "the jobs of an unprivileged user share one id, which is another sandbox";
  if (column == "cgroups" && !can_limit_by_cgroup()) return "this host permits no cgroups with limits";
  const int required_abi = column == "landlock" ? 1 : table.landlock;
  return read_landlock_abi() >= required_abi ? ""
                                             : "this kernel has an older Landlock version than the kernel of the table";
}

// Returns the page with this table between the two marks.
std::string render_page(const MatrixTable& table) {
  const std::string page = read_file(kPagePath);
  const std::size_t begin = page.find(kBeginMark), end = page.find(kEndMark);
  if (begin == std::string::npos || end == std::string::npos) return page;
  return page.substr(0, begin) + kBeginMark + "\n" + table.to_markdown() + "\n" + page.substr(end);
}

class MatrixColumns : public testing::TestWithParam<MatrixColumn> {};

TEST_P(MatrixColumns, MatchTheTable) {
  const MatrixColumn& column = GetParam();
  MatrixTable table = read_matrix(kTablePath);
  const std::string skip_reason = should_write_table() ? "" : find_skip_reason(column.name, table);
  if (!skip_reason.empty()) GTEST_SKIP() << skip_reason;
  const HostResources host;
  auto sandbox = start_sandbox(make_config_without(column.disabled_steps));
  ASSERT_TRUE(sandbox) << sandbox.error().message;
  std::vector<std::pair<std::string, char>> letters;
  std::size_t compared_count = 0;
  for (const MatrixRow& row : make_matrix_rows(host)) {
    char letter = '-';
    std::string details;
    if (is_safe_to_try(row, column)) {
      RunSpec spec = make_spec();
      const std::uint64_t wall_ms = spec.limits.wall_ms;
      spec.limits = row.limits;
      spec.limits.wall_ms = wall_ms;
      spec.limits.exec = row.can_exec;
      const RunResult run_result = run_attempts(**sandbox, spec, row.preparation + row.attempts);
      letter = get_outcome_letter(row, column, run_result);
      details = std::string(to_string(run_result.outcome.status)) + " " + run_result.outcome.reason;
      for (const auto& [line, result] : run_result.results) details += "; " + line + ": " + result;
    }
    letters.emplace_back(make_row_key(row), letter);
    if (column.name == "all") {
      EXPECT_TRUE(letter == 'D' || letter == 'V') << make_row_key(row) << " -> " << details;
    }
    EXPECT_NE(letter, '?') << make_row_key(row) << " -> " << details;
    if (should_write_table()) {
      if (!is_denied(letter))
        std::cout << column.name << ": " << letter << " " << make_row_key(row) << " -> " << details << "\n";
      continue;
    }
    const char expected = table.get_letter(make_row_key(row), column.name);
    compared_count += expected != ' ' ? 1 : 0;
    EXPECT_TRUE(depends_on_host(row, column.name) || is_compatible(expected, letter, table) ||
                (depends_on_processor(row) && is_denied(letter)))
        << "without " << column.name << ", " << make_row_key(row) << ": '" << expected << "' expected, found '"
        << letter << "': " << details;
  }
  if (should_write_table()) {
    table.kernel = read_kernel_version();
    table.landlock = read_landlock_abi();
    table.set_column(column.name, letters);
    std::ofstream(kTablePath) << table.to_text();
    const std::string page = render_page(table);
    std::ofstream(kPagePath) << page;
  } else {
    EXPECT_EQ(compared_count, table.row_keys.size()) << "the table has rows that are not tried";
  }
}

INSTANTIATE_TEST_SUITE_P(Without, MatrixColumns, testing::ValuesIn(matrix_columns()), [](const auto& column) {
  std::string name = column.param.name;
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
});

// no_new_privs has no column: a process without capabilities needs it to set Landlock and seccomp rules, so a job
// without it is never started.
TEST(Matrix, NoJobRunsWithoutNoNewPrivs) {
  auto sandbox = start_sandbox(make_config_without({"no_new_privs"}));
  ASSERT_TRUE(sandbox) << sandbox.error().message;
  const RunResult run_result = run_attempts(**sandbox, make_spec(), "getuid\n");
  EXPECT_EQ(to_string(run_result.outcome.status), "setup_error");
  ASSERT_TRUE(run_result.outcome.setup_error);
  EXPECT_EQ(run_result.outcome.setup_error->error, EPERM);
  EXPECT_EQ(run_result.outcome.setup_error->step, read_landlock_abi() > 0 ? "landlock" : "seccomp");
  EXPECT_TRUE(run_result.results.empty());
}

TEST(Matrix, PageShowsTheTable) {
  const MatrixTable table = read_matrix(kTablePath);
  const std::string page = read_file(kPagePath);
  ASSERT_NE(page.find(kBeginMark), std::string::npos);
  if (should_write_table()) GTEST_SKIP() << "the tests of the columns write the table";
  EXPECT_TRUE(page == render_page(table))
      << "docs/sandbox-matrix.md differs from tests/sandbox/matrix.txt; run the tests with MYCOJOBS_MATRIX_WRITE=1";
}

// The page must explain each row that only one layer refuses.
TEST(Matrix, PageNamesEveryRowThatDependsOnOneLayer) {
  const MatrixTable table = read_matrix(kTablePath);
  const std::string page = read_file(kPagePath);
  const std::size_t begin = page.find("### What rests on one layer");
  ASSERT_NE(begin, std::string::npos);
  const std::string prose = page.substr(begin, page.find(kBeginMark) - begin);
  for (const auto& key : table.row_keys) {
    const std::string row = key.substr(0, key.find(": "));
    const std::string word = row.substr(0, row.find(" pair"));
    for (const auto& column : matrix_columns()) {
      if (column.disabled_steps.size() != 1 || is_denied(table.get_letter(key, column.name))) continue;
      EXPECT_NE(prose.find(word), std::string::npos) << key << " depends only on " << column.name;
      EXPECT_NE(prose.find("**" + column.name + "**"), std::string::npos) << column.name;
    }
  }
}

}  // namespace
}  // namespace mycojobs::test
