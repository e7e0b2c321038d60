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

// Starts a child in the group that runs `work`. The exit code of the child is the value of `work`.
inline pid_t start_child_in(const std::vector<Fd>& joins, const std::function<int()>& work) {
  int join_pipe[2];
  if (::pipe(join_pipe) != 0) return -1;
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (const Fd& join : joins) {
      if (::write(join.get(), "0", 1) != 1) ::_exit(99);
    }
    ::close(join_pipe[0]);
    ::close(join_pipe[1]);
    ::_exit(work());
  }
  ::close(join_pipe[1]);
  char byte = 0;
  (void)!::read(join_pipe[0], &byte, 1);
  ::close(join_pipe[0]);
  return pid;
}

inline int wait_status(pid_t pid) {
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid ? status : -1;
}

inline bool was_killed(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
inline bool has_exit_code(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

// Returns how many more processes this process may have, up to 20.
inline int count_possible_forks() {
  for (int count = 0; count < 20; ++count) {
    const pid_t pid = ::fork();
    if (pid < 0) return count;
    if (pid == 0) {
      ::pause();
      ::_exit(0);
    }
  }
  return 20;
}

inline bool has_group(const std::string& name) {
  for (const auto& cgroup : find_cgroups()) {
    if (std::filesystem::exists(cgroup.path + "/" + name)) return true;
  }
  return false;
}

class CgroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    groups_ = std::make_unique<Cgroups>();
    groups_->open();
    if (::geteuid() == 0) {
      ASSERT_TRUE(groups_->has_memory() && groups_->has_pids()) << "root can create groups, unless the host has none";
    }
  }
  bool can_limit() const { return groups_->has_memory() && groups_->has_pids(); }
  std::vector<Fd> make(std::uint64_t run, std::uint64_t memory_bytes, std::uint32_t pids) {
    auto joins = groups_->create_run_group(run, make_limits(memory_bytes, pids));
    EXPECT_TRUE(joins) << joins.error().message;
    return joins ? std::move(*joins) : std::vector<Fd>();
  }
  std::unique_ptr<Cgroups> groups_;
};

}  // namespace mycojobs::sandbox
