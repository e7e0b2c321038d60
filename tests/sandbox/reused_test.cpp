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
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  wait_for_reuse(dedicated_sandbox);
  const RunResult first = run_with_getpid(dedicated_sandbox, ""), second = run_with_getpid(dedicated_sandbox, "");
  EXPECT_EQ(parse_pid(second), parse_pid(first) + 1) << "each run is a new process";
}

TEST(ReusedSandbox, FilesAndModesAreAsCreated) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  wait_for_reuse(dedicated_sandbox);
  const RunResult first =
      run_with_getpid(dedicated_sandbox,
                      "open_create /tmp/a\nwrite /job/b x\nwrite /dev/shm/c x\nmkdir /tmp/d\nmkdir /tmp/d/e\n"
                      "write /tmp/d/e/f x\nmknod /tmp/pipe 0x1000\nchmod /tmp 0700");
  ASSERT_EQ(to_string(first.outcome.status), "ok") << first.outcome.reason;
  const RunResult second = run_with_getpid(dedicated_sandbox, "list /tmp\nlist /job\nlist /dev/shm");
  EXPECT_TRUE(is_reused(second));
  EXPECT_EQ(second.get_result("list /tmp"), "");
  EXPECT_EQ(second.get_result("list /job"), "kept");
  EXPECT_EQ(second.get_result("list /dev/shm"), "");
}

// The sandbox of a run with grants ends with the run, so the next run cannot access a granted folder.
TEST(ReusedSandbox, RunWithGrantsSharesNoSandbox) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  std::string folder = "/var/tmp/mycojobs-test-granted_XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ::chmod(folder.c_str(), 0755);
  const std::string query = "list " + folder;
  for (int i = 0; i < 3; ++i) {
    wait_for_reuse(dedicated_sandbox);
    RunSpec spec = make_spec();
    spec.grants.fs_read = {folder};
    const RunResult granted_result = run_attempts(*dedicated_sandbox.sandbox, spec, query);
    EXPECT_EQ(granted_result.get_result(query), "") << granted_result.outcome.reason;
    EXPECT_NE(run_with_getpid(dedicated_sandbox, query).get_result(query), "") << "the folder is still mounted";
  }
  ::rmdir(folder.c_str());
}

TEST(ReusedSandbox, HostFolderIsEmptyAndTheSame) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  EXPECT_TRUE(next_run_uses_same_sandbox(dedicated_sandbox, "write /job/kept/a x\nmkdir /job/kept/b"));
  EXPECT_EQ(run_with_getpid(dedicated_sandbox, "list /job/kept").get_result("list /job/kept"), "");
  EXPECT_FALSE(next_run_uses_same_sandbox(dedicated_sandbox, "chmod /job/kept 0"));
  EXPECT_FALSE(next_run_uses_same_sandbox(dedicated_sandbox, "rename /job/kept /job/other"));
  EXPECT_FALSE(next_run_uses_same_sandbox(dedicated_sandbox, "rename /job/kept /job/other\nmkdir /job/kept"));
  EXPECT_EQ(run_with_getpid(dedicated_sandbox, "list /job").get_result("list /job"), "kept");
}

TEST(ReusedSandbox, RunThatLeavesManyFilesIsTheLast) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  EXPECT_TRUE(next_run_uses_same_sandbox(dedicated_sandbox, "open_create /tmp/a"));
  EXPECT_FALSE(next_run_uses_same_sandbox(dedicated_sandbox, "files /tmp"));
  const RunResult next = run_with_getpid(dedicated_sandbox, "list /tmp");
  EXPECT_EQ(next.get_result("list /tmp"), "");
}

TEST(ReusedSandbox, FailedExitKeepsTheSandboxUnlikeOtherEnds) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  EXPECT_TRUE(next_run_uses_same_sandbox(dedicated_sandbox, "exit 3"));
  EXPECT_FALSE(next_run_uses_same_sandbox(dedicated_sandbox, "call ptrace"));
  EXPECT_FALSE(next_run_uses_same_sandbox(dedicated_sandbox, "bad_pointer"));
  if (can_limit_by_cgroup()) {
    EXPECT_FALSE(next_run_uses_same_sandbox(dedicated_sandbox, "touch 400"));
  }
}

TEST(ReusedSandbox, KilledOrOvertimeRunIsTheLast) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  wait_for_reuse(dedicated_sandbox);
  RunSpec spec = make_spec(300);
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, spec, "sleep 60000").outcome.status), "timeout_wall");
  EXPECT_FALSE(is_reused(run_with_getpid(dedicated_sandbox, "")));
  wait_for_reuse(dedicated_sandbox);
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  dedicated_sandbox.sandbox->kill(started.spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "cancelled");
  EXPECT_FALSE(is_reused(run_with_getpid(dedicated_sandbox, "")));
}

