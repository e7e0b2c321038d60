// Mounts, limits and configuration files as a job sees them. Every mount and every limit has a row, so a missing or
// weaker row is detected without an attempt to exploit it.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "fixture.h"

namespace mycojobs::test {
namespace {

using MountFlags = std::set<std::string>;

MountFlags parse_mount_flags(const std::string& text) {
  MountFlags flags;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == "ro" || word == "rw" || word.starts_with("no") || word == "suid" || word == "dev") flags.insert(word);
  }
  flags.erase("noatime");
  flags.erase("nodiratime");
  return flags;
}

// Returns the flags that every mount at or below a path must have. The longest matching path decides.
std::map<std::string, MountFlags> expected_mounts(bool exec, const std::string& read, const std::string& written) {
  const MountFlags system = {"ro", "nosuid", "nodev"}, device = {"ro", "nosuid", "noexec"};
  const MountFlags generated = {"ro", "nosuid", "nodev", "noexec"};
  MountFlags writable = {"rw", "nosuid", "nodev", "noexec"};
  if (exec) writable.erase("noexec");
  std::map<std::string, MountFlags> expected = {
      {"/", system},         {"/usr", system},           {"/host", system},
      {"/proc", generated},  {"/dev/shm", writable},     {"/tmp", writable},
      {"/job", writable},    {"/etc/passwd", generated}, {"/etc/group", generated},
      {"/etc", system},      {"/dev/null", device},      {"/dev/zero", device},
      {"/dev/full", device}, {"/dev/random", device},    {"/dev/urandom", device},
  };
  for (const char* folder : {"/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32"}) expected[folder] = system;
  if (!read.empty()) {
    expected["/var"] = generated;  // contains the mount points of granted folders
    expected[read] = generated;
    expected[written] = {"rw", "nosuid", "nodev", "noexec"};
  }
  return expected;
}

std::string join_flags(const MountFlags& flags) {
  std::string all;
  for (const auto& flag : flags) all += (all.empty() ? "" : ",") + flag;
  return all;
}

// Returns the flags of the longest path that contains the mount point, or nullptr.
const MountFlags* find_expected_flags(const std::map<std::string, MountFlags>& expected,
                                      const std::string& mount_point) {
  const MountFlags* best = nullptr;
  std::size_t best_size = 0;
  for (const auto& [prefix, flags] : expected) {
    const bool matches = mount_point == prefix || (prefix != "/" && mount_point.starts_with(prefix + "/"));
    if (matches && prefix.size() >= best_size) best = &flags, best_size = prefix.size();
  }
  return best;
}

void expect_mounts(const RunSpec& spec, const std::map<std::string, MountFlags>& expected) {
  const RunResult run_result = run_attempts(shared_sandbox(), spec, "all_mounts");
  std::istringstream mounts(run_result.answer("all_mounts"));
  std::map<std::string, std::string> mounted;  // a later mount covers an earlier mount of the same path
  for (std::string mount; std::getline(mounts, mount, '|');) {
    const std::size_t blank = mount.find(' ');
    mounted[mount.substr(0, blank)] = blank == std::string::npos ? "" : mount.substr(blank + 1);
  }
  for (const auto& [mount_point, text] : mounted) {
    const MountFlags flags = parse_mount_flags(text);
    const MountFlags* row = find_expected_flags(expected, mount_point);
    if (row == nullptr) {
      ADD_FAILURE() << "a mount without a row: " << mount_point;
      continue;
    }
    // A mount may have more restrictions than its row, because mounts of the host below it keep their own flags.
    EXPECT_TRUE(std::includes(flags.begin(), flags.end(), row->begin(), row->end()))
        << mount_point << ' ' << text << ": expected " << join_flags(*row);
  }
  for (const char* mount_point :
       {"/", "/usr", "/host", "/proc", "/tmp", "/job", "/dev/shm", "/dev/null", "/etc/passwd"})
    EXPECT_TRUE(mounted.contains(mount_point)) << mount_point << " in " << run_result.answer("all_mounts");
}

TEST(VisibleMounts, HaveTheirFlags) {
  RunSpec spec = make_spec();
  expect_mounts(spec, expected_mounts(false, "", ""));
  spec = make_spec();
  spec.limits.exec = true;
  expect_mounts(spec, expected_mounts(true, "", ""));
}

