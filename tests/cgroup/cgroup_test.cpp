// Groups that serve a single run.
#include <cstdio>

#include "fixture.h"

namespace mycojobs::sandbox {
namespace {

TEST_F(CgroupTest, WithoutCgroupsThereIsNothingToJoin) {
  Cgroups none;
  none.open({});
  EXPECT_FALSE(none.has_memory() || none.has_pids() || none.must_sample());
  auto joins = none.create_run_group(1, Limits{});
  ASSERT_TRUE(joins);
  EXPECT_TRUE(joins->empty());
  EXPECT_TRUE(none.set_limits(1, kMebi, 1));
  EXPECT_EQ(none.read_usage(1).memory_peak_bytes, 0U);
}

TEST_F(CgroupTest, CountsUsageAndLeavesNothing) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const auto joins = make(1, 128 * kMebi, 64);
  EXPECT_TRUE(has_exit_code(wait_status(start_child_in(joins, [] { return touch(48 * kMebi); })), 0));
  const RunUsage usage = groups_->read_usage(1);
  EXPECT_GE(usage.memory_peak_bytes, 48 * kMebi);
  EXPECT_LT(usage.memory_peak_bytes, 128 * kMebi);
  EXPECT_EQ(usage.oom_kills, 0U);
  EXPECT_EQ(usage.pids_max_hits, 0U);
  groups_->remove_run_group(1);
  EXPECT_FALSE(has_group(launcher_group_name() + "/1"));
  EXPECT_EQ(groups_->read_usage(1).memory_peak_bytes, 0U);  // SX8: no usage remains that could be added to another run
}

TEST_F(CgroupTest, CpuIsCountedInAVersion2Hierarchy) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const auto joins = make(1, 64 * kMebi, 4);
  EXPECT_EQ(wait_status(start_child_in(joins, [] { return touch(32 * kMebi); })), 0);
  const RunUsage usage = groups_->read_usage(1);
  EXPECT_NEAR(static_cast<double>(groups_->read_cpu_us(1)), static_cast<double>(usage.user_us + usage.system_us), 2.0);
  groups_->remove_run_group(1);
  EXPECT_EQ(groups_->read_cpu_us(1), 0U);
}

// SQ1
TEST_F(CgroupTest, ForksOverTheLimitAreRefusedAndCounted) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const auto joins = make(1, 64 * kMebi, 4);
  const int status = wait_status(start_child_in(joins, count_possible_forks));
  EXPECT_TRUE(has_exit_code(status, 4)) << status;  // the forking process itself counts, as init does
  const RunUsage usage = groups_->read_usage(1);
  EXPECT_EQ(usage.pids_max_hits, 1U);
  EXPECT_EQ(usage.pids_peak, 4U);
  groups_->remove_run_group(1);  // also kills the processes that still wait
  groups_->remove_run_group(1);
}

// SQ3
TEST_F(CgroupTest, OomKillIsDistinguishedFromOtherKills) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const auto small = make(1, 16 * kMebi, 8);
  EXPECT_TRUE(was_killed(wait_status(start_child_in(small, [] { return touch(64 * kMebi); }))));
  EXPECT_GE(groups_->read_usage(1).oom_kills, 1U);
  for (const auto& place : find_cgroups()) {
    if (place.version == 2 && place.has_memory) {
      EXPECT_GE(groups_->read_usage(1).memory_max_hits, 1U);
    }
  }
  const auto other = make(2, 16 * kMebi, 8);
  const pid_t sleeper = start_child_in(other, [] { return ::pause(); });
  ASSERT_GT(sleeper, 0);
  ::kill(sleeper, SIGKILL);
  EXPECT_TRUE(was_killed(wait_status(sleeper)));
  EXPECT_EQ(groups_->read_usage(2).oom_kills, 0U);
  groups_->remove_run_group(1);
  groups_->remove_run_group(2);
}

TEST_F(CgroupTest, LimitsOfAGroupCanBeChangedBothWays) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const auto joins = make(1, 16 * kMebi, 8);
  const auto raised = groups_->set_limits(1, 128 * kMebi, 2);
  ASSERT_TRUE(raised) << raised.error().message;
  EXPECT_TRUE(has_exit_code(wait_status(start_child_in(joins, [] { return touch(64 * kMebi); })), 0));
  const auto lowered = groups_->set_limits(1, 16 * kMebi, 3);
  ASSERT_TRUE(lowered) << lowered.error().message;
  EXPECT_TRUE(was_killed(wait_status(start_child_in(joins, [] { return touch(64 * kMebi); }))));
  EXPECT_TRUE(has_exit_code(wait_status(start_child_in(joins, count_possible_forks)), 3));
  groups_->remove_run_group(1);
  const auto unknown_group = groups_->set_limits(7, 16 * kMebi, 3);
  ASSERT_FALSE(unknown_group);
  EXPECT_NE(unknown_group.error().message.find("/7/"), std::string::npos) << unknown_group.error().message;
}

