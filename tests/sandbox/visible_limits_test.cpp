// Tests the mounts, limits and configuration files that a job sees. Every mount and every limit has an expected value,
// so a missing or weaker setting is detected without an attempt to exploit it.
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
std::map<std::string, MountFlags> make_expected_mounts(bool can_exec, const std::string& read_folder,
                                                       const std::string& written_folder) {
  const MountFlags system = {"ro", "nosuid", "nodev"}, device = {"ro", "nosuid", "noexec"};
  const MountFlags generated = {"ro", "nosuid", "nodev", "noexec"};
  MountFlags writable = {"rw", "nosuid", "nodev", "noexec"};
  if (can_exec) writable.erase("noexec");
  std::map<std::string, MountFlags> expected = {
      {"/", system},         {"/usr", system},           {"/host", system},
      {"/proc", generated},  {"/dev/shm", writable},     {"/tmp", writable},
      {"/job", writable},    {"/etc/passwd", generated}, {"/etc/group", generated},
      {"/etc", system},      {"/dev/null", device},      {"/dev/zero", device},
      {"/dev/full", device}, {"/dev/random", device},    {"/dev/urandom", device},
  };
  for (const char* folder : {"/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32"}) expected[folder] = system;
  if (!read_folder.empty()) {
    expected["/var"] = generated;  // Contains the mount points of granted folders.
    expected[read_folder] = generated;
    expected[written_folder] = {"rw", "nosuid", "nodev", "noexec"};
  }
  return expected;
}

std::string join_flags(const MountFlags& flags) {
  std::string text;
  for (const auto& flag : flags) text += (text.empty() ? "" : ",") + flag;
  return text;
}

// Returns the flags of the longest path that contains the mount point, or nullptr.
const MountFlags* find_expected_flags(const std::map<std::string, MountFlags>& expected,
                                      const std::string& mount_point) {
  const MountFlags* longest_match = nullptr;
  std::size_t longest_size = 0;
  for (const auto& [prefix, flags] : expected) {
    const bool is_match = mount_point == prefix || (prefix != "/" && mount_point.starts_with(prefix + "/"));
    if (is_match && prefix.size() >= longest_size) longest_match = &flags, longest_size = prefix.size();
  }
  return longest_match;
}

void expect_mounts(const RunSpec& spec, const std::map<std::string, MountFlags>& expected) {
  const RunResult run_result = run_attempts(shared_sandbox(), spec, "all_mounts");
  std::istringstream mounts(run_result.get_result("all_mounts"));
  std::map<std::string, std::string> flags_by_mount_point;  // Of the mounts of one path, the last.
  for (std::string mount; std::getline(mounts, mount, '|');) {
    const std::size_t blank = mount.find(' ');
    flags_by_mount_point[mount.substr(0, blank)] = blank == std::string::npos ? "" : mount.substr(blank + 1);
  }
  for (const auto& [mount_point, text] : flags_by_mount_point) {
    const MountFlags flags = parse_mount_flags(text);
    const MountFlags* expected_flags = find_expected_flags(expected, mount_point);
    if (expected_flags == nullptr) {
      ADD_FAILURE() << "a mount without a row: " << mount_point;
      continue;
    }
    // A mount may have more restrictions than its row, because mounts of the host below it keep their own flags.
    EXPECT_TRUE(std::includes(flags.begin(), flags.end(), expected_flags->begin(), expected_flags->end()))
        << mount_point << ' ' << text << ": expected " << join_flags(*expected_flags);
  }
  for (const char* mount_point :
       {"/", "/usr", "/host", "/proc", "/tmp", "/job", "/dev/shm", "/dev/null", "/etc/passwd"})
    EXPECT_TRUE(flags_by_mount_point.contains(mount_point))
        << mount_point << " in " << run_result.get_result("all_mounts");
}

TEST(VisibleMounts, HaveTheirFlags) {
  RunSpec spec = make_spec();
  expect_mounts(spec, make_expected_mounts(false, "", ""));
  spec = make_spec();
  spec.limits.exec = true;
  expect_mounts(spec, make_expected_mounts(true, "", ""));
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
  expect_mounts(spec, make_expected_mounts(false, folder + "/read", folder + "/written"));
  std::filesystem::remove_all(folder);
}

// Programs installed on this host find their configuration, but no files in which an operator may store a secret.
TEST(VisibleFiles, ConfigurationOfProgramsWithoutSecrets) {
  std::string lines;
  std::map<std::string, std::string> expected;
  const auto add_expectation = [&](const std::string& line, const char* result) {
    lines += line + "\n";
    expected[line] = result;
  };
  for (const char* path : {"/etc/fonts/fonts.conf", "/etc/R/ldpaths", "/etc/java-17-openjdk/security/java.security",
                           "/etc/ImageMagick-6/colors.xml"}) {
    const bool is_installed = ::access(path, R_OK) == 0;
    add_expectation("open_read " + std::string(path), is_installed ? "ok" : "ENOENT");
    if (is_installed) add_expectation("open_write " + std::string(path), "denied");
  }
  for (const char* path : {"/etc/R/Renviron.site", "/etc/java-17-openjdk/net.properties",
                           "/etc/java-17-openjdk/management/management.properties", "/etc/php", "/etc/shadow",
                           "/etc/ImageMagick-6/policy.xml"})
    add_expectation("open_read " + std::string(path), "ENOENT");
  const RunResult run_result = run_attempts(lines);
  for (const auto& [line, result] : expected) {
    std::string actual = run_result.get_result(line);
    if (actual == "EACCES" || actual == "EROFS") actual = "denied";  // EACCES is from Landlock, EROFS from the mount.
    EXPECT_EQ(actual, result) << line;
  }
}

struct ExpectedLimit {
  __rlimit_resource resource;
  rlim_t value;
};

// Returns the limits that the sandbox sets. A limit can only be lowered, so a lower hard limit of this process applies.
// All other limits must equal those of this process.
std::map<int, rlim_t> compute_expected_limits(const Limits& limits) {
  const bool has_own_uid = ::geteuid() == 0;
  const ExpectedLimit rows[] = {
      {RLIMIT_NOFILE, limits.open_files},
      {RLIMIT_FSIZE, limits.file_bytes},
      {RLIMIT_CORE, 1},  // A limit of 0 would start the core_pattern program of the host.
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
  const auto expected = compute_expected_limits(spec.limits);
  std::istringstream words(run_result.get_result("all_limits"));
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
  EXPECT_EQ(limit_count, RLIM_NLIMITS) << run_result.get_result("all_limits");
}

}  // namespace
}  // namespace mycojobs::test
