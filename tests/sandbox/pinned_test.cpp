// Tests that a job can allocate only a bounded amount of kernel memory that is not charged to its group.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "fixture.h"
#include "sandbox/launcher/reported_calls.h"
#include "sandbox/zygote/child.h"

namespace mycojobs::test {
namespace {

using sandbox::CountedCalls;

// Each counted call is a request to the launcher, which is slow under emulation.
constexpr std::uint64_t kWallMs = 300000;

const std::string kMaxLocks = std::to_string(CountedCalls::kMaxLocks);
const std::string kMaxListeners = std::to_string(CountedCalls::kMaxListeners);

RunResult run_with_loopback(const std::string& lines, bool can_exec = false) {
  RunSpec spec = make_spec();
  spec.grants.network = Network::loopback;
  spec.limits.exec = can_exec;
  return run_attempts(shared_sandbox(), spec, lines);
}

// A job that cannot conflict with the locks of other processes needs no real locks.
TEST(KernelMemory, RecordLockOfASingleJobIsNotSet) {
  const RunResult result = run_attempts("pin record_locks 20000\nlocks_held\nlock_path /tmp/a 6\nlock_path /tmp/a 7");
  EXPECT_EQ(result.get_result("pin record_locks 20000"), "20000") << result.outcome.reason;
  EXPECT_EQ(result.get_result("locks_held"), "0");
  EXPECT_EQ(result.get_result("lock_path /tmp/a 6"), "ok");
  EXPECT_EQ(result.get_result("lock_path /tmp/a 7"), "ok");
}

TEST(KernelMemory, ContestedRecordLocksAreLimited) {
  const RunResult result = run_attempts_with_exec("pin record_locks 20000\nlocks_held\nlock_path /tmp/a 6", kWallMs);
  EXPECT_EQ(result.get_result("pin record_locks 20000"), kMaxLocks + " ENOLCK") << result.outcome.reason;
  EXPECT_EQ(result.get_result("locks_held"), kMaxLocks);
  EXPECT_EQ(result.get_result("lock_path /tmp/a 6"), "ENOLCK");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
}

TEST(KernelMemory, RecordLocksOfAllProcessesOfAJobCountTogether) {
  const RunResult result = run_attempts_with_exec("locks_of_children 10 2000", kWallMs);
  EXPECT_EQ(result.get_result("locks_of_children 10 2000"), kMaxLocks) << result.outcome.reason;
}

TEST(KernelMemory, ReleasedRecordLockDoesNotCount) {
  const RunResult result =
      run_attempts_with_exec("lock_and_unlock 12000\nlocks_of_children 4 1000\nlocks_of_children 4 1000", kWallMs);
  EXPECT_EQ(result.get_result("lock_and_unlock 12000"), "12000") << result.outcome.reason;
  EXPECT_EQ(result.get_result("locks_of_children 4 1000"), "4000");
}

// The count does not carry over to the next run in the same sandbox.
TEST(KernelMemory, NextRunStartsAtZero) {
  for (int i = 0; i < 3; ++i) {
    const RunResult result = run_attempts_with_exec("pin record_locks 5000", kWallMs);
    EXPECT_EQ(result.get_result("pin record_locks 5000"), "5000") << i << result.outcome.reason;
  }
}

// A signal can interrupt a call that is being counted. The interruption is not a violation.
TEST(KernelMemory, SignalsDuringCountedCallsAreNoViolation) {
  const RunResult result = run_attempts_with_exec("locks_under_signals 4000", kWallMs);
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  EXPECT_EQ(result.get_result("locks_under_signals 4000"), "ok");
}

TEST(KernelMemory, OpenFileLocksAreRejected) {
  for (const char* line : {"lock_path /tmp/a 37", "lock_path /tmp/a 38"}) {  // F_OFD_SETLK, F_OFD_SETLKW
    EXPECT_EQ(run_attempts(line).get_result(line), "EINVAL");
    EXPECT_EQ(run_attempts_with_exec(line, kWallMs).get_result(line), "EINVAL");
  }
}

// In a folder that two runs share, record locks are real.
TEST(KernelMemory, RecordLockInAGrantedFolderExcludesAnotherRun) {
  char folder[] = "/var/tmp/mycojobs-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  RunSpec spec = make_spec();
  spec.grants.fs_write = {folder};
  const std::string file = std::string(folder) + "/data", line = "lock_path " + file + " 6";
  StartedRun holder =
      start_attempts(shared_sandbox(), spec, line + "\nchmod " + file + " 0666\nprint held\nsleep 60000");
  wait_for_output(holder, "held");
  spec.run = next_run_id();
  EXPECT_EQ(run_attempts(shared_sandbox(), spec, line).get_result(line), "EAGAIN");
  shared_sandbox().kill(holder.spec.run, KillReason::cancelled, 0);
  wait_for_end(shared_sandbox(), holder);
  spec.run = next_run_id();
  EXPECT_EQ(run_attempts(shared_sandbox(), spec, line).get_result(line), "ok");
  std::filesystem::remove_all(folder);
}

// The launcher counts the calls. It must still serve other runs and detect a forbidden call.
TEST(KernelMemory, FloodOfCountedCallsDoesNotBlockTheLauncher) {
  Sandbox& sandbox = shared_sandbox();
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  StartedRun flooding_run = start_attempts(sandbox, spec, "print up\nlock_storm 1500\ncall ptrace");
  wait_for_output(flooding_run, "up");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(to_string(run_attempts("getpid").outcome.status), "ok");
  EXPECT_EQ(get_violation(wait_for_end(sandbox, flooding_run)), "ptrace");
}

TEST(KernelMemory, ListenersAreLimited) {
  const RunResult result = run_with_loopback("pin listeners 40");
  EXPECT_EQ(result.get_result("pin listeners 40"), kMaxListeners + " ENOBUFS") << result.outcome.reason;
  EXPECT_EQ(run_with_loopback("listen_and_close 100").get_result("listen_and_close 100"), "100");
  EXPECT_EQ(run_with_loopback("listen_and_close 100", true).get_result("listen_and_close 100"), "100");
}

// The launcher does not receive the job's socket, because closing the last reference can block as long as the job
// chooses.
TEST(KernelMemory, SocketClosedDuringListenDelaysOnlyItsJob) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  RunSpec spec = make_spec(kWallMs);
  spec.grants.network = Network::loopback;
  spec.grants.syscalls = {"setsockopt"};  // Permits SO_LINGER, which otherwise has no effect.
  StartedRun attack =
      start_attempts(*dedicated_sandbox.sandbox, spec, "linger\nclose_behind_listen 300\nprint done\nsleep 600000");
  std::uint64_t other_runs = 0;
  while (attack.stdout_text.find("done") == std::string::npos && other_runs++ < 5000) {
    StartedRun other = start_attempts(*dedicated_sandbox.sandbox, make_spec(20000), "getpid");
    ASSERT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, other).outcome.status), "ok");
    char buffer[64];
    const ssize_t size = ::read(attack.pipes.out, buffer, sizeof buffer);
    if (size > 0) attack.stdout_text.append(buffer, static_cast<std::size_t>(size));
  }
  dedicated_sandbox.sandbox->kill(attack.spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, attack).outcome.status), "cancelled");
  EXPECT_TRUE(eventually([&] {
    const auto children = find_children(dedicated_sandbox.launcher);
    return std::none_of(children.begin(), children.end(),
                        [](pid_t pid) { return read_process_name(pid) == "mycojobs-calls"; });
  })) << "the helper of the job ends with the job";
}

