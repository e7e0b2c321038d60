// A group that serves consecutive runs.
#include "fixture.h"

namespace mycojobs::sandbox {
namespace {

struct Step {
  std::uint32_t processes;  // concurrent processes, not counting init
  std::uint64_t mebibytes;
};

// The processes of a sandbox between runs: init and the waiting job.
class TestSandbox {
 public:
  explicit TestSandbox(const std::vector<Fd>& joins) {
    EXPECT_EQ(::pipe(orders_), 0);
    EXPECT_EQ(::pipe(answers_), 0);
    init_ = start_child_in(joins, [&] { return serve(); });
  }
  ~TestSandbox() {
    for (const int fd : {orders_[0], orders_[1], answers_[0], answers_[1]}) ::close(fd);
  }
  TestSandbox(const TestSandbox&) = delete;
  TestSandbox& operator=(const TestSandbox&) = delete;
  void run(Step step) {
    char byte = 0;
    ASSERT_EQ(::write(orders_[1], &step, sizeof step), static_cast<ssize_t>(sizeof step));
    ASSERT_EQ(::read(answers_[0], &byte, 1), 1);
  }
  pid_t init() const { return init_; }

 private:
  int serve() {
    std::vector<pid_t> waiting;
    for (Step step{}; ::read(orders_[0], &step, sizeof step) == static_cast<ssize_t>(sizeof step);) {
      const std::uint32_t here = static_cast<std::uint32_t>(waiting.size());
      for (std::uint32_t more = here; more < step.processes; ++more) add(waiting);
      for (const pid_t pid : std::exchange(waiting, {})) ::kill(pid, SIGKILL), wait_status(pid);
      if (step.mebibytes > 0) {
        const pid_t pid = ::fork();
        if (pid == 0) ::_exit(touch(step.mebibytes * kMebi));
        if (pid > 0) wait_status(pid);
      }
      add(waiting);
      if (::write(answers_[1], "x", 1) != 1) return 1;
    }
    return 0;
  }
  static void add(std::vector<pid_t>& waiting) {
    const pid_t pid = ::fork();
    if (pid == 0) ::pause();
    if (pid > 0) waiting.push_back(pid);  // a refused fork must not be added: kill(-1) would signal every process
  }
  int orders_[2], answers_[2];
  pid_t init_;
};

class CgroupReuse : public CgroupTest {
 protected:
  // Removes the group and kills its processes.
  void remove(std::uint64_t run, const TestSandbox& sandbox) {
    const std::string name = launcher_group_name() + "/" + std::to_string(run);
    groups_->remove_run_group(run);
    EXPECT_TRUE(was_killed(wait_status(sandbox.init())));
    for (int i = 0; i < 500 && has_group(name); ++i) groups_->remove_run_group(run), ::usleep(10000);
    EXPECT_FALSE(has_group(name));
  }
  // Behaves as on a kernel without memory.peak and pids.peak.
  void sample_peaks() {
    groups_.reset();
    auto places = find_cgroups();
    for (auto& place : places) place.records_peaks = false;
    groups_ = std::make_unique<Cgroups>();
    groups_->open(places);
    ASSERT_TRUE(groups_->must_sample());
  }
};

TEST_F(CgroupReuse, UsageOfARunIsItsOwn) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  TestSandbox sandbox(make(1, 128 * kMebi, 8));
  for (int i = 0; i < 5; ++i) {
    sandbox.run({1, 1});
    const auto small = groups_->reset_for_next_run(1, make_limits(128 * kMebi, 8), 1);
    ASSERT_TRUE(small) << i;
    EXPECT_GE(small->memory_peak_bytes, kMebi) << i;
    EXPECT_LE(small->memory_peak_bytes, Cgroups::kMaxLeftoverBytes) << i;
    EXPECT_EQ(small->pids_peak, 1U) << i;
  }
  sandbox.run({1, 48});
  const auto large = groups_->reset_for_next_run(1, make_limits(128 * kMebi, 8), 1);
  // If the peak cannot be reset, a later run would report it. Such a run must be the last of its group, and its own
  // peak exact.
  EXPECT_GE((large ? *large : groups_->read_usage(1)).memory_peak_bytes, 48 * kMebi);
  if (large) {
    EXPECT_LE(groups_->read_usage(1).memory_peak_bytes, Cgroups::kMaxLeftoverBytes);
  }
  remove(1, sandbox);
}

TEST_F(CgroupReuse, RunThatMayHaveReachedALimitIsTheLast) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const Limits limits = make_limits(64 * kMebi, 4);
  TestSandbox many(make(1, limits.memory_bytes, limits.pids));
  many.run({4, 0});
  EXPECT_FALSE(groups_->reset_for_next_run(1, limits, 2));
  EXPECT_EQ(groups_->read_usage(1).pids_peak, 4U);
  remove(1, many);
  TestSandbox large(make(2, limits.memory_bytes, limits.pids));
  large.run({1, 60});
  EXPECT_FALSE(groups_->reset_for_next_run(2, limits, 2));
  remove(2, large);
}

