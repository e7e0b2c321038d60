// Random calls inside a job for a limited time must have no effect outside the job.
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <random>
#include <sstream>

#include "fixture.h"

namespace mycojobs::test {
namespace {

namespace fs = std::filesystem;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns names, types, owners, modes, sizes, modification times and contents of all files below `root`.
std::string describe_tree(const fs::path& root) {
  std::vector<std::string> lines;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    struct stat info {};
    ::lstat(entry.path().c_str(), &info);
    std::ostringstream line;
    line << entry.path() << ' ' << info.st_mode << ' ' << info.st_uid << ' ' << info.st_gid << ' ' << info.st_size
         << ' ' << info.st_ctim.tv_sec << '.' << info.st_ctim.tv_nsec << ' ';
    if (S_ISREG(info.st_mode)) line << std::hash<std::string>{}(contents(entry.path()));
    lines.push_back(line.str());
  }
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const auto& line : lines) all += line + "\n";
  return all;
}

// Returns state of the host that no job may change.
std::string state_of_host(const fs::path& guarded) {
  utsname names{};
  ::uname(&names);
  std::string state = describe_tree(guarded) + names.nodename + names.domainname;
  for (const char* file : {"/proc/self/mountinfo", "/proc/self/uid_map", "/proc/self/limits", "/proc/self/cgroup",
                           "/proc/self/oom_score_adj", "/proc/self/coredump_filter", "/proc/sys/kernel/core_pattern",
                           "/proc/sys/kernel/hostname", "/proc/sys/user/max_user_namespaces", "/proc/swaps",
                           "/proc/modules", "/etc/passwd", "/etc/hosts", "/dev/null"}) {
    state += std::string(file) + ": " + contents(file);
  }
  for (const char* file : {"/", "/etc", "/usr", "/usr/bin", "/usr/lib", "/etc/passwd", "/dev/null", "/dev/urandom"}) {
    struct stat info {};
    ::lstat(file, &info);
    state += std::string(file) + " " + std::to_string(info.st_mode) + " " + std::to_string(info.st_uid) + " " +
             std::to_string(info.st_ctim.tv_sec) + "\n";
  }
  return state;
}

// SZ45
TEST(Fuzz, RandomCallsOfJobsChangeNothingOutside) {
  const char* text = std::getenv("MYCOJOBS_FUZZ_SECONDS");
  const char* chosen = std::getenv("MYCOJOBS_FUZZ_SEED");
  const std::uint64_t seconds = text == nullptr ? 10 : std::strtoull(text, nullptr, 10);
  const std::uint64_t seed = chosen == nullptr ? std::random_device{}() : std::strtoull(chosen, nullptr, 10);
  std::cout << "MYCOJOBS_FUZZ_SEED=" << seed << std::endl;
  char guarded[] = "/tmp/mycojobs-guarded-XXXXXX";
  ASSERT_NE(::mkdtemp(guarded), nullptr);
  ::chmod(guarded, 0777);
  for (int i = 0; i < 20; ++i) {
    const fs::path path = fs::path(guarded) / ("file" + std::to_string(i));
    std::ofstream(path) << "guarded " << i;
    fs::permissions(path, fs::perms(0666));
  }
  OwnSandbox own = own_sandbox();
  EXPECT_EQ(to_string(run_attempts(*own.sandbox, spec_with(), "getpid").outcome.status), "ok");
  EXPECT_TRUE(eventually([&] { return find_children(own.launcher).size() == 1; }));
  const std::string before = state_of_host(guarded);
  const auto zygotes = find_children(own.launcher);
  const std::size_t groups = count_groups(own.launcher);
  const std::uint64_t deadline = now_boot_ms() + seconds * 1000;
  std::map<std::string, int> ends;
  for (std::uint64_t round = 0; now_boot_ms() < deadline; ++round) {
    RunSpec spec = spec_with(1500);
    spec.limits.exec = round % 2 == 0;
    const std::string line = "fuzz " + std::to_string(seed % 1000000000 + round) + " 150";
    const RunResult result = run_attempts(*own.sandbox, spec, line);
    const std::string status(to_string(result.outcome.status));
    ++ends[status == "violation" ? status : status + " " + result.outcome.reason];
    const bool fits = status != "lost" && status != "unkillable" && status != "setup_error" && own.sandbox->alive();
    EXPECT_TRUE(fits) << line << (spec.limits.exec ? " with exec: " : ": ") << result.outcome.reason;
    if (!fits) break;
  }
  for (const auto& [status, count] : ends) std::cout << status << ' ' << count << std::endl;
  EXPECT_EQ(state_of_host(guarded), before);
  EXPECT_EQ(find_children(own.launcher), zygotes);
  // Only idle sandboxes remain: each has an init, a job, and a group in each hierarchy.
  EXPECT_TRUE(eventually([&] { return find_descendants(own.launcher).size() <= zygotes.size() + 2 * own.prewarmed; }));
  EXPECT_TRUE(eventually([&] { return count_groups(own.launcher) <= groups + 2 * own.prewarmed; }));
  EXPECT_FALSE(is_reaped(own.launcher));
  EXPECT_EQ(to_string(run_attempts(*own.sandbox, spec_with(), "getpid").outcome.status), "ok");
  fs::remove_all(guarded);
}

}  // namespace
}  // namespace mycojobs::test