// Otherwise a worker thread of the kernel, shared by the whole host, could close the last reference and block.
TEST(KernelMemory, NoSocketOfAJobLingers) {
  const RunResult result = run_with_loopback("linger");
  EXPECT_EQ(result.get_result("linger"), "off") << result.outcome.reason;
}

// The launcher does not read unsolicited messages: other jobs start and end, and a forbidden call is still detected.
TEST(KernelMemory, FloodOfListensDoesNotBlockTheLauncher) {
  Sandbox& sandbox = shared_sandbox();
  RunSpec spec = make_spec();
  spec.grants.network = Network::loopback;
  StartedRun flooding_run = start_attempts(sandbox, spec, "print up\nlisten_storm 1500\ncall ptrace");
  wait_for_output(flooding_run, "up");
  for (int i = 0; i < 20; ++i) EXPECT_EQ(to_string(run_attempts("getpid").outcome.status), "ok");
  EXPECT_EQ(get_violation(wait_for_end(sandbox, flooding_run)), "ptrace");
}

// An incomplete (corked) datagram is charged to no group: 64 KiB for each open file of each process.
TEST(KernelMemory, WaitingDatagramsAreRejected) {
  const RunResult result =
      run_with_loopback("pin corked 50\npin corked_sendmsg 50\npin corked_sendmmsg 50\ncork_option");
  for (const char* line : {"pin corked 50", "pin corked_sendmsg 50", "pin corked_sendmmsg 50"})
    EXPECT_EQ(result.get_result(line), "0 EOPNOTSUPP") << line << result.outcome.reason;
  EXPECT_EQ(result.get_result("cork_option"), "EPERM");
}

