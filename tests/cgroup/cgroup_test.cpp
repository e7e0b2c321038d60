// Groups with real processes in them. Whoever may make no groups (an ordinary user without delegation) gets none and is
// told so; the rest is then the launcher's to refuse.
#include "sandbox/cgroup.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace mycojobs::sandbox {
namespace {

constexpr std::uint64_t kMebi = 1 << 20;

Limits limits_of(std::uint64_t memory_bytes, std::uint32_t pids) {
  Limits limits;
  limits.memory_bytes = memory_bytes;
  limits.pids = pids;
  return limits;
}

int touch(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return errno;
  std::memset(memory, 1, bytes);
  return 0;
}

// A child that is in the group and runs `deed`; its exit code is what that answers.
pid_t start_in(const std::vector<Fd>& joins, const std::function<int()>& deed) {
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

int wait_status(pid_t pid) {
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid ? status : -1;
}

bool killed(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
bool ended_with(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

// How many more processes this one may have, up to 20.
int forks_until_refused() {
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

bool any_group_of(const std::string& name) {
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
    auto joins = groups_->make(run, limits_of(memory_bytes, pids));
    EXPECT_TRUE(joins) << joins.error().message;
    return joins ? std::move(*joins) : std::vector<Fd>();
  }
  std::unique_ptr<Cgroups> groups_;
};

TEST_F(CgroupTest, WithoutGroupsThereIsNothingToJoin) {
  Cgroups none;
  none.open({});
  EXPECT_FALSE(none.has_memory() || none.has_pids() || none.must_sample());
  auto joins = none.make(1, Limits{});
  ASSERT_TRUE(joins);
  EXPECT_TRUE(joins->empty());
  EXPECT_TRUE(none.set_limits(1, kMebi, 1));
  EXPECT_EQ(none.usage(1).memory_peak, 0U);
}

TEST_F(CgroupTest, CountsWhatARunUsesAndLeavesNothing) {
  if (!may()) return;
  const auto joins = make(1, 128 * kMebi, 64);
  EXPECT_TRUE(ended_with(wait_status(start_in(joins, [] { return touch(48 * kMebi); })), 0));
  const RunUsage usage = groups_->usage(1);
  EXPECT_GE(usage.memory_peak, 48 * kMebi);
  EXPECT_LT(usage.memory_peak, 128 * kMebi);
  EXPECT_EQ(usage.oom_kills, 0U);
  EXPECT_EQ(usage.pids_max_hits, 0U);
  groups_->remove(1);
  EXPECT_FALSE(any_group_of(own_group_name() + "/1"));
  EXPECT_EQ(groups_->usage(1).memory_peak, 0U);  // SX8: nothing of it is left to be added to another's
}

TEST_F(CgroupTest, CpuIsCountedWhereAHierarchyOfVersion2Is) {
  if (!may()) return;
  const auto joins = make(1, 64 * kMebi, 4);
  EXPECT_EQ(wait_status(start_in(joins, [] { return touch(32 * kMebi); })), 0);
  const RunUsage usage = groups_->usage(1);
  EXPECT_NEAR(static_cast<double>(groups_->cpu_us(1)), static_cast<double>(usage.user_us + usage.system_us), 2.0);
  groups_->remove(1);
  EXPECT_EQ(groups_->cpu_us(1), 0U);
}

// As init and the job that waits in a slot, after runs that had some processes more.
TEST_F(CgroupTest, PeakOfProcessesBeginsAnewWhileSomeGoOnWaiting) {
  if (!may()) return;
  const auto joins = make(1, 64 * kMebi, 4);
  int said[2], go[2];
  ASSERT_EQ(::pipe(said), 0);
  ASSERT_EQ(::pipe(go), 0);
  const pid_t init = start_in(joins, [&] {
    std::vector<pid_t> waiting;
    const auto add = [&] {
      waiting.push_back(::fork());
      if (waiting.back() == 0) ::pause();
    };
    char byte = 0;
    for (const int children : {3, 1, 2}) {
      for (int i = 0; i < children; ++i) add();
      for (const pid_t pid : std::exchange(waiting, {})) ::kill(pid, SIGKILL), wait_status(pid);
      add();  // the next job
      (void)!::write(said[1], "x", 1);
      (void)!::read(go[0], &byte, 1);
    }
    return forks_until_refused();
  });
  char byte = 0;
  for (const std::uint32_t peak : {3U, 2U, 3U}) {
    ASSERT_EQ(::read(said[0], &byte, 1), 1);
    const auto usage = groups_->turn_over(1, Limits{}, 2);
    if (!usage) return;  // this kernel does not let them begin anew
    EXPECT_EQ(usage->pids_peak, peak);
    ASSERT_EQ(::write(go[1], "x", 1), 1);
  }
  EXPECT_TRUE(ended_with(wait_status(init), 3));  // the limit is in force, for all of them
  EXPECT_EQ(groups_->usage(1).pids_max_hits, 1U);
  // Those that were waiting are killed by the first, and leave a moment later.
  for (int i = 0; i < 500 && any_group_of(own_group_name() + "/1"); ++i) groups_->remove(1), ::usleep(10000);
  EXPECT_FALSE(any_group_of(own_group_name() + "/1"));
}

// SQ1
TEST_F(CgroupTest, ForksOverTheLimitAreRefusedAndCounted) {
  if (!may()) return;
  const auto joins = make(1, 64 * kMebi, 4);
  const int status = wait_status(start_in(joins, forks_until_refused));
  EXPECT_TRUE(ended_with(status, 4)) << status;  // and the one that forks, as init would
  const RunUsage usage = groups_->usage(1);
  EXPECT_EQ(usage.pids_max_hits, 1U);
  EXPECT_EQ(usage.pids_peak, 4U);
  groups_->remove(1);  // with those that still wait
  groups_->remove(1);
}

// SQ3
TEST_F(CgroupTest, TheKernelsKillIsToldApartFromAnyOther) {
  if (!may()) return;
  const auto small = make(1, 16 * kMebi, 8);
  EXPECT_TRUE(killed(wait_status(start_in(small, [] { return touch(64 * kMebi); }))));
  EXPECT_GE(groups_->usage(1).oom_kills, 1U);
  for (const auto& place : find_cgroups()) {
    if (place.version == 2 && place.memory) {
      EXPECT_GE(groups_->usage(1).memory_max_hits, 1U);
    }
  }
  const auto other = make(2, 16 * kMebi, 8);
  const pid_t sleeper = start_in(other, [] { return ::pause(); });
  ::kill(sleeper, SIGKILL);
  EXPECT_TRUE(killed(wait_status(sleeper)));
  EXPECT_EQ(groups_->usage(2).oom_kills, 0U);
  groups_->remove(1);
  groups_->remove(2);
}

TEST_F(CgroupTest, LimitsOfAGroupCanBeChangedBothWays) {
  if (!may()) return;
  const auto joins = make(1, 16 * kMebi, 8);
  const auto raised = groups_->set_limits(1, 128 * kMebi, 2);
  ASSERT_TRUE(raised) << raised.error().message;
  EXPECT_TRUE(ended_with(wait_status(start_in(joins, [] { return touch(64 * kMebi); })), 0));
  const auto lowered = groups_->set_limits(1, 16 * kMebi, 3);
  ASSERT_TRUE(lowered) << lowered.error().message;
  EXPECT_TRUE(killed(wait_status(start_in(joins, [] { return touch(64 * kMebi); }))));
  EXPECT_TRUE(ended_with(wait_status(start_in(joins, forks_until_refused)), 3));
  groups_->remove(1);
  const auto gone = groups_->set_limits(7, 16 * kMebi, 3);
  ASSERT_FALSE(gone);
  EXPECT_NE(gone.error().message.find("/7/"), std::string::npos) << gone.error().message;
}

// SX7
TEST_F(CgroupTest, NoProcessOutlivesTheGroup) {
  if (!may()) return;
  const auto joins = make(1, 64 * kMebi, 8);
  const pid_t sleeper = start_in(joins, [] { return ::pause(); });
  groups_->remove(1);
  EXPECT_TRUE(killed(wait_status(sleeper)));
  (void)make(2, 64 * kMebi, 8);  // takes the first one's burial along
  EXPECT_FALSE(any_group_of(own_group_name() + "/1"));
  groups_->remove(2);
}

// SX11
TEST_F(CgroupTest, WhatADeadLauncherLeftIsKilledAndRemoved) {
  if (!may()) return;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    auto* groups = new Cgroups();  // never taken down
    groups->open();
    const auto joins = groups->make(1, limits_of(64 * kMebi, 8));
    const pid_t orphan = joins ? start_in(*joins, [] { return ::pause(); }) : -1;
    char name[256] = {};
    std::snprintf(name, sizeof name, "%d %s", orphan, own_group_name().c_str());
    (void)!::write(pipe[1], name, sizeof name);
    ::_exit(0);
  }
  char text[256] = {};
  ASSERT_EQ(::read(pipe[0], text, sizeof text), static_cast<ssize_t>(sizeof text));
  EXPECT_TRUE(ended_with(wait_status(launcher), 0));
  ::close(pipe[0]);
  ::close(pipe[1]);
  pid_t orphan = -1;
  char name[200] = {};
  ASSERT_EQ(std::sscanf(text, "%d %199s", &orphan, name), 2);
  ASSERT_GT(orphan, 1);
  ASSERT_TRUE(any_group_of(name));
  Cgroups next;
  next.open();
  EXPECT_FALSE(any_group_of(name));
  for (int i = 0; i < 2000 && ::kill(orphan, 0) == 0; ++i) ::usleep(5000);  // until whoever inherited it has reaped it
  EXPECT_NE(::kill(orphan, 0), 0);
  EXPECT_TRUE(any_group_of(own_group_name()));  // that of the living is left alone
}

TEST_F(CgroupTest, WhereTheKernelKeepsNoPeaksTheyAreSampled) {
  if (!may()) return;
  groups_.reset();
  auto places = find_cgroups();
  bool version_2 = true;
  for (auto& place : places) {
    place.peaks = false;
    version_2 = version_2 && place.version == 2;
  }
  Cgroups sampling;
  sampling.open(places);
  EXPECT_TRUE(sampling.must_sample());
  auto joins = sampling.make(1, limits_of(64 * kMebi, 8));
  ASSERT_TRUE(joins) << joins.error().message;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = start_in(*joins, [&] {
    const int error = touch(20 * kMebi);
    const pid_t second = ::fork();
    if (second == 0) return ::pause();
    (void)!::write(pipe[1], "x", 1);
    ::pause();
    return error;
  });
  char ready = 0;
  ASSERT_EQ(::read(pipe[0], &ready, 1), 1);
  sampling.sample();
  sampling.remove(99);  // another's: changes nothing
  const RunUsage usage = sampling.usage(1);
  EXPECT_EQ(usage.pids_peak, 1U);
  EXPECT_GE(usage.memory_peak, 20 * kMebi);  // version 1 has always kept this one
  sampling.remove(1);
  EXPECT_TRUE(killed(wait_status(child)));
  ::close(pipe[0]);
  ::close(pipe[1]);
  for (int tries = 0; tries < 2000 && sampling.usage(1).pids_peak != 0; ++tries) {
    ::usleep(1000);
    sampling.remove(99);  // looks again for what could not be removed at once
  }
  EXPECT_EQ(sampling.usage(1).pids_peak, 0U);
}

TEST(CgroupNames, TellWhoseTheyAre) {
  EXPECT_FALSE(left_by_dead_launcher(own_group_name()));
  std::string later = own_group_name();
  later.back() = later.back() == '1' ? '2' : '1';  // our pid, another start
  EXPECT_TRUE(left_by_dead_launcher(later));
  for (const char* other : {"", "system.slice", "mycojobs-self", "mycojobs-1-2", "mycojobs-1-1-1"}) {
    EXPECT_FALSE(left_by_dead_launcher(other)) << other;  // nobody's, or of another pid namespace
  }
}

}  // namespace
}  // namespace mycojobs::sandbox
