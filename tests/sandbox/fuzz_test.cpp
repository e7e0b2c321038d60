// Random system calls of a job must have no effect outside the job.
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>

#include "fixture.h"
#include "support/test_settings.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

// Returns names, types, owners, modes, sizes, change times and contents of all files below `root`.
std::string describe_tree(const fs::path& root) {
  std::vector<std::string> lines;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    struct stat info {};
    ::lstat(entry.path().c_str(), &info);
    std::ostringstream line;
    line << entry.path() << ' ' << info.st_mode << ' ' << info.st_uid << ' ' << info.st_gid << ' ' << info.st_size
         << ' ' << info.st_ctim.tv_sec << '.' << info.st_ctim.tv_nsec << ' ';
    if (S_ISREG(info.st_mode)) line << std::hash<std::string>{}(read_file(entry.path()));
    lines.push_back(line.str());
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

// Returns the state of the host that no job may change.
std::string describe_host(const fs::path& guarded_folder) {
  utsname names{};
  ::uname(&names);
  std::string state = describe_tree(guarded_folder) + names.nodename + names.domainname;
  for (const char* file : {"/proc/self/mountinfo", "/proc/self/uid_map", "/proc/self/limits", "/proc/self/cgroup",
                           "/proc/self/oom_score_adj", "/proc/self/coredump_filter", "/proc/sys/kernel/core_pattern",
                           "/proc/sys/kernel/hostname", "/proc/sys/user/max_user_namespaces", "/proc/swaps",
                           "/proc/modules", "/etc/passwd", "/etc/hosts", "/dev/null"}) {
    state += std::string(file) + ": " + read_file(file);
  }
  for (const char* file : {"/", "/etc", "/usr", "/usr/bin", "/usr/lib", "/etc/passwd", "/dev/null", "/dev/urandom"}) {
    struct stat info {};
    ::lstat(file, &info);
    state += std::string(file) + " " + std::to_string(info.st_mode) + " " + std::to_string(info.st_uid) + " " +
             std::to_string(info.st_ctim.tv_sec) + "\n";
  }
  return state;
}

// Requirement SZ45 (rows.txt): random calls of jobs change nothing outside of the job. MYCOJOBS_FUZZ_SECONDS sets the
// duration. MYCOJOBS_FUZZ_SEED repeats a run with the seed that it printed.
TEST(Fuzz, RandomCallsOfJobsChangeNothingOutside) {
  const std::uint64_t seconds = read_setting("MYCOJOBS_FUZZ_SECONDS", 10);
  const std::uint64_t seed = choose_seed("MYCOJOBS_FUZZ_SEED");
  char guarded_folder[] = "/tmp/mycojobs-guarded-XXXXXX";
  ASSERT_NE(::mkdtemp(guarded_folder), nullptr);
  ::chmod(guarded_folder, 0777);
  for (int i = 0; i < 20; ++i) {
    const fs::path path = fs::path(guarded_folder) / ("file" + std::to_string(i));
    std::ofstream(path) << "guarded " << i;
    fs::permissions(path, fs::perms(0666));
  }
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome.status), "ok");
  EXPECT_TRUE(eventually([&] { return find_children(dedicated_sandbox.launcher).size() == 1; }));
  const std::string initial_state = describe_host(guarded_folder);
  const auto initial_zygotes = find_children(dedicated_sandbox.launcher);
  const std::size_t initial_cgroup_count = count_cgroups(dedicated_sandbox.launcher);
  const std::uint64_t deadline = now_boot_ms() + seconds * 1000;
  std::map<std::string, int> status_counts;
  for (std::uint64_t run_index = 0; now_boot_ms() < deadline; ++run_index) {
    RunSpec spec = make_spec(1500);
    spec.limits.exec = run_index % 2 == 0;
    const std::string line = "fuzz " + std::to_string(seed % 1000000000 + run_index) + " 150";
    const RunResult result = run_attempts(*dedicated_sandbox.sandbox, spec, line);
    const std::string status(to_string(result.outcome.status));
    ++status_counts[status == "violation" ? status : status + " " + result.outcome.reason];
    const bool is_expected =
        status != "lost" && status != "unkillable" && status != "setup_error" && dedicated_sandbox.sandbox->alive();
    EXPECT_TRUE(is_expected) << line << (spec.limits.exec ? " with exec: " : ": ") << result.outcome.reason;
    if (!is_expected) break;
  }
  for (const auto& [status, count] : status_counts) std::cout << status << ' ' << count << std::endl;
  EXPECT_EQ(describe_host(guarded_folder), initial_state);
  EXPECT_EQ(find_children(dedicated_sandbox.launcher), initial_zygotes);
  // Only idle sandboxes may remain. Each has an init process, a job process, and a cgroup in each hierarchy.
  EXPECT_TRUE(eventually([&] {
    return find_descendants(dedicated_sandbox.launcher).size() <=
           initial_zygotes.size() + 2 * dedicated_sandbox.max_prewarmed;
  }));
  EXPECT_TRUE(eventually([&] {
    return count_cgroups(dedicated_sandbox.launcher) <= initial_cgroup_count + 2 * dedicated_sandbox.max_prewarmed;
  }));
  EXPECT_FALSE(is_reaped(dedicated_sandbox.launcher));
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome.status), "ok");
  fs::remove_all(guarded_folder);
}

}  // namespace
}  // namespace mycojobs::test
