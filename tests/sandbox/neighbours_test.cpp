// Concurrent and consecutive jobs: isolation between them, and effects that accumulate over many jobs.
#include <unistd.h>

#include <algorithm>

#include "fixture.h"

namespace mycojobs::test {
namespace {

// SX1, SX6, SX9, SF12, SP3: a concurrent job leaves as much as it can.
TEST(Neighbours, OtherJobIsInvisible) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();  // New sandboxes, in which each job is process 2.
  Sandbox& sandbox = *dedicated_sandbox.sandbox;
  StartedRun first = start_attempts(sandbox, make_spec(),
                                    "write /tmp/a x\nwrite /dev/shm/b x\nwrite /job/c x\nmknod /tmp/pipe 0x1000\nprint "
                                    "up\nsleep 60000");
  wait_for_output(first, "up");
  const RunResult second_result = run_attempts(
      sandbox, make_spec(),
      "list /tmp\nlist /dev/shm\nlist /job\nread /proc/3/status\nkill 3 9\nkill 4 9\nrace_for_others 100\nopen_read "
      "/proc/2/root/tmp/a");
  EXPECT_EQ(second_result.get_result("list /tmp"), "");
  EXPECT_EQ(second_result.get_result("list /dev/shm"), "");
  EXPECT_EQ(second_result.get_result("list /job"), "kept");
  EXPECT_EQ(second_result.get_result("read /proc/3/status"), "ENOENT");
  EXPECT_EQ(second_result.get_result("kill 3 9"), "ESRCH");
  EXPECT_EQ(second_result.get_result("kill 4 9"), "ESRCH");
  EXPECT_EQ(second_result.get_result("race_for_others 100"), "none");
  EXPECT_NE(second_result.get_result("open_read /proc/2/root/tmp/a"), "ok");
  sandbox.kill(first.spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for_end(sandbox, first).outcome.status), "cancelled");
}

// SI12: searches for an unconfined process while many processes are being created.
TEST(Neighbours, NoProcessIsCaughtBetweenForkAndConfinement) {
  Sandbox& sandbox = shared_sandbox();
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  StartedRun racer = start_attempts(sandbox, spec, "print up\nrace_for_others 1500");
  wait_for_output(racer, "up");
  for (int i = 0; i < 60; ++i) EXPECT_EQ(to_string(run_attempts("getpid").outcome.status), "ok");
  const RunResult result = wait_for_end(sandbox, racer);
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  EXPECT_EQ(result.get_result("race_for_others 1500"), "none");
}

// SX7: while processes of a uid exist, the uid is not assigned to another job.
TEST(Neighbours, UidIsUsedOnceAtATime) {
  if (::geteuid() != 0) GTEST_SKIP() << "an unprivileged user has one id for all jobs";
  Sandbox& sandbox = shared_sandbox();
  std::vector<StartedRun> running;
  std::vector<std::string> uids;
  for (int i = 0; i < 8; ++i) {
    running.push_back(start_attempts(sandbox, make_spec(), "print_uid\nsleep 60000"));
    wait_for_output(running.back(), "uid ");
    uids.push_back(running.back().stdout_text);
  }
  for (int i = 0; i < 30; ++i) uids.push_back("uid " + run_attempts("getuid").get_result("getuid"));
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(std::count(uids.begin(), uids.end(), uids[i]), 1) << uids[i];
  for (auto& started : running) {
    sandbox.kill(started.spec.run, KillReason::cancelled, 0);
    wait_for_end(sandbox, started);
  }
}

// SX8
TEST(Neighbours, CountersOfOneRunAreNotAddedToTheNext) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  const RunResult large_result = run_attempts(shared_sandbox(), spec, "touch 150\norphans 20");
  EXPECT_GT(large_result.outcome.usage.memory_peak_bytes, 150ULL << 20);
  const RunResult small_result = run_attempts("touch 1");
  EXPECT_LT(small_result.outcome.usage.memory_peak_bytes, 50ULL << 20);
  EXPECT_LT(small_result.outcome.usage.user_us + small_result.outcome.usage.system_us,
            large_result.outcome.usage.user_us + large_result.outcome.usage.system_us);
}

// SQ21, SQ6
TEST(Neighbours, ManyJobsBelowTheLimitAreNotOverIt) {
  for (int i = 0; i < 120; ++i) {
    RunSpec spec = make_spec();
    spec.limits.memory_bytes = 32U << 20;
    spec.limits.tmp_bytes = 4U << 20;
    const RunResult result =
        run_attempts(shared_sandbox(), spec, i % 2 == 0 ? "touch 26" : "fill /dev/shm\nfill /tmp\ntouch 18");
    ASSERT_EQ(to_string(result.outcome.status), "ok") << i << ": " << result.outcome.reason;
  }
}

// SQ3, SZ41: memory held outside the process is charged to the job.
TEST(Neighbours, MemoryOutsideOfTheProcessCounts) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  for (const char* lines : {"hold_everything",
                            "hold_memfd 300\nhold_memfd 300\nhold_memfd 300\nhold_memfd 300\n"
                            "hold_memfd 300",
                            "fill /tmp\nfill /dev/shm\ntouch 60"}) {
    RunSpec spec = make_spec();
    spec.limits.memory_bytes = 128U << 20;
    const RunResult result = run_attempts(shared_sandbox(), spec, lines);
    EXPECT_EQ(to_string(result.outcome.status), "oom") << lines << ": " << result.outcome.reason;
  }
  EXPECT_EQ(to_string(run_attempts("touch 10").outcome.status), "ok");
}

// SZ42: kernel memory of many small objects.
TEST(Neighbours, ManySmallAllocationsReachALimit) {
  const RunResult result = run_attempts("hold_pipes\nposix_timers\nfill_pair\nnest_rights 400\nexit 0");
  EXPECT_TRUE(result.outcome.status == RunStatus::ok || result.outcome.status == RunStatus::oom)
      << result.outcome.reason;
  EXPECT_EQ(to_string(run_attempts("descriptors").outcome.status), "ok");
}

// SI9, SX2: changes of a job to its process state are not inherited by the next job.
TEST(Neighbours, ProcessStateIsNotInherited) {
  const std::string initial_state = "cwd=/job umask=18 blocked=0 handled=0 nice=0";
  run_attempts("ignore_signals\nnice 10\nposix_timers\nbad_lists\nexit 0");
  const RunResult next_result = run_attempts("inherited\ninherited_clocks\nsched");
  EXPECT_EQ(next_result.get_result("inherited"), initial_state);
  EXPECT_EQ(next_result.get_result("inherited_clocks"), "none");
  EXPECT_EQ(next_result.get_result("sched"), "policy=0 nice=0");
}

}  // namespace
}  // namespace mycojobs::test