// The kernel queues only a few of 400 connections that are not accepted, with little data, for all queue and buffer
// sizes.
TEST(KernelMemory, UnacceptedConnectionsAreFewAndSmall) {
  const RunResult result = run_with_loopback("pending 400");
  const std::string result_text = result.get_result("pending 400");
  unsigned established_count = 0, attempted_count = 0, sent_kib = 0;
  ASSERT_EQ(std::sscanf(result_text.c_str(), "%u of %u, %u KiB", &established_count, &attempted_count, &sent_kib), 3)
      << result_text;
  EXPECT_GT(established_count, 0U);
  EXPECT_LE(established_count, static_cast<unsigned>(sandbox::kMaxPendingConnections) + 1) << result_text;
}

TEST(KernelMemory, ClosingConnectionsAreFew) {
  const RunResult result = run_with_loopback("pin time_waits 4000");
  EXPECT_LE(std::stoul(result.get_result("pin time_waits 4000")), 1024U) << result.get_result("pin time_waits 4000");
}

// Each kind reaches a limit of its own or is charged to the group of the job.
TEST(KernelMemory, EveryKindReachesALimit) {
  for (const char* kind : {"record_locks 30000", "flocks", "epoll_items", "epolls", "eventfds", "timerfds", "timers",
                           "signals", "pipes", "pairs", "files", "symlinks", "landlock_rules", "threads"}) {
    RunSpec spec = make_spec();
    spec.limits.memory_bytes = 32U << 20;
    spec.limits.tmp_bytes = 16U << 20;
    const std::string line = std::string("pin ") + kind;
    const RunResult result = run_attempts(shared_sandbox(), spec, line);
    const std::string result_text = result.get_result(line);
    EXPECT_TRUE(result.outcome.status == RunStatus::oom || result_text.find(' ') != std::string::npos ||
                result_text == "30000")
        << kind << ": " << result_text << ' ' << result.outcome.reason;
  }
}

// In version 2 of cgroups, one killed process ends the job. In version 1 the other processes continue, and the outcome
// is still oom.
TEST(KernelMemory, ChildKilledForMemoryIsNotOk) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  spec.limits.memory_bytes = 32U << 20;
  const RunResult result = run_attempts(shared_sandbox(), spec, "child_touch 128");
  EXPECT_EQ(to_string(result.outcome.status), "oom") << result.outcome.reason;
  EXPECT_NE(result.outcome.reason.find("32 MiB"), std::string::npos) << result.outcome.reason;
}

}  // namespace
}  // namespace mycojobs::test
