// Isolation of the processes of a job, state that a job must not inherit, and limits.
#include <dirent.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "fixture.h"

namespace mycojobs::test {
namespace {

// SP1: kill(-1) reaches no process outside, and killing init from inside has no effect.
TEST(Processes, SignalsReachOnlyTheOwnNamespace) {
  const RunResult run_result = run_attempts("kill 1 9\nkill -1 9\nkill " + std::to_string(::getpid()) + " 9\ngetpid");
  EXPECT_EQ(to_string(run_result.outcome.status), "ok") << run_result.outcome.reason;
  EXPECT_EQ(run_result.get_result("kill -1 9"), "ESRCH");
  EXPECT_EQ(run_result.get_result("kill " + std::to_string(::getpid()) + " 9"), "ESRCH");  // SP2
  EXPECT_TRUE(run_result.get_result("getpid").ends_with(" of 1")) << run_result.get_result("getpid");
}

// SP3
TEST(Processes, ProcShowsOnlyItsOwnProcesses) {
  const RunResult run_result = run_attempts("getpid\nlist /proc");
  const std::string own_pid = run_result.get_result("getpid").substr(0, run_result.get_result("getpid").find(' '));
  std::istringstream names(run_result.get_result("list /proc"));
  for (std::string name; names >> name;) {
    EXPECT_TRUE(name == own_pid || name == "1" || name == "self" || name == "thread-self") << name;
  }
}

// SP6
TEST(Processes, DaemonDiesWithTheJobAndIsCounted) {
  const RunResult run_result = run_attempts_with_exec("daemonize");
  EXPECT_EQ(to_string(run_result.outcome.status), "ok") << run_result.outcome.reason;
  EXPECT_EQ(run_result.get_result("daemonize"), "ok");
  EXPECT_EQ(run_result.outcome.stragglers, 1U);
}

// SP9: zombies whose parent has exited are reaped, so they do not count against the limit.
TEST(Processes, ZombiesAreReaped) {
  const RunResult run_result = run_attempts_with_exec("zombies 40\nprint x");
  EXPECT_EQ(to_string(run_result.outcome.status), "ok") << run_result.outcome.reason;
  EXPECT_EQ(run_result.get_result("zombies 40"), "ok");
}

// SQ1, SQ2
TEST(Processes, ForkBombsReachThePidsLimit) {
  const RunResult fork_result = run_attempts_with_exec("fork_bomb");
  EXPECT_EQ(to_string(fork_result.outcome.status), "ok") << fork_result.outcome.reason;
  // Without cgroups, the less precise rlimit applies.
  const std::string limit = can_limit_by_cgroup() ? "EAGAIN after 6" : "EAGAIN after ";
  EXPECT_EQ(fork_result.get_result("fork_bomb").rfind(limit, 0), 0U) << fork_result.get_result("fork_bomb");
  EXPECT_GT(fork_result.outcome.stragglers, 0U);
  const RunResult thread_result = run_attempts("thread_bomb");
  EXPECT_EQ(thread_result.get_result("thread_bomb").rfind(limit, 0), 0U) << thread_result.get_result("thread_bomb");
}

// SQ3
TEST(Processes, OverTheMemoryLimitIsOom) {
  if (!can_limit_by_cgroup()) {
    EXPECT_EQ(run_attempts("touch 512").get_result("touch 512"), "ENOMEM");  // The rlimit applies instead.
    return;
  }
  const RunResult run_result = run_attempts("touch 512");
  EXPECT_EQ(to_string(run_result.outcome.status), "oom") << run_result.outcome.reason;
  EXPECT_GE(run_result.outcome.usage.memory_peak_bytes, 250ULL << 20);
  const RunResult small_result = run_attempts("touch 100");
  EXPECT_EQ(small_result.get_result("touch 100"), "ok");
  EXPECT_EQ(to_string(small_result.outcome.status), "ok");
}

// SQ5, SQ6, SQ7
TEST(Processes, FoldersAreBounded) {
  for (int round = 0; round < 3; ++round) {
    const RunResult run_result = run_attempts("fill /dev/shm\nfill /tmp\nopen_create /job/x\nwrite /job/x more");
    EXPECT_EQ(to_string(run_result.outcome.status), "ok") << run_result.outcome.reason;
    EXPECT_EQ(run_result.get_result("fill /dev/shm"), "ENOSPC after 64 MiB");
    EXPECT_EQ(run_result.get_result("fill /tmp"), "ENOSPC after 64 MiB");
    EXPECT_EQ(run_result.get_result("write /job/x more"), "ENOSPC");  // Both folders share one limit.
  }
  EXPECT_EQ(run_attempts("files /tmp").get_result("files /tmp"), "ENOSPC");
}

// SX1
TEST(Processes, NextJobSeesNothingOfTheFirst) {
  const RunResult first = run_attempts("write /tmp/a x\nwrite /dev/shm/b x\nwrite /job/c x");
  for (const auto& [attempt, result] : first.results) EXPECT_EQ(result, "ok") << attempt;
  const RunResult second = run_attempts("list /tmp\nlist /dev/shm\nlist /job");
  for (const auto& [attempt, result] : second.results)
    EXPECT_EQ(result, attempt == "list /job" ? "kept" : "") << attempt;
}

// SI1, SI13
TEST(Processes, OnlyTheDeclaredDescriptorsAreOpen) {
  EXPECT_EQ(run_attempts("list /proc/self/fd").get_result("list /proc/self/fd"), "0 1 2 3 4");
}

// SI6
TEST(Processes, EnvironmentIsEmpty) {
  ::setenv("MYCOJOBS_CANARY_SECRET", "do not tell", 1);
  SandboxConfig config = make_test_config();
  auto sandbox = start_sandbox(config);
  ASSERT_TRUE(sandbox) << sandbox.error().message;
  const RunResult run_result = run_attempts(**sandbox, make_spec(), "environ\nread /proc/self/environ");
  EXPECT_EQ(run_result.get_result("environ"), "");
  EXPECT_EQ(run_result.get_result("read /proc/self/environ").find("CANARY"), std::string::npos);
}

// SI9
TEST(Processes, StartsWithACleanState) {
  EXPECT_EQ(run_attempts("inherited").get_result("inherited"), "cwd=/job umask=18 blocked=0 handled=0 nice=0");
}

// SR3
TEST(Processes, StatusShowsNoCapabilities) {
  const std::string status = run_attempts("read /proc/self/status").get_result("read /proc/self/status");
  for (const char* line :
       {"|CapInh:\t0000000000000000|", "|CapPrm:\t0000000000000000|", "|CapEff:\t0000000000000000|",
        "|CapBnd:\t0000000000000000|", "|CapAmb:\t0000000000000000|", "|NoNewPrivs:\t1|", "|Seccomp:\t2|"}) {
    EXPECT_NE(status.find(line), std::string::npos) << line << " in " << status;
  }
  if (::geteuid() == 0) {
    EXPECT_NE(status.find("|Groups:\t |"), std::string::npos) << status;
    EXPECT_EQ(status.find("|Uid:\t0\t"), std::string::npos) << status;
  }
}

TEST(Processes, ConcurrentJobsHaveTheirOwnUsers) {
  if (::geteuid() != 0) GTEST_SKIP() << "an unprivileged user has one id for all jobs";
  StartedRun beside = start_attempts(shared_sandbox(), make_spec(), "print up\nsleep 300\ngetuid");
  wait_for_output(beside, "up");
  const std::string first = run_attempts("getuid").get_result("getuid");
  EXPECT_NE(first, wait_for_end(shared_sandbox(), beside).get_result("getuid"));
  EXPECT_GE(std::stoi(first), 1000);
}

// SR1
TEST(Processes, SetuidProgramGainsNothing) {
  const RunResult run_result = run_attempts_with_exec("run /bin/su\ngetuid");
  EXPECT_NE(run_result.get_result("getuid"), ::geteuid() == 0 ? "0" : "x");
}

// SR4 without the help of seccomp: the zygote checks that a second user namespace is refused; otherwise it does not
// start.
TEST(Processes, CgroupPathIsHidden) {
  const std::string groups = run_attempts("read /proc/self/cgroup").get_result("read /proc/self/cgroup");
  EXPECT_EQ(groups.find("mycojobs"), std::string::npos) << groups;
}

}  // namespace
}  // namespace mycojobs::test
