// Tests that need ptrace: a process that does not end when it is killed.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <optional>

#include "base/fd.h"
#include "fixture.h"

namespace mycojobs::test {
namespace {

// A locked file. After release_own_lock(), the lock is held only by processes that have inherited the descriptor.
class AliveFile {
 public:
  AliveFile() : locked_(::memfd_create("alive", MFD_CLOEXEC)) {
    EXPECT_EQ(::flock(locked_.get(), LOCK_EX), 0);
    const std::string path = "/proc/self/fd/" + std::to_string(locked_.get());
    probe_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // A second open file description of the same file.
    EXPECT_TRUE(probe_);
  }
  int fd() const { return locked_.get(); }
  void release_own_lock() { locked_.reset(); }
  bool is_free() {
    if (::flock(probe_.get(), LOCK_EX | LOCK_NB) != 0) return false;
    return ::flock(probe_.get(), LOCK_UN) == 0;
  }

 private:
  Fd locked_, probe_;
};

std::vector<std::string> list_open_files(pid_t pid) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    files.push_back(std::filesystem::read_symlink(entry.path(), error));
  }
  return files;
}
bool has_lock_open(pid_t pid) {
  for (const auto& file : list_open_files(pid)) {
    if (file.find("memfd:alive") != std::string::npos) return true;
  }
  return false;
}

// The processes of the only run of a sandbox.
struct RunProcesses {
  pid_t zygote = -1, init = -1, job = -1, straggler = -1;
};
RunProcesses find_run_processes(const DedicatedSandbox& dedicated_sandbox) {
  RunProcesses processes;
  EXPECT_TRUE(eventually(
      [&] { return find_children(dedicated_sandbox.launcher).size() == 1; }));  // The zygote of the canary has ended.
  processes.zygote = find_children(dedicated_sandbox.launcher).at(0);
  EXPECT_TRUE(eventually([&] { return find_children(processes.zygote).size() == 1; }));  // The canary has ended.
  processes.init = find_children(processes.zygote).at(0);
  const auto children = find_children(processes.init);
  processes.job = children.at(0);  // The job is older than the straggler, and /proc is sorted.
  if (children.size() > 1) processes.straggler = children.at(1);
  return processes;
}