TEST(ReusedSandbox, StragglersAreNotInherited) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  for (int i = 0; i < 12; ++i) {
    const RunResult result = run_attempts(*dedicated_sandbox.sandbox, spec, "getpid\nlist /proc\norphans 5 60000");
    ASSERT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
    EXPECT_EQ(parse_pid(result), 2) << i;
  }
}

// The reported usage of a run excludes all earlier runs.
TEST(ReusedSandbox, UsageBelongsToItsRun) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  wait_for_reuse(dedicated_sandbox);
  const RunResult large_result = run_with_getpid(dedicated_sandbox, "touch 150");
  EXPECT_GT(large_result.outcome.usage.memory_peak_bytes, 150ULL << 20);
  EXPECT_EQ(is_reused(run_with_getpid(dedicated_sandbox, "")), can_reset_memory_peak());
  wait_for_reuse(dedicated_sandbox);
  const RunResult small_result = run_with_getpid(dedicated_sandbox, "touch 1");
  ASSERT_TRUE(is_reused(small_result)) << "otherwise the test proves nothing";
  EXPECT_LT(small_result.outcome.usage.memory_peak_bytes, 50ULL << 20);
  EXPECT_EQ(small_result.outcome.usage.pids_peak, 1U);
  RunSpec spec = make_spec();
  spec.limits.cpu_ms = 400;
  const RunResult spin_result = run_attempts(*dedicated_sandbox.sandbox, spec, "getpid\nspin");
  EXPECT_EQ(to_string(spin_result.outcome.status), "timeout_cpu");
  EXPECT_GT(spin_result.outcome.usage.user_us + spin_result.outcome.usage.system_us, 300'000U);
  const RunResult idle_result = run_with_getpid(dedicated_sandbox, "");
  EXPECT_LT(idle_result.outcome.usage.user_us + idle_result.outcome.usage.system_us, 300'000U);
}

TEST(ReusedSandbox, RunWithManyProcessesHasItsOwnPeak) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  const auto run = [&](const std::string& lines) {
    return run_attempts(*dedicated_sandbox.sandbox, spec, lines + "\ngetpid");
  };
  const auto measure_pids_peak = [&](const std::string& lines) { return run(lines).outcome.usage.pids_peak; };
  const std::string several_processes = "shell sleep 0.1 | sleep 0.1 | sleep 0.1; :";
  run(several_processes);
  ASSERT_TRUE(eventually([&] { return is_reused(run("")); }));
  for (int i = 0; i < 4; ++i) {
    EXPECT_GE(measure_pids_peak(several_processes), 5U) << i;
    const RunResult single_process_result = run("");
    EXPECT_EQ(single_process_result.outcome.usage.pids_peak, 1U) << i;
    EXPECT_TRUE(is_reused(single_process_result)) << i;
  }
  // In the child group, the limits of the sandbox still apply, and refusals are detected.
  EXPECT_EQ(to_string(run("touch 400").outcome.status), "oom");
  ASSERT_TRUE(eventually([&] { return is_reused((run(several_processes), run(""))); }));
  const RunResult refused_result = run("thread_bomb\nexit 3");
  EXPECT_EQ(to_string(refused_result.outcome.status), "pids_limit") << refused_result.outcome.reason;
  EXPECT_EQ(refused_result.outcome.usage.pids_peak, spec.limits.pids);
}

// The kernel estimates the split of a short run's CPU into user and system time, so only their sums can be compared.
TEST(ReusedSandbox, ManyShortRunsAreNotChargedToALaterOne) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  for (int i = 0; i < 450; ++i) ASSERT_EQ(to_string(run_with_getpid(dedicated_sandbox, "").outcome.status), "ok");
  RunSpec spec = make_spec();
  spec.limits.cpu_ms = 150;
  const RunResult result = run_attempts(*dedicated_sandbox.sandbox, spec, "getpid\nsleep 300");
  ASSERT_TRUE(is_reused(result));
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
}

// Refusals of one run are not reported for the next run.
TEST(ReusedSandbox, RunThatReachedALimitIsTheLast) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  EXPECT_FALSE(next_run_uses_same_sandbox(dedicated_sandbox, "thread_bomb"));
  EXPECT_EQ(to_string(run_with_getpid(dedicated_sandbox, "exit 3").outcome.status), "exit");
}

// Without a reset, a reported peak can be that of an earlier run, up to a bound. A run that exceeds the bound is the
// last run in its sandbox, and its peak is exact.
TEST(ReusedSandbox, SmallRunsContinueWithoutPeakReset) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  EXPECT_TRUE(next_run_uses_same_sandbox(dedicated_sandbox, "touch 2"));
  for (int i = 0; i < 20; ++i) {
    const RunResult small_result = run_with_getpid(dedicated_sandbox, "touch 1");
    ASSERT_TRUE(is_reused(small_result)) << i;
    EXPECT_LT(small_result.outcome.usage.memory_peak_bytes, 6ULL << 20) << i;
  }
  EXPECT_EQ(next_run_uses_same_sandbox(dedicated_sandbox, "touch 10"), can_reset_memory_peak());
}

