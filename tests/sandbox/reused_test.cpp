// Consecutive runs in the same sandbox (sandbox/launcher/runs.h): the state of a run must not reach the next run.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "reused.h"

namespace mycojobs::test {
namespace {

TEST(ReusedSandbox, CleanRunsFollowEachOther) {
  OwnSandbox own = own_sandbox(one_sandbox());
  wait_for_reuse(own);
  const RunResult first = run_in(own, ""), second = run_in(own, "");
  EXPECT_EQ(parse_pid(second), parse_pid(first) + 1) << "each is a process of its own";
}

TEST(ReusedSandbox, FilesAndModesAreAsCreated) {
  OwnSandbox own = own_sandbox(one_sandbox());
  wait_for_reuse(own);
  const RunResult one = run_in(own,
                               "open_create /tmp/a\nwrite /job/b x\nwrite /dev/shm/c x\nmkdir /tmp/d\nmkdir /tmp/d/e\n"
                               "write /tmp/d/e/f x\nmknod /tmp/pipe 0x1000\nchmod /tmp 0700");
  ASSERT_EQ(to_string(one.outcome.status), "ok") << one.outcome.reason;
  const RunResult two = run_in(own, "list /tmp\nlist /job\nlist /dev/shm");
  EXPECT_TRUE(is_reused(two));
  EXPECT_EQ(two.answer("list /tmp"), "");
  EXPECT_EQ(two.answer("list /job"), "kept");
  EXPECT_EQ(two.answer("list /dev/shm"), "");
}

// Nothing of a granted folder is left for the next run, since the sandbox of a run with grants ends with the run.
TEST(ReusedSandbox, RunWithGrantsSharesNoSandbox) {
  OwnSandbox own = own_sandbox(one_sandbox());
  std::string folder = "/var/tmp/mycojobs-test-granted_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ::chmod(folder.c_str(), 0755);
  const std::string ask = "list " + folder;
  for (int i = 0; i < 3; ++i) {
    wait_for_reuse(own);
    RunSpec spec = spec_with();
    spec.grants.fs_read = {folder};
    const RunResult granted = run_attempts(*own.sandbox, spec, ask);
    EXPECT_EQ(granted.answer(ask), "") << granted.outcome.reason;
    EXPECT_NE(run_in(own, ask).answer(ask), "") << "the folder is still mounted";
  }
  ::rmdir(folder.c_str());
}

TEST(ReusedSandbox, HostFolderIsEmptyAndTheSame) {
  OwnSandbox own = own_sandbox(one_sandbox());
  EXPECT_TRUE(next_is_in_the_same(own, "write /job/kept/a x\nmkdir /job/kept/b"));
  EXPECT_EQ(run_in(own, "list /job/kept").answer("list /job/kept"), "");
  EXPECT_FALSE(next_is_in_the_same(own, "chmod /job/kept 0"));
  EXPECT_FALSE(next_is_in_the_same(own, "rename /job/kept /job/other"));
  EXPECT_FALSE(next_is_in_the_same(own, "rename /job/kept /job/other\nmkdir /job/kept"));
  EXPECT_EQ(run_in(own, "list /job").answer("list /job"), "kept");
}

TEST(ReusedSandbox, RunThatLeavesManyFilesIsTheLast) {
  OwnSandbox own = own_sandbox(one_sandbox());
  EXPECT_TRUE(next_is_in_the_same(own, "open_create /tmp/a"));
  EXPECT_FALSE(next_is_in_the_same(own, "files /tmp"));
  const RunResult next = run_in(own, "list /tmp");
  EXPECT_EQ(next.answer("list /tmp"), "");
}

TEST(ReusedSandbox, FailedExitKeepsTheSandboxUnlikeOtherEnds) {
  OwnSandbox own = own_sandbox(one_sandbox());
  EXPECT_TRUE(next_is_in_the_same(own, "exit 3"));
  EXPECT_FALSE(next_is_in_the_same(own, "call ptrace"));
  EXPECT_FALSE(next_is_in_the_same(own, "bad_pointer"));
  if (may_limit_by_cgroup()) {
    EXPECT_FALSE(next_is_in_the_same(own, "touch 400"));
  }
}

TEST(ReusedSandbox, KilledOrOvertimeRunIsTheLast) {
  OwnSandbox own = own_sandbox(one_sandbox());
  wait_for_reuse(own);
  RunSpec spec = spec_with(300);
  EXPECT_EQ(to_string(run_attempts(*own.sandbox, spec, "sleep 60000").outcome.status), "timeout_wall");
  EXPECT_FALSE(is_reused(run_in(own, "")));
  wait_for_reuse(own);
  StartedRun started = start_attempts(*own.sandbox, spec_with(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  own.sandbox->kill(started.spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for(*own.sandbox, started).outcome.status), "cancelled");
  EXPECT_FALSE(is_reused(run_in(own, "")));
}

TEST(ReusedSandbox, StragglersAreNotInherited) {
  OwnSandbox own = own_sandbox(one_sandbox());
  RunSpec spec = spec_with();
  spec.limits.exec = true;
  for (int i = 0; i < 12; ++i) {
    const RunResult result = run_attempts(*own.sandbox, spec, "getpid\nlist /proc\norphans 5 60000");
    ASSERT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
    EXPECT_EQ(parse_pid(result), 2) << i;
  }
}

// The reported usage of a run excludes all earlier runs.
TEST(ReusedSandbox, UsageBelongsToItsRun) {
  if (!may_limit_by_cgroup()) GTEST_SKIP() << "no group can be made and limited here";
  OwnSandbox own = own_sandbox(one_sandbox());
  wait_for_reuse(own);
  const RunResult large = run_in(own, "touch 150");
  EXPECT_GT(large.outcome.usage.memory_peak_bytes, 150ULL << 20);
  EXPECT_EQ(is_reused(run_in(own, "")), a_peak_begins_anew());
  wait_for_reuse(own);
  const RunResult small = run_in(own, "touch 1");
  ASSERT_TRUE(is_reused(small)) << "else this says nothing";
  EXPECT_LT(small.outcome.usage.memory_peak_bytes, 50ULL << 20);
  EXPECT_EQ(small.outcome.usage.pids_peak, 1U);
  RunSpec spec = spec_with();
  spec.limits.cpu_ms = 400;
  const RunResult spun = run_attempts(*own.sandbox, spec, "getpid\nspin");
  EXPECT_EQ(to_string(spun.outcome.status), "timeout_cpu");
  EXPECT_GT(spun.outcome.usage.user_us + spun.outcome.usage.system_us, 300'000U);
  const RunResult idle = run_in(own, "");
  EXPECT_LT(idle.outcome.usage.user_us + idle.outcome.usage.system_us, 300'000U);
}

TEST(ReusedSandbox, RunWithManyProcessesHasItsOwnPeak) {
  if (!may_limit_by_cgroup()) GTEST_SKIP() << "no group can be made and limited here";
  OwnSandbox own = own_sandbox(one_sandbox());
  RunSpec spec = spec_with();
  spec.limits.exec = true;
  const auto run = [&](const std::string& lines) { return run_attempts(*own.sandbox, spec, lines + "\ngetpid"); };
  const auto peak = [&](const std::string& lines) { return run(lines).outcome.usage.pids_peak; };
  const std::string many = "shell sleep 0.1 | sleep 0.1 | sleep 0.1; :";
  run(many);
  ASSERT_TRUE(eventually([&] { return is_reused(run("")); }));
  for (int i = 0; i < 4; ++i) {
    EXPECT_GE(peak(many), 5U) << i;
    const RunResult few = run("");
    EXPECT_EQ(few.outcome.usage.pids_peak, 1U) << i;
    EXPECT_TRUE(is_reused(few)) << i;
  }
  // In the child group, the limits of the sandbox still apply, and refusals are detected.
  EXPECT_EQ(to_string(run("touch 400").outcome.status), "oom");
  ASSERT_TRUE(eventually([&] { return is_reused((run(many), run(""))); }));
  const RunResult refused = run("thread_bomb\nexit 3");
  EXPECT_EQ(to_string(refused.outcome.status), "pids_limit") << refused.outcome.reason;
  EXPECT_EQ(refused.outcome.usage.pids_peak, spec.limits.pids);
}

// The kernel estimates the split of a short run's CPU into user and system time, so only their sums can be compared.
TEST(ReusedSandbox, ManyShortRunsAreNotChargedToALaterOne) {
  OwnSandbox own = own_sandbox(one_sandbox());
  for (int i = 0; i < 450; ++i) ASSERT_EQ(to_string(run_in(own, "").outcome.status), "ok");
  RunSpec spec = spec_with();
  spec.limits.cpu_ms = 150;
  const RunResult result = run_attempts(*own.sandbox, spec, "getpid\nsleep 300");
  ASSERT_TRUE(is_reused(result));
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
}

// Refusals of one run are not reported for the next run.
TEST(ReusedSandbox, RunThatReachedALimitIsTheLast) {
  if (!may_limit_by_cgroup()) GTEST_SKIP() << "no group can be made and limited here";
  OwnSandbox own = own_sandbox(one_sandbox());
  EXPECT_FALSE(next_is_in_the_same(own, "thread_bomb"));
  EXPECT_EQ(to_string(run_in(own, "exit 3").outcome.status), "exit");
}

// Without a reset, a reported peak can be that of an earlier run, up to a bound. A run that exceeds the bound is the
// last run in its sandbox, and its peak is exact.
TEST(ReusedSandbox, SmallRunsContinueWithoutPeakReset) {
  if (!may_limit_by_cgroup()) GTEST_SKIP() << "no group can be made and limited here";
  OwnSandbox own = own_sandbox(one_sandbox());
  EXPECT_TRUE(next_is_in_the_same(own, "touch 2"));
  for (int i = 0; i < 20; ++i) {
    const RunResult small = run_in(own, "touch 1");
    ASSERT_TRUE(is_reused(small)) << i;
    EXPECT_LT(small.outcome.usage.memory_peak_bytes, 6ULL << 20) << i;
  }
  EXPECT_EQ(next_is_in_the_same(own, "touch 10"), a_peak_begins_anew());
}

// The usage of a killed run is exact as well, although no run follows in its sandbox.
TEST(ReusedSandbox, UsageOfTheLastRunIsItsOwn) {
  if (!may_limit_by_cgroup()) GTEST_SKIP() << "no group can be made and limited here";
  OwnSandbox own = own_sandbox(one_sandbox());
  RunSpec spec = spec_with();
  spec.limits.exec = true;
  const auto run = [&](const std::string& lines) { return run_attempts(*own.sandbox, spec, "getpid\n" + lines); };
  ASSERT_TRUE(eventually([&] { return is_reused(run("")); }));
  run("touch 100\nshell sleep 0.1 | sleep 0.1 | sleep 0.1; :");
  const RunResult killed = run("call ptrace");
  EXPECT_EQ(to_string(killed.outcome.status), "violation");
  EXPECT_LT(killed.outcome.usage.memory_peak_bytes, 50ULL << 20);
  EXPECT_LE(killed.outcome.usage.pids_peak, 2U);
}

TEST(ReusedSandbox, EverythingIsCreatedForASingleRun) {
  SandboxConfig config = test_config();
  config.sandbox_runs = 1;
  OwnSandbox own = own_sandbox(config);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(parse_pid(run_in(own, "")), 2);
}

TEST(ReusedSandbox, ServesUpToItsLimit) {
  SandboxConfig config = one_sandbox();
  config.sandbox_runs = 3;
  OwnSandbox own = own_sandbox(config);
  for (int i = 0; i < 12; ++i) EXPECT_LE(parse_pid(run_in(own, "")), 4);
}

// All runs of a sandbox share the timer of the fence. A timer that was set for one run must not end another run, or
// fire between runs.
TEST(ReusedSandbox, FenceEndsWithItsRun) {
  OwnSandbox own = own_sandbox(one_sandbox());
  wait_for_reuse(own);
  RunSpec fenced = spec_with();
  fenced.fence_boot_ms = now_boot_ms() + 1500;
  const RunResult first = run_attempts(*own.sandbox, fenced, "getpid");
  EXPECT_EQ(to_string(first.outcome.status), "ok") << first.outcome.reason;
  std::this_thread::sleep_for(std::chrono::milliseconds(2000));
  const RunResult next = run_in(own, "");
  EXPECT_EQ(parse_pid(next), parse_pid(first) + 1) << "the sandbox has waited for it";
  fenced = spec_with();
  fenced.fence_boot_ms = now_boot_ms() + 1500;
  EXPECT_EQ(to_string(run_attempts(*own.sandbox, fenced, "getpid").outcome.status), "ok");
  EXPECT_EQ(to_string(run_in(own, "sleep 2500").outcome.status), "ok") << "without a fence of its own";
}

// The launcher receives the new fence before the end of the run, at which init had already stopped the timer.
TEST(ReusedSandbox, MovedFenceEndsWithItsRun) {
  OwnSandbox own = own_sandbox(one_sandbox());
  wait_for_reuse(own);
  RunSpec fenced = spec_with();
  fenced.fence_boot_ms = now_boot_ms() + 60000;
  StartedRun started = start_attempts(*own.sandbox, fenced, "print up\nsleep 300\ngetpid");
  wait_for_output(started, "up");
  ::kill(own.launcher, SIGSTOP);
  own.sandbox->fence(fenced.run, now_boot_ms() + 2500);
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  ::kill(own.launcher, SIGCONT);
  const RunResult result = wait_for(*own.sandbox, started);
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_EQ(parse_pid(run_in(own, "")), parse_pid(result) + 1) << "the sandbox has waited for it";
}

TEST(ReusedSandbox, FenceHoldsWhileTheLauncherIsStopped) {
  OwnSandbox own = own_sandbox(one_sandbox());
  wait_for_reuse(own);
  RunSpec spec = spec_with();
  spec.fence_boot_ms = now_boot_ms() + 2000;
  StartedRun started = start_attempts(*own.sandbox, spec, "ignore_signals\nprint up\nsleep 60000");
  wait_for_output(started, "up");
  ::kill(own.launcher, SIGSTOP);
  const auto zygotes = find_children(own.launcher);
  EXPECT_TRUE(eventually([&] {
    return std::all_of(zygotes.begin(), zygotes.end(), [](pid_t zygote) { return find_children(zygote).empty(); });
  })) << "init has not ended its namespace";
  ::kill(own.launcher, SIGCONT);
  EXPECT_EQ(to_string(wait_for(*own.sandbox, started).outcome.status), "lost");
}

TEST(ReusedSandbox, SignalsToInitAreIgnored) {
  OwnSandbox own = own_sandbox(one_sandbox());
  wait_for_reuse(own);
  const RunResult result = run_in(own, "kill 1 9\nkill 1 15\nkill 1 17\nkill 1 19\nkill -1 9");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  EXPECT_TRUE(is_reused(run_in(own, "")));
}

}  // namespace
}  // namespace mycojobs::test