// Traces a process. If the process is killed, it remains as a zombie until release(), because only the tracer can reap
// it.
class Tracer {
 public:
  explicit Tracer(pid_t pid, int options = 0) : pid_(pid) {
    EXPECT_EQ(::ptrace(PTRACE_SEIZE, pid, nullptr, options), 0) << "errno " << errno;
  }
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;
  ~Tracer() { release(); }
  // Returns the next stop or exit status, or 0 if none arrived.
  int wait_for_status() const {
    int status = 0;
    return eventually([&] { return ::waitpid(pid_, &status, __WALL | WNOHANG) == pid_; }) ? status : 0;
  }
  void release() {
    if (pid_ < 0) return;
    const bool was_killed = ::ptrace(PTRACE_DETACH, pid_, nullptr, 0) != 0;
    if (was_killed) {
      EXPECT_TRUE(WIFSIGNALED(wait_for_status()));
    }
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

std::optional<Outcome> wait_for_report(Sandbox& sandbox, std::uint64_t run) {
  std::optional<Outcome> report;
  EXPECT_TRUE(eventually([&] {
    for (auto& ended : sandbox.read_ended()) {
      if (ended.run == run && !report) report = std::move(ended.outcome);
    }
    return report.has_value();
  })) << "the run is not reported";
  return report;
}

SandboxConfig make_config_with_short_timeout() {
  SandboxConfig config = make_test_config();
  config.max_prewarmed = 0;  // All processes below the zygote belong to the run.
  config.unkillable_ms = 50;
  return config;
}

TEST(AliveLock, JobDoesNotHaveTheLock) {
  const AliveFile file;
  SandboxConfig config = make_test_config();
  config.max_prewarmed = 0;  // All processes below the zygote belong to the run.
  config.alive_fd = file.fd();
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  EXPECT_EQ(
      run_attempts(*dedicated_sandbox.sandbox, make_spec(), "list /proc/self/fd").get_result("list /proc/self/fd"),
      "0 1 2 3 4");
}

TEST(AliveLock, LauncherZygoteAndInitHaveTheLock) {
  if (::geteuid() != 0) GTEST_SKIP() << "an unprivileged user cannot inspect these processes";
  const AliveFile file;
  SandboxConfig config = make_test_config();
  config.max_prewarmed = 0;  // All processes below the zygote belong to the run.
  config.alive_fd = file.fd();
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  const RunProcesses processes = find_run_processes(dedicated_sandbox);
  for (pid_t pid : {dedicated_sandbox.launcher, processes.zygote, processes.init})
    EXPECT_TRUE(has_lock_open(pid)) << pid;
  EXPECT_FALSE(list_open_files(processes.job).empty());
  EXPECT_FALSE(has_lock_open(processes.job));
  dedicated_sandbox.sandbox->kill(started.spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "cancelled");
}

// The kernel closes the files of a process while it exits, so init is stopped just before that. The guardian would wait
// for init and is killed first.
TEST(AliveLock, LockIsFreeOnlyAfterTheLastInit) {
  AliveFile file;
  SandboxConfig config = make_test_config();
  config.max_prewarmed = 0;  // All processes below the zygote belong to the run.
  config.alive_fd = file.fd();
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  file.release_own_lock();
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  const RunProcesses processes = find_run_processes(dedicated_sandbox);
  Tracer tracer(processes.init, PTRACE_O_TRACEEXIT);
  EXPECT_FALSE(file.is_free());
  ::kill(dedicated_sandbox.guardian, SIGKILL);
  EXPECT_EQ(tracer.wait_for_status() >> 8, SIGTRAP | (PTRACE_EVENT_EXIT << 8));
  EXPECT_TRUE(eventually([&] {
    return list_open_files(dedicated_sandbox.launcher).empty() && list_open_files(processes.zygote).empty();
  }));
  EXPECT_FALSE(file.is_free()) << "the lock is free while init exists";
  tracer.release();
  EXPECT_TRUE(eventually([&] { return file.is_free(); }));
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "lost");
}

// The kernel closes the files of a killed init before it kills the other processes of the namespace. Without waiting
// for them, the successor of a killed agent could find a job that is still running.
TEST(AliveLock, LockIsHeldUntilTheJobIsGone) {
  AliveFile file;
  int report[2];
  ASSERT_EQ(::pipe(report), 0);
  const pid_t agent = ::fork();
  if (agent == 0) {
    SandboxConfig config = make_test_config();
    config.max_prewarmed = 0;  // All processes below the zygote belong to the run.
    config.alive_fd = file.fd();
    DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
    StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
    wait_for_output(started, "up");
    const RunProcesses processes = find_run_processes(dedicated_sandbox);
    const pid_t pids[] = {processes.job, dedicated_sandbox.launcher, processes.zygote, processes.init};
    (void)!::write(report[1], pids, sizeof pids);
    ::pause();
    ::_exit(0);
  }
  file.release_own_lock();
  pid_t pids[4] = {};
  ASSERT_EQ(::read(report[0], pids, sizeof pids), static_cast<ssize_t>(sizeof pids));
  Tracer tracer(pids[0]);
  ::kill(pids[1], SIGKILL);
  ::kill(agent, SIGKILL);
  ::waitpid(agent, nullptr, 0);
  for (pid_t pid : {pids[1], pids[2], pids[3]})
    EXPECT_TRUE(eventually([&] { return list_open_files(pid).empty(); })) << pid;
  EXPECT_FALSE(file.is_free()) << "the lock is free while the job exists";
  tracer.release();
  EXPECT_TRUE(eventually([&] { return file.is_free(); }));
  EXPECT_TRUE(is_reaped(pids[0])) << "the lock was free too early";
  ::close(report[0]);
  ::close(report[1]);
}

TEST(Unkillable, IsReportedWithoutDelayingOthers) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_config_with_short_timeout());
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  const RunProcesses processes = find_run_processes(dedicated_sandbox);
  Tracer tracer(processes.job);
  dedicated_sandbox.sandbox->kill(started.spec.run, KillReason::cancelled, 0);
  const auto report = wait_for_report(*dedicated_sandbox.sandbox, started.spec.run);
  ASSERT_TRUE(report);
  EXPECT_EQ(to_string(report->status), "unkillable");
  EXPECT_EQ(
      report->reason.rfind("KILL has had no effect for 50 ms on process " + std::to_string(processes.job) + " (", 0),
      0U)
      << report->reason;
  EXPECT_NE(report->reason.find("cancelled"), std::string::npos) << report->reason;
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome.status), "ok");
  dedicated_sandbox.sandbox->kill(started.spec.run, KillReason::output_limit, 0);  // Has no effect on an ended run.
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "exit 3").outcome.status), "exit");
  EXPECT_TRUE(dedicated_sandbox.sandbox->read_ended().empty());
  tracer.release();
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "cancelled");
}