TEST_F(CgroupReuse, SampledPeaksRestartUnlessALimitWasReached) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  sample_peaks();
  const Limits limits = make_limits(64 * kMebi, 4);
  TestSandbox sandbox(make(1, limits.memory_bytes, limits.pids));
  sandbox.run({3, 1});
  EXPECT_FALSE(groups_->reset_for_next_run(1, limits, 2)) << "the peaks are unknown without a sample";
  for (int i = 0; i < 3; ++i) {
    sandbox.run({3, 1});
    groups_->sample();
    const auto turned = groups_->reset_for_next_run(1, limits, 2);
    ASSERT_TRUE(turned);
    EXPECT_EQ(turned->pids_peak, 1U) << "the sampled value";
    EXPECT_GT(turned->memory_peak_bytes, 0U);
  }
  EXPECT_EQ(groups_->read_usage(1).pids_peak, 0U);
  sandbox.run({5, 0});  // one of the forks is refused
  groups_->sample();
  EXPECT_FALSE(groups_->reset_for_next_run(1, limits, 2));
  EXPECT_GE(groups_->read_usage(1).pids_max_hits, 1U);
  remove(1, sandbox);
}

TEST_F(CgroupReuse, ProcessPeakRestartsWhileSomeProcessesWait) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const Limits limits = make_limits(64 * kMebi, 4);
  TestSandbox sandbox(make(1, limits.memory_bytes, limits.pids));
  for (const std::uint32_t processes : {3U, 1U, 3U, 3U}) {
    sandbox.run({processes, 0});
    const auto usage = groups_->reset_for_next_run(1, limits, 2);
    ASSERT_TRUE(usage);
    EXPECT_EQ(usage->pids_peak, processes);
  }
  sandbox.run({6, 0});
  EXPECT_FALSE(groups_->reset_for_next_run(1, limits, 2));
  EXPECT_EQ(groups_->read_usage(1).pids_max_hits, 2U) << "the limit is in force, for all of them";
  EXPECT_EQ(groups_->read_usage(1).pids_peak, 4U) << "refused processes are not counted";
  remove(1, sandbox);
}

// A limit of a parent group (such as TasksMax of the unit) refuses a process. The peak does not show this.
TEST_F(CgroupReuse, RunRefusedAProcessBelowItsLimitIsTheLast) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const Limits limits = make_limits(64 * kMebi, 8);
  TestSandbox sandbox(make(1, limits.memory_bytes, limits.pids));
  sandbox.run({2, 0});
  ASSERT_TRUE(groups_->reset_for_next_run(1, limits, 2));
  ASSERT_TRUE(groups_->set_limits(1, limits.memory_bytes, 3));
  sandbox.run({5, 0});
  ASSERT_TRUE(groups_->set_limits(1, limits.memory_bytes, limits.pids));
  EXPECT_FALSE(groups_->reset_for_next_run(1, limits, 2));
  remove(1, sandbox);
}

// The group has child groups. In version 2 of cgroups, only the parent groups can be killed.
TEST_F(CgroupReuse, LeftoversOfADeadLaunchersSlotAreRemoved) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  const Limits limits = make_limits(64 * kMebi, 4);
  TestSandbox sandbox(make(1, limits.memory_bytes, limits.pids));
  sandbox.run({3, 0});
  ASSERT_TRUE(groups_->reset_for_next_run(1, limits, 2));
  groups_.reset();
  EXPECT_TRUE(was_killed(wait_status(sandbox.init())));
  EXPECT_FALSE(has_group(launcher_group_name()));
}

TEST_F(CgroupTest, PeaksAreSampledWithoutKernelSupport) {
  if (!can_limit()) GTEST_SKIP() << "this host permits no cgroups with limits";
  groups_.reset();
  auto places = find_cgroups();
  bool version_2 = true;
  for (auto& place : places) {
    place.records_peaks = false;
    version_2 = version_2 && place.version == 2;
  }
  Cgroups sampling;
  sampling.open(places);
  EXPECT_TRUE(sampling.must_sample());
  auto joins = sampling.create_run_group(1, make_limits(64 * kMebi, 8));
  ASSERT_TRUE(joins) << joins.error().message;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = start_child_in(*joins, [&] {
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
  sampling.remove_run_group(99);  // a group of another run: has no effect
  const RunUsage usage = sampling.read_usage(1);
  EXPECT_EQ(usage.pids_peak, 1U);
  EXPECT_GE(usage.memory_peak_bytes, 20 * kMebi);  // version 1 has always recorded this peak
  sampling.remove_run_group(1);
  EXPECT_TRUE(was_killed(wait_status(child)));
  ::close(pipe[0]);
  ::close(pipe[1]);
  for (int tries = 0; tries < 2000 && sampling.read_usage(1).pids_peak != 0; ++tries) {
    ::usleep(1000);
    sampling.remove_run_group(99);  // retries removals that failed earlier
  }
  EXPECT_EQ(sampling.read_usage(1).pids_peak, 0U);
}

}  // namespace
}  // namespace mycojobs::sandbox