TEST(VisibleMounts, GrantedFoldersHaveTheirFlags) {
  char path[] = "/var/tmp/mycojobs-test-XXXXXX";
  const std::string folder = ::mkdtemp(path);
  ::chmod(path, 0755);
  for (const char* name : {"/read", "/written"}) {
    std::filesystem::create_directory(folder + name);
    ::chmod((folder + name).c_str(), 0777);
  }
  RunSpec spec = make_spec();
  spec.grants.fs_read = {folder + "/read"};
  spec.grants.fs_write = {folder + "/written"};
  expect_mounts(spec, expected_mounts(false, folder + "/read", folder + "/written"));
  std::filesystem::remove_all(folder);
}

// Programs installed on this host find their configuration, but no files in which an operator may store a secret.
TEST(VisibleFiles, ConfigurationOfProgramsWithoutSecrets) {
  std::string lines;
  std::map<std::string, std::string> expected;
  const auto expect = [&](const std::string& line, const char* result) {
    lines += line + "\n";
    expected[line] = result;
  };
  for (const char* path : {"/etc/fonts/fonts.conf", "/etc/R/ldpaths", "/etc/java-17-openjdk/security/java.security",
                           "/etc/ImageMagick-6/colors.xml"}) {
    const bool installed = ::access(path, R_OK) == 0;
    expect("open_read " + std::string(path), installed ? "ok" : "ENOENT");
    if (installed) expect("open_write " + std::string(path), "denied");
  }
  for (const char* path : {"/etc/R/Renviron.site", "/etc/java-17-openjdk/net.properties",
                           "/etc/java-17-openjdk/management/management.properties", "/etc/php", "/etc/shadow",
                           "/etc/ImageMagick-6/policy.xml"})
    expect("open_read " + std::string(path), "ENOENT");
  const RunResult run_result = run_attempts(lines);
  for (const auto& [line, result] : expected) {
    std::string answer = run_result.answer(line);
    if (answer == "EACCES" || answer == "EROFS") answer = "denied";  // by Landlock, or by the mount
    EXPECT_EQ(answer, result) << line;
  }
}

struct ExpectedLimit {
  __rlimit_resource resource;
  rlim_t value;
};

// Returns the limits that the sandbox sets. A limit can only be lowered, so a lower hard limit of this process applies.
// All other limits must equal those of this process.
std::map<int, rlim_t> expected_limits(const Limits& limits) {
  const bool has_own_uid = ::geteuid() == 0;
  const ExpectedLimit rows[] = {
      {RLIMIT_NOFILE, limits.open_files},
      {RLIMIT_FSIZE, limits.file_bytes},
      {RLIMIT_CORE, 1},  // 0 would start the host's core_pattern program
      {RLIMIT_MEMLOCK, 0},
      {__RLIMIT_MSGQUEUE, 0},
      {__RLIMIT_SIGPENDING, 1024},
      {RLIMIT_STACK, 8U << 20},
      {__RLIMIT_NICE, 0},
      {__RLIMIT_RTPRIO, 0},
      {__RLIMIT_NPROC, has_own_uid ? limits.pids + 2 : 4096},
      {RLIMIT_DATA, can_limit_by_cgroup() ? RLIM_INFINITY : limits.memory_bytes},
  };
  std::map<int, rlim_t> expected;
  for (const ExpectedLimit& row : rows) {
    rlimit own_limit{};
    ::getrlimit(row.resource, &own_limit);
    expected[row.resource] = std::min(row.value, own_limit.rlim_max);
  }
  return expected;
}

TEST(VisibleLimits, AreThoseOfTheRun) {
  RunSpec spec = make_spec();
  spec.limits.open_files = 77;
  spec.limits.file_bytes = 5U << 20;
  spec.limits.pids = 33;
  const RunResult run_result = run_attempts(shared_sandbox(), spec, "all_limits");
  const auto expected = expected_limits(spec.limits);
  std::istringstream words(run_result.answer("all_limits"));
  int limit_count = 0;
  for (std::string word; words >> word; ++limit_count) {
    const int resource = std::stoi(word);
    const std::string value = word.substr(word.find('=') + 1);
    rlimit own_limit{};
    ::getrlimit(static_cast<__rlimit_resource>(resource), &own_limit);
    const auto row = expected.find(resource);
    const rlim_t soft = row == expected.end() ? own_limit.rlim_cur : row->second;
    const rlim_t hard = row == expected.end() ? own_limit.rlim_max : row->second;
    EXPECT_EQ(value, std::to_string(soft) + ":" + std::to_string(hard)) << "resource " << resource;
  }
  EXPECT_EQ(limit_count, RLIM_NLIMITS) << run_result.answer("all_limits");
}

}  // namespace
}  // namespace mycojobs::test