// Init stops waiting and does not add the usage of the process, but the group has counted it.
TEST(Usage, LateJobHasTheUsageOfItsGroup) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  SandboxConfig config = make_config_with_short_timeout();
  config.unkillable_ms = 60000;
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nspin");
  wait_for_output(started, "up");
  const RunProcesses processes = find_run_processes(dedicated_sandbox);
  const auto read_cpu_ms = [&] {
    clockid_t clock{};
    timespec cpu_time{};
    if (::clock_getcpuclockid(processes.job, &clock) != 0 || ::clock_gettime(clock, &cpu_time) != 0) return 0L;
    return static_cast<long>(cpu_time.tv_sec) * 1000 + cpu_time.tv_nsec / 1000000;
  };
  EXPECT_TRUE(eventually([&] { return read_cpu_ms() > 200; }));
  Tracer tracer(processes.job);
  dedicated_sandbox.sandbox->kill(started.spec.run, KillReason::cancelled, 0);
  EXPECT_TRUE(eventually([&] { return list_open_files(processes.init).empty(); })) << "init still exists";
  tracer.release();
  const Outcome outcome = wait_for_end(*dedicated_sandbox.sandbox, started).outcome;
  EXPECT_EQ(to_string(outcome.status), "cancelled") << outcome.reason;
  EXPECT_GE(outcome.usage.user_us + outcome.usage.system_us, 200'000U);
}

// No kill was requested: init kills the processes that an ended job left behind.
TEST(Unkillable, StragglerOfAnEndedJobIsReported) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_config_with_short_timeout());
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, spec, "daemonize\nprint up\nsleep 60000");
  wait_for_output(started, "up");
  const RunProcesses processes = find_run_processes(dedicated_sandbox);
  ASSERT_GT(processes.straggler, 0);
  Tracer tracer(processes.straggler);
  ::kill(processes.job, SIGSEGV);
  const auto report = wait_for_report(*dedicated_sandbox.sandbox, spec.run);
  ASSERT_TRUE(report);
  EXPECT_EQ(to_string(report->status), "unkillable");
  tracer.release();
  const RunResult result = wait_for_end(*dedicated_sandbox.sandbox, started);
  EXPECT_EQ(to_string(result.outcome.status), "signal") << result.outcome.reason;
  EXPECT_EQ(result.outcome.signal, SIGSEGV);
}

// The processes of the other run have ended, but its zygote cannot report this.
TEST(Unkillable, DelaysNoOtherRunOfItsZygote) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_config_with_short_timeout());
  StartedRun blocked_run = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(blocked_run, "up");
  const RunProcesses processes = find_run_processes(dedicated_sandbox);
  StartedRun other = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(other, "up");
  Tracer tracer(processes.job);
  ::kill(processes.zygote, SIGKILL);  // Its exit blocks in the kernel until all its namespaces have ended.
  std::map<std::uint64_t, std::string> statuses;
  EXPECT_TRUE(eventually([&] {
    for (const auto& ended : dedicated_sandbox.sandbox->read_ended())
      statuses[ended.run] = to_string(ended.outcome.status);
    return statuses[blocked_run.spec.run] == "unkillable" && statuses[other.spec.run] == "lost";
  })) << statuses[blocked_run.spec.run]
      << ", " << statuses[other.spec.run];
  tracer.release();
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, blocked_run).outcome.status), "lost");
  for (int fd : {other.pipes.out, other.pipes.err, other.pipes.channel, other.pipes.requests}) ::close(fd);
}

// A lost run may start again elsewhere, so it must not be reported as lost while one of its processes exists.
TEST(Unkillable, IsLostOnlyAfterItIsGone) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_config_with_short_timeout());
  StartedRun started = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  const RunProcesses processes = find_run_processes(dedicated_sandbox);
  Tracer tracer(processes.job);
  ::kill(dedicated_sandbox.launcher, SIGKILL);
  const auto report = wait_for_report(*dedicated_sandbox.sandbox, started.spec.run);
  ASSERT_TRUE(report);
  EXPECT_EQ(to_string(report->status), "unkillable");
  ASSERT_TRUE(dedicated_sandbox.sandbox->restart());
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome.status), "ok");
  EXPECT_TRUE(dedicated_sandbox.sandbox->read_ended().empty());
  tracer.release();
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, started).outcome.status), "lost");
  EXPECT_TRUE(is_reaped(processes.job));
}

}  // namespace
}  // namespace mycojobs::test