// SX7
TEST_F(CgroupTest, NoProcessSurvivesTheGroup) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const auto joins = make(1, 64 * kMebi, 8);
  const pid_t sleeper = start_child_in(joins, [] { return ::pause(); });
  groups_->remove_run_group(1);
  EXPECT_TRUE(was_killed(wait_status(sleeper)));
  (void)make(2, 64 * kMebi, 8);  // also removes the first group
  EXPECT_FALSE(has_group(launcher_group_name() + "/1"));
  groups_->remove_run_group(2);
}

// SX11
TEST_F(CgroupTest, LeftoversOfADeadLauncherAreRemoved) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    auto* groups = new Cgroups();  // not destroyed, as after a crash
    groups->open();
    const auto joins = groups->create_run_group(1, make_limits(64 * kMebi, 8));
    const pid_t orphan = joins ? start_child_in(*joins, [] { return ::pause(); }) : -1;
    char name[256] = {};
    std::snprintf(name, sizeof name, "%d %s", orphan, launcher_group_name().c_str());
    (void)!::write(pipe[1], name, sizeof name);
    ::_exit(0);
  }
  char text[256] = {};
  ASSERT_EQ(::read(pipe[0], text, sizeof text), static_cast<ssize_t>(sizeof text));
  EXPECT_TRUE(has_exit_code(wait_status(launcher), 0));
  ::close(pipe[0]);
  ::close(pipe[1]);
  pid_t orphan = -1;
  char name[200] = {};
  ASSERT_EQ(std::sscanf(text, "%d %199s", &orphan, name), 2);
  ASSERT_GT(orphan, 1);
  ASSERT_TRUE(has_group(name));
  Cgroups next;
  next.open();
  EXPECT_FALSE(has_group(name));
  for (int i = 0; i < 2000 && ::kill(orphan, 0) == 0; ++i) ::usleep(5000);  // until its new parent has reaped it
  EXPECT_NE(::kill(orphan, 0), 0);
  EXPECT_TRUE(has_group(launcher_group_name()));  // the group of the living launcher stays
}

// The launcher of a container that has ended: its pid namespace and its lock no longer exist.
TEST_F(CgroupTest, GroupsOfAFormerPidNamespaceAreRemoved) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const std::string pid = std::to_string(::getpid());
  const std::string dead = "mycojobs-1-" + pid + "-1", alive = "mycojobs-1-" + pid + "-2";
  std::vector<Fd> locks;
  std::vector<std::string> folders;
  for (const CgroupHierarchy& place : find_cgroups()) {
    for (const std::string& name : {dead, alive}) {
      folders.push_back(place.path + "/" + name);
      ASSERT_EQ(::mkdir(folders.back().c_str(), 0755), 0) << folders.back();
      ASSERT_EQ(::mkdir((folders.back() + "/1").c_str(), 0755), 0);
    }
    locks.emplace_back(::open(folders.back().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(::flock(locks.back().get(), LOCK_EX | LOCK_NB), 0) << std::strerror(errno);
  }
  {
    Cgroups next;
    next.open();
    EXPECT_FALSE(has_group(dead));
    EXPECT_TRUE(has_group(alive)) << "the launcher of the group holds the lock";
    // The groups of a living launcher are locked.
    for (const CgroupHierarchy& place : find_cgroups()) {
      const Fd lock(::open((place.path + "/" + launcher_group_name()).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      EXPECT_NE(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
    }
    locks.clear();
    next.remove_leftovers();
    EXPECT_FALSE(has_group(alive));
  }
}

TEST(CgroupNames, IdentifyTheirOwner) {
  EXPECT_FALSE(belongs_to_dead_launcher("/", launcher_group_name()));
  std::string later = launcher_group_name();
  later.back() = later.back() == '1' ? '2' : '1';  // same pid, another start time
  EXPECT_TRUE(belongs_to_dead_launcher("/", later));
  for (const char* other : {"", "system.slice", "mycojobs-self", "mycojobs-1-2", "mycojobs-1-1-1"}) {
    EXPECT_FALSE(belongs_to_dead_launcher("/", other)) << other;  // of no launcher, or of another pid namespace
  }
}

}  // namespace
}  // namespace mycojobs::sandbox
