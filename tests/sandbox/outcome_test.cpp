// The outcome of a run: status, exit code, usage, layers and set-up errors.
#include <algorithm>
#include <csignal>

#include "fixture.h"

namespace mycojobs::test {
namespace {

bool has_prefix(const std::vector<std::string>& list, const std::string& prefix) {
  return std::any_of(list.begin(), list.end(), [&](const auto& layer) { return layer.rfind(prefix, 0) == 0; });
}

TEST(Outcome, PlainRunIsOkWithItsLayersStepsAndUsage) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();  // Only the first run of a sandbox reports all steps.
  const RunResult result = run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid\nprint hello");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  EXPECT_EQ(result.get_result("getpid"), "2 of 1");
  EXPECT_EQ(result.stdout_text, "hello");
  EXPECT_TRUE(result.outcome.reason.empty());
  EXPECT_EQ(result.outcome.stragglers, 0U);
  EXPECT_GT(result.outcome.usage.wall_us, 0U);
  for (const char* layer :
       {"userns", "pidns", "mountns", "netns", "ipcns", "utsns", "cgroupns", "seccomp", "caps", "nnp"}) {
    EXPECT_TRUE(has_prefix(result.outcome.layers, layer)) << layer;
  }
  for (const char* step :
       {"cgroups", "descriptors", "namespaces", "folders", "proc", "rights", "landlock", "seccomp"}) {
    EXPECT_TRUE(std::any_of(result.outcome.setup.begin(), result.outcome.setup.end(), [&](const StepTime& time) {
      return time.step == step;
    })) << step;
  }
}

TEST(Outcome, ExitCodeAndSignalAreDistinguished) {
  EXPECT_EQ(run_attempts("exit 137").outcome.exit_code, 137);
  EXPECT_EQ(to_string(run_attempts("exit 137").outcome.status), "exit");
  const RunResult killed = run_attempts("kill 0 9");
  EXPECT_EQ(to_string(killed.outcome.status), "signal") << killed.outcome.reason;
  EXPECT_EQ(killed.outcome.signal, SIGKILL);
  const RunResult crashed = run_attempts("bad_pointer");
  EXPECT_EQ(to_string(crashed.outcome.status), "signal");
  EXPECT_EQ(crashed.outcome.signal, SIGSEGV);
}

// SQ17
TEST(Outcome, OverTheWallLimitIsTimeoutWall) {
  const RunResult result = run_attempts("sleep 60000", 200);
  EXPECT_EQ(to_string(result.outcome.status), "timeout_wall") << result.outcome.reason;
  EXPECT_GE(result.outcome.usage.wall_us, 200000U);
}

// SQ14: the run ends by its wall limit, and its CPU time is counted.
TEST(Outcome, SpinningJobIsStoppedAndItsCpuIsCounted) {
  const RunResult result = run_attempts("spin", 300);
  EXPECT_EQ(to_string(result.outcome.status), "timeout_wall");
  EXPECT_GT(result.outcome.usage.user_us, 10000U);
}

// SQ16
TEST(Outcome, CpuOfAChildIsCounted) {
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  const RunResult result = run_attempts(shared_sandbox(), spec, "fork_burn");
  EXPECT_EQ(result.get_result("fork_burn"), "ok");
  EXPECT_GT(result.outcome.usage.user_us, 10000U);
}

TEST(Outcome, SilentCancelledJobDiesAfterTheGrace) {  // SP7
  Sandbox& sandbox = shared_sandbox();
  StartedRun started = start_attempts(sandbox, make_spec(), "ignore_signals\nprint deaf\nsleep 60000");
  wait_for_output(started, "deaf");
  sandbox.kill(started.spec.run, KillReason::cancelled, 50);
  const RunResult result = wait_for_end(sandbox, started);
  EXPECT_EQ(to_string(result.outcome.status), "cancelled") << result.outcome.reason;
}

TEST(Outcome, CancelledJobReceivesTermFirst) {
  Sandbox& sandbox = shared_sandbox();
  StartedRun started = start_attempts(sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  sandbox.kill(started.spec.run, KillReason::cancelled, 40000);  // The grace period is longer than this test.
  EXPECT_EQ(to_string(wait_for_end(sandbox, started).outcome.status), "cancelled");
}

TEST(Outcome, CancelledJobHasItsFullGrace) {
  Sandbox& sandbox = shared_sandbox();
  StartedRun started = start_attempts(sandbox, make_spec(), "ignore_signals\nprint deaf\nsleep 500\nprint cleaned");
  wait_for_output(started, "deaf");
  sandbox.kill(started.spec.run, KillReason::cancelled, 40000);
  const RunResult result = wait_for_end(sandbox, started);
  EXPECT_EQ(to_string(result.outcome.status), "cancelled") << result.outcome.reason;
  EXPECT_NE(result.stdout_text.find("cleaned"), std::string::npos) << result.stdout_text;
}

TEST(Outcome, FirstRecordedReasonWins) {
  Sandbox& sandbox = shared_sandbox();
  StartedRun started = start_attempts(sandbox, make_spec(), "ignore_signals\nprint deaf\nsleep 60000");
  wait_for_output(started, "deaf");
  sandbox.kill(started.spec.run, KillReason::output_limit, 20000);
  sandbox.kill(started.spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for_end(sandbox, started).outcome.status), "output_limit");
}

TEST(Outcome, PassedFenceIsLost) {
  RunSpec spec = make_spec();
  spec.fence_boot_ms = now_boot_ms() + 200;
  const RunResult result = run_attempts(shared_sandbox(), spec, "sleep 60000");
  EXPECT_EQ(to_string(result.outcome.status), "lost") << result.outcome.reason;
}

TEST(Outcome, MovedFenceKeepsTheRunAlive) {
  Sandbox& sandbox = shared_sandbox();
  RunSpec spec = make_spec();
  spec.fence_boot_ms = now_boot_ms() + 2000;
  StartedRun started = start_attempts(sandbox, spec, "sleep 3000\ngetpid");
  sandbox.fence(spec.run, now_boot_ms() + 60000);
  const RunResult result = wait_for_end(sandbox, started);
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
}

TEST(Outcome, FenceOfZeroIsNoFence) {
  Sandbox& sandbox = shared_sandbox();
  RunSpec unfenced = make_spec();
  unfenced.fence_boot_ms = 0;
  EXPECT_EQ(to_string(run_attempts(sandbox, unfenced, "sleep 100").outcome.status), "ok");
  RunSpec removed_fence = make_spec();
  removed_fence.fence_boot_ms = now_boot_ms() + 500;
  StartedRun started = start_attempts(sandbox, removed_fence, "sleep 1000");
  sandbox.fence(removed_fence.run, 0);
  EXPECT_EQ(to_string(wait_for_end(sandbox, started).outcome.status), "ok");
  RunSpec late_fence = make_spec();
  StartedRun fenced = start_attempts(sandbox, late_fence, "sleep 60000");
  sandbox.fence(late_fence.run, 0);
  sandbox.fence(late_fence.run, now_boot_ms());
  EXPECT_EQ(to_string(wait_for_end(sandbox, fenced).outcome.status), "lost");
}

// SQ20, SH2
TEST(Outcome, InvalidLimitsAreASetupErrorThatNamesTheField) {
  struct InvalidLimit {
    const char* field;
    void (*invalidate)(Limits&);
  };
  const InvalidLimit rows[] = {
      {"wall_ms", [](Limits& limits) { limits.wall_ms = 0; }},
      {"wall_ms", [](Limits& limits) { limits.wall_ms = ~0ULL; }},
      {"memory_bytes", [](Limits& limits) { limits.memory_bytes = 0; }},
      {"memory_bytes", [](Limits& limits) { limits.memory_bytes = ~0ULL; }},
      {"pids", [](Limits& limits) { limits.pids = 0; }},
      {"pids", [](Limits& limits) { limits.pids = ~0U; }},
      {"open_files", [](Limits& limits) { limits.open_files = 3; }},
      {"tmp_bytes", [](Limits& limits) { limits.tmp_bytes = 0; }},
      {"file_bytes", [](Limits& limits) { limits.file_bytes = 0; }},
  };
  for (const auto& row : rows) {
    RunSpec spec = make_spec();
    row.invalidate(spec.limits);
    const RunResult result = run_attempts(shared_sandbox(), spec, "getpid");
    EXPECT_EQ(to_string(result.outcome.status), "setup_error") << row.field;
    ASSERT_TRUE(result.outcome.setup_error);
    EXPECT_NE(result.outcome.setup_error->remedy.find(row.field), std::string::npos)
        << result.outcome.setup_error->remedy;
  }
}

TEST(Outcome, UnknownHostIsASetupError) {
  RunSpec spec = make_spec();
  spec.host = "cobol";
  EXPECT_EQ(to_string(run_attempts(shared_sandbox(), spec, "").outcome.status), "setup_error");
}

TEST(Outcome, MissingHostProgramIsASetupErrorWithARemedy) {
  SandboxConfig config = make_test_config();
  config.hosts = {{"attempt", "/nonexistent/host"}};
  auto sandbox = start_sandbox(config);
  ASSERT_TRUE(sandbox) << sandbox.error().message;
  const RunResult result = run_attempts(**sandbox, make_spec(), "getpid");
  EXPECT_EQ(to_string(result.outcome.status), "setup_error");
  ASSERT_TRUE(result.outcome.setup_error);
  EXPECT_EQ(result.outcome.setup_error->step, "zygote_program");
  EXPECT_FALSE(result.outcome.setup_error->remedy.empty());
}

TEST(Outcome, ViolationIsActionable) {
  const RunResult result = run_attempts("call keyctl 17 1 2");
  EXPECT_EQ(get_violation(result), "keyctl");
  EXPECT_GE(result.outcome.violation->pid, 2);
  EXPECT_EQ(result.outcome.violation->args[0], 17U);
  EXPECT_EQ(result.outcome.violation->comm, "attempt");
  EXPECT_EQ(result.outcome.reason.rfind("denied: keyctl(0x11, 0x1, 0x2,", 0), 0U) << result.outcome.reason;
}

}  // namespace
}  // namespace mycojobs::test