// The usage of a killed run is exact as well, although no run follows in its sandbox.
TEST(ReusedSandbox, UsageOfTheLastRunIsItsOwn) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  const auto run = [&](const std::string& lines) {
    return run_attempts(*dedicated_sandbox.sandbox, spec, "getpid\n" + lines);
  };
  ASSERT_TRUE(eventually([&] { return is_reused(run("")); }));
  run("touch 100\nshell sleep 0.1 | sleep 0.1 | sleep 0.1; :");
  const RunResult killed_result = run("call ptrace");
  EXPECT_EQ(to_string(killed_result.outcome.status), "violation");
  EXPECT_LT(killed_result.outcome.usage.memory_peak_bytes, 50ULL << 20);
  EXPECT_LE(killed_result.outcome.usage.pids_peak, 2U);
}

TEST(ReusedSandbox, EverythingIsCreatedForASingleRun) {
  SandboxConfig config = make_test_config();
  config.max_sandbox_runs = 1;
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(parse_pid(run_with_getpid(dedicated_sandbox, "")), 2);
}

TEST(ReusedSandbox, ServesUpToItsLimit) {
  SandboxConfig config = make_single_sandbox_config();
  config.max_sandbox_runs = 3;
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  for (int i = 0; i < 12; ++i) EXPECT_LE(parse_pid(run_with_getpid(dedicated_sandbox, "")), 4);
}

// All runs of a sandbox share the timer of the fence. A timer that was set for one run must not end another run, or
// fire between runs.
TEST(ReusedSandbox, FenceEndsWithItsRun) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  wait_for_reuse(dedicated_sandbox);
  RunSpec fenced_spec = make_spec();
  fenced_spec.fence_boot_ms = now_boot_ms() + 1500;
  const RunResult first = run_attempts(*dedicated_sandbox.sandbox, fenced_spec, "getpid");
  EXPECT_EQ(to_string(first.outcome.status), "ok") << first.outcome.reason;
  std::this_thread::sleep_for(std::chrono::milliseconds(2000));
  const RunResult next = run_with_getpid(dedicated_sandbox, "");
  EXPECT_EQ(parse_pid(next), parse_pid(first) + 1) << "the fence of the ended run has ended the sandbox";
  fenced_spec = make_spec();
  fenced_spec.fence_boot_ms = now_boot_ms() + 1500;
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, fenced_spec, "getpid").outcome.status), "ok");
  EXPECT_EQ(to_string(run_with_getpid(dedicated_sandbox, "sleep 2500").outcome.status), "ok")
      << "without a fence of its own";
}

// The launcher receives the new fence before the end of the run, at which init had already stopped the timer.
TEST(ReusedSandbox, MovedFenceEndsWithItsRun) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  wait_for_reuse(dedicated_sandbox);
  RunSpec fenced_spec = make_spec();
  fenced_spec.fence_boot_ms = now_boot_ms() + 60000;
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, fenced_spec, "print up\nsleep 300\ngetpid");
  wait_for_output(started, "up");
  ::kill(dedicated_sandbox.launcher, SIGSTOP);
  dedicated_sandbox.sandbox->fence(fenced_spec.run, now_boot_ms() + 2500);
  std::this_thread::sleep_for(std::chrono::milliseconds(1000));
  ::kill(dedicated_sandbox.launcher, SIGCONT);
  const RunResult result = wait_for_end(*dedicated_sandbox.sandbox, started);
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_EQ(parse_pid(run_with_getpid(dedicated_sandbox, "")), parse_pid(result) + 1)
      << "the fence of the ended run has ended the sandbox";
}

TEST(ReusedSandbox, FenceHoldsWhileTheLauncherIsStopped) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  wait_for_reuse(dedicated_sandbox);
  RunSpec spec = make_spec();
  spec.fence_boot_ms = now_boot_ms() + 2000;
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, spec, "ignore_signals\nprint up\nsleep 60000");
  wait_for_output(started, "up");
  ::kill(dedicated_sandbox.launcher, SIGSTOP);
  const auto zygotes = find_children(dedicated_sandbox.launcher);
  EXPECT_TRUE(eventually([&] {
    return std::all_of(zygotes.begin(), zygotes.end(), [](pid_t zygote) { return find_children(zygote).empty(); });
  })) << "init has not ended its namespace";
  ::kill(dedicated_sandbox.launcher, SIGCONT);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "lost");
}

TEST(ReusedSandbox, SignalsToInitAreIgnored) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  wait_for_reuse(dedicated_sandbox);
  const RunResult result = run_with_getpid(dedicated_sandbox, "kill 1 9\nkill 1 15\nkill 1 17\nkill 1 19\nkill -1 9");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  EXPECT_TRUE(is_reused(run_with_getpid(dedicated_sandbox, "")));
}

}  // namespace
}  // namespace mycojobs::test
