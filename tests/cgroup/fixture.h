// Groups with real processes. A user without the right to create groups (an unprivileged user without delegation) gets
// none and an error; the launcher then refuses to start.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sandbox/cgroup.h"

namespace mycojobs::sandbox {

inline constexpr std::uint64_t kMebi = 1 << 20;

inline Limits make_limits(std::uint64_t memory_bytes, std::uint32_t pids) {
  Limits limits;
  limits.memory_bytes = memory_bytes;
  limits.pids = pids;
  return limits;
}

inline int touch(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return errno;
  std::memset(memory, 1, bytes);
  return 0;
}

// Starts a child in the group that runs `deed`. The exit code of the child is the value of `deed`.
inline pid_t start_in(const std::vector<Fd>& joins, const std::function<int()>& deed) {
  int joined[2];
  if (::pipe(joined) != 0) return -1;
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (const Fd& join : joins) {
      if (::write(join.get(), "0", 1) != 1) ::_exit(99);
    }
    ::close(joined[0]);
    ::close(joined[1]);
    ::_exit(deed());
  }
  ::close(joined[1]);
  char nothing = 0;
  (void)!::read(joined[0], &nothing, 1);
  ::close(joined[0]);
  return pid;
}

inline int wait_status(pid_t pid) {
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid ? status : -1;
}

inline bool killed(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
inline bool ended_with(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

// Returns how many more processes this process may have, up to 20.
inline int forks_until_refused() {
  for (int made = 0; made < 20; ++made) {
    const pid_t pid = ::fork();
    if (pid < 0) return made;
    if (pid == 0) {
      ::pause();
      ::_exit(0);
    }
  }
  return 20;
}

inline bool has_group(const std::string& name) {
  for (const auto& place : find_cgroups()) {
    if (std::filesystem::exists(place.path + "/" + name)) return true;
  }
  return false;
}

class CgroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    groups_ = std::make_unique<Cgroups>();
    groups_->open();
    if (::geteuid() == 0) {
      ASSERT_TRUE(groups_->has_memory() && groups_->has_pids()) << "root may make groups here, or the host has none";
    }
  }
  bool may() const { return groups_->has_memory() && groups_->has_pids(); }
  std::vector<Fd> make(std::uint64_t run, std::uint64_t memory_bytes, std::uint32_t pids) {
    auto joins = groups_->make(run, make_limits(memory_bytes, pids));
    EXPECT_TRUE(joins) << joins.error().message;
    return joins ? std::move(*joins) : std::vector<Fd>();
  }
  std::unique_ptr<Cgroups> groups_;
};

}  // namespace mycojobs::sandbox
