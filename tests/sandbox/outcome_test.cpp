#include <algorithm>
#include <csignal>

#include "fixture.h"

namespace mycojobs::test {
namespace {

bool has(const std::vector<std::string>& list, const std::string& prefix) {
  return std::any_of(list.begin(), list.end(), [&](const auto& each) { return each.rfind(prefix, 0) == 0; });
}

TEST(Outcome, PlainRunIsOkWithItsLayersStepsAndUsage) {
  DedicatedSandbox dedicated_sandbox =
      start_dedicated_sandbox();  // the first run of a sandbox reports all steps; later runs reuse the sandbox
  const RunResult result = run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid\nprint hello");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  EXPECT_EQ(result.answer("getpid"), "2 of 1");
  EXPECT_EQ(result.out, "hello");
  EXPECT_TRUE(result.outcome.reason.empty());
  EXPECT_EQ(result.outcome.stragglers, 0U);
  EXPECT_GT(result.outcome.usage.wall_us, 0U);
  for (const char* layer :
       {"userns", "pidns", "mountns", "netns", "ipcns", "utsns", "cgroupns", "seccomp", "caps", "nnp"}) {
    EXPECT_TRUE(has(result.outcome.layers, layer)) << layer;
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
  EXPECT_EQ(result.answer("fork_burn"), "ok");
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
  sandbox.kill(started.spec.run, KillReason::cancelled, 40000);  // a grace longer than this test
  EXPECT_EQ(to_string(wait_for_end(sandbox, started).outcome.status), "cancelled");
}

TEST(Outcome, CancelledJobHasItsFullGrace) {
  Sandbox& sandbox = shared_sandbox();
  StartedRun started = start_attempts(sandbox, make_spec(), "ignore_signals\nprint deaf\nsleep 500\nprint cleaned");
  wait_for_output(started, "deaf");
  sandbox.kill(started.spec.run, KillReason::cancelled, 40000);
  const RunResult result = wait_for_end(sandbox, started);
  EXPECT_EQ(to_string(result.outcome.status), "cancelled") << result.outcome.reason;
  EXPECT_NE(result.out.find("cleaned"), std::string::npos) << result.out;
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
  RunSpec without = make_spec();
  without.fence_boot_ms = 0;
  EXPECT_EQ(to_string(run_attempts(sandbox, without, "sleep 100").outcome.status), "ok");
  RunSpec taken_back = make_spec();
  taken_back.fence_boot_ms = now_boot_ms() + 500;
  StartedRun started = start_attempts(sandbox, taken_back, "sleep 1000");
  sandbox.fence(taken_back.run, 0);
  EXPECT_EQ(to_string(wait_for_end(sandbox, started).outcome.status), "ok");
  RunSpec late = make_spec();
  StartedRun fenced = start_attempts(sandbox, late, "sleep 60000");
  sandbox.fence(late.run, 0);
  sandbox.fence(late.run, now_boot_ms());
  EXPECT_EQ(to_string(wait_for_end(sandbox, fenced).outcome.status), "lost");
}

// SQ20, SH2
TEST(Outcome, InvalidLimitsAreASetupErrorThatNamesTheField) {
  struct Row {
    const char* field;
    void (*spoil)(Limits&);
  };
  const Row rows[] = {
      {"wall_ms", [](Limits& l) { l.wall_ms = 0; }},
      {"wall_ms", [](Limits& l) { l.wall_ms = ~0ULL; }},
      {"memory_bytes", [](Limits& l) { l.memory_bytes = 0; }},
      {"memory_bytes", [](Limits& l) { l.memory_bytes = ~0ULL; }},
      {"pids", [](Limits& l) { l.pids = 0; }},
      {"pids", [](Limits& l) { l.pids = ~0U; }},
      {"open_files", [](Limits& l) { l.open_files = 3; }},
      {"tmp_bytes", [](Limits& l) { l.tmp_bytes = 0; }},
      {"file_bytes", [](Limits& l) { l.file_bytes = 0; }},
  };
  for (const auto& row : rows) {
    RunSpec spec = make_spec();
    row.spoil(spec.limits);
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
