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

// A file with a lock that this process holds until it passes the lock to the processes that inherited the descriptor.
class AliveFile {
 public:
  AliveFile() : held_(::memfd_create("alive", MFD_CLOEXEC)) {
    EXPECT_EQ(::flock(held_.get(), LOCK_EX), 0);
    const std::string path = "/proc/self/fd/" + std::to_string(held_.get());
    other_.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // another open file description of the same file
    EXPECT_TRUE(other_);
  }
  int fd() const { return held_.get(); }
  void leave() { held_.reset(); }
  bool is_free() {
    if (::flock(other_.get(), LOCK_EX | LOCK_NB) != 0) return false;
    return ::flock(other_.get(), LOCK_UN) == 0;
  }

 private:
  Fd held_, other_;
};

std::vector<std::string> open_files(pid_t pid) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    files.push_back(std::filesystem::read_symlink(entry.path(), error));
  }
  return files;
}
bool has_alive(pid_t pid) {
  for (const auto& file : open_files(pid)) {
    if (file.find("memfd:alive") != std::string::npos) return true;
  }
  return false;
}

// The processes of the only run of a sandbox.
struct Family {
  pid_t zygote = -1, init = -1, job = -1, straggler = -1;
};
Family find_family(const OwnSandbox& own) {
  Family family;
  EXPECT_TRUE(
      eventually([&] { return find_children(own.launcher).size() == 1; }));  // the zygote of the canary has ended
  family.zygote = find_children(own.launcher).at(0);
  EXPECT_TRUE(eventually([&] { return find_children(family.zygote).size() == 1; }));  // the canary has ended
  family.init = find_children(family.zygote).at(0);
  const auto processes = find_children(family.init);
  family.job = processes.at(0);  // the older process, because /proc is sorted
  if (processes.size() > 1) family.straggler = processes.at(1);
  return family;
}

// After a kill, the traced process remains as a zombie that only this tracer can reap, until release().
class Tracer {
 public:
  explicit Tracer(pid_t pid, int options = 0) : pid_(pid) {
    EXPECT_EQ(::ptrace(PTRACE_SEIZE, pid, nullptr, options), 0) << "errno " << errno;
  }
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;
  ~Tracer() { release(); }
  // Returns the next stop or exit status, or 0 if none arrived.
  int next_status() const {
    int status = 0;
    return eventually([&] { return ::waitpid(pid_, &status, __WALL | WNOHANG) == pid_; }) ? status : 0;
  }
  void release() {
    if (pid_ < 0) return;
    const bool dead = ::ptrace(PTRACE_DETACH, pid_, nullptr, 0) != 0;
    if (dead) {
      EXPECT_TRUE(WIFSIGNALED(next_status()));
    }
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

std::optional<Outcome> next_report(Sandbox& sandbox, std::uint64_t run) {
  std::optional<Outcome> report;
  EXPECT_TRUE(eventually([&] {
    for (auto& each : sandbox.read_ended()) {
      if (each.run == run && !report) report = std::move(each.outcome);
    }
    return report.has_value();
  })) << "nothing is said of the run";
  return report;
}

SandboxConfig impatient_config() {
  SandboxConfig config = test_config();
  config.prewarmed = 0;  // so all processes below the zygote belong to the run
  config.unkillable_ms = 50;
  return config;
}

TEST(AliveLock, JobDoesNotHaveTheLock) {
  const AliveFile file;
  SandboxConfig config = test_config();
  config.prewarmed = 0;  // so all processes below the zygote belong to the run
  config.alive_fd = file.fd();
  OwnSandbox own = own_sandbox(config);
  EXPECT_EQ(run_attempts(*own.sandbox, spec_with(), "list /proc/self/fd").answer("list /proc/self/fd"), "0 1 2 3 4");
}

TEST(AliveLock, LauncherZygoteAndInitHaveTheLock) {
  if (::geteuid() != 0) GTEST_SKIP() << "an ordinary user may not look into these processes";
  const AliveFile file;
  SandboxConfig config = test_config();
  config.prewarmed = 0;  // so all processes below the zygote belong to the run
  config.alive_fd = file.fd();
  OwnSandbox own = own_sandbox(config);
  StartedRun started = start_attempts(*own.sandbox, spec_with(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  const Family family = find_family(own);
  for (pid_t pid : {own.launcher, family.zygote, family.init}) EXPECT_TRUE(has_alive(pid)) << pid;
  EXPECT_FALSE(open_files(family.job).empty());
  EXPECT_FALSE(has_alive(family.job));
  own.sandbox->kill(started.spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for(*own.sandbox, started).outcome.status), "cancelled");
}

// The kernel closes the files of a process while it exits, so init is stopped just before that. The guardian would wait
// for init and is killed first.
TEST(AliveLock, LockIsFreeOnlyAfterTheLastInit) {
  AliveFile file;
  SandboxConfig config = test_config();
  config.prewarmed = 0;  // so all processes below the zygote belong to the run
  config.alive_fd = file.fd();
  OwnSandbox own = own_sandbox(config);
  file.leave();
  StartedRun started = start_attempts(*own.sandbox, spec_with(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  const Family family = find_family(own);
  Tracer tracer(family.init, PTRACE_O_TRACEEXIT);
  EXPECT_FALSE(file.is_free());
  ::kill(own.guardian, SIGKILL);
  EXPECT_EQ(tracer.next_status() >> 8, SIGTRAP | (PTRACE_EVENT_EXIT << 8));
  EXPECT_TRUE(eventually([&] { return open_files(own.launcher).empty() && open_files(family.zygote).empty(); }));
  EXPECT_FALSE(file.is_free()) << "init is there, and it does not count";
  tracer.release();
  EXPECT_TRUE(eventually([&] { return file.is_free(); }));
  EXPECT_EQ(to_string(wait_for(*own.sandbox, started).outcome.status), "lost");
}

// The kernel closes the files of a killed init before it kills the other processes of the namespace. Without waiting
// for them, the successor of a killed agent could find a job that is still running.
TEST(AliveLock, LockIsHeldUntilTheJobIsGone) {
  AliveFile file;
  int report[2];
  ASSERT_EQ(::pipe(report), 0);
  const pid_t agent = ::fork();
  if (agent == 0) {
    SandboxConfig config = test_config();
    config.prewarmed = 0;  // so all processes below the zygote belong to the run
    config.alive_fd = file.fd();
    OwnSandbox own = own_sandbox(config);
    StartedRun started = start_attempts(*own.sandbox, spec_with(), "print up\nsleep 60000");
    wait_for_output(started, "up");
    const Family family = find_family(own);
    const pid_t all[] = {family.job, own.launcher, family.zygote, family.init};
    (void)!::write(report[1], all, sizeof all);
    ::pause();
    ::_exit(0);
  }
  file.leave();
  pid_t all[4] = {};
  ASSERT_EQ(::read(report[0], all, sizeof all), static_cast<ssize_t>(sizeof all));
  Tracer tracer(all[0]);
  ::kill(all[1], SIGKILL);
  ::kill(agent, SIGKILL);
  ::waitpid(agent, nullptr, 0);
  for (pid_t pid : {all[1], all[2], all[3]}) EXPECT_TRUE(eventually([&] { return open_files(pid).empty(); })) << pid;
  EXPECT_FALSE(file.is_free()) << "the job is there, and it does not count";
  tracer.release();
  EXPECT_TRUE(eventually([&] { return file.is_free(); }));
  EXPECT_TRUE(is_reaped(all[0])) << "the lock was free too early";
  ::close(report[0]);
  ::close(report[1]);
}

TEST(Unkillable, IsReportedWithoutDelayingOthers) {
  OwnSandbox own = own_sandbox(impatient_config());
  StartedRun started = start_attempts(*own.sandbox, spec_with(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  const Family family = find_family(own);
  Tracer tracer(family.job);
  own.sandbox->kill(started.spec.run, KillReason::cancelled, 0);
  const auto report = next_report(*own.sandbox, started.spec.run);
  ASSERT_TRUE(report);
  EXPECT_EQ(to_string(report->status), "unkillable");
  EXPECT_EQ(report->reason.rfind("KILL has had no effect for 50 ms on process " + std::to_string(family.job) + " (", 0),
            0U)
      << report->reason;
  EXPECT_NE(report->reason.find("cancelled"), std::string::npos) << report->reason;
  EXPECT_EQ(to_string(run_attempts(*own.sandbox, spec_with(), "getpid").outcome.status), "ok");
  own.sandbox->kill(started.spec.run, KillReason::output_limit, 0);  // has no effect on an ended run
  EXPECT_EQ(to_string(run_attempts(*own.sandbox, spec_with(), "exit 3").outcome.status), "exit");
  EXPECT_TRUE(own.sandbox->read_ended().empty());
  tracer.release();
  EXPECT_EQ(to_string(wait_for(*own.sandbox, started).outcome.status), "cancelled");
}

// Init stops waiting and does not add the usage of the process, but the group has counted it.
TEST(Usage, LateJobHasTheUsageOfItsGroup) {
  if (!may_limit_by_cgroup()) GTEST_SKIP() << "no group can be made and limited here";
  SandboxConfig config = impatient_config();
  config.unkillable_ms = 60000;
  OwnSandbox own = own_sandbox(config);
  StartedRun started = start_attempts(*own.sandbox, spec_with(), "print up\nspin");
  wait_for_output(started, "up");
  const Family family = find_family(own);
  const auto used_ms = [&] {
    clockid_t clock{};
    timespec used{};
    if (::clock_getcpuclockid(family.job, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0L;
    return static_cast<long>(used.tv_sec) * 1000 + used.tv_nsec / 1000000;
  };
  EXPECT_TRUE(eventually([&] { return used_ms() > 200; }));
  Tracer tracer(family.job);
  own.sandbox->kill(started.spec.run, KillReason::cancelled, 0);
  EXPECT_TRUE(eventually([&] { return open_files(family.init).empty(); })) << "init is there";
  tracer.release();
  const Outcome outcome = wait_for(*own.sandbox, started).outcome;
  EXPECT_EQ(to_string(outcome.status), "cancelled") << outcome.reason;
  EXPECT_GE(outcome.usage.user_us + outcome.usage.system_us, 200'000U);
}

// No kill was requested: init kills the processes that an ended job left behind.
TEST(Unkillable, StragglerOfAnEndedJobIsReported) {
  OwnSandbox own = own_sandbox(impatient_config());
  RunSpec spec = spec_with();
  spec.limits.exec = true;
  StartedRun started = start_attempts(*own.sandbox, spec, "daemonize\nprint up\nsleep 60000");
  wait_for_output(started, "up");
  const Family family = find_family(own);
  ASSERT_GT(family.straggler, 0);
  Tracer tracer(family.straggler);
  ::kill(family.job, SIGSEGV);
  const auto report = next_report(*own.sandbox, spec.run);
  ASSERT_TRUE(report);
  EXPECT_EQ(to_string(report->status), "unkillable");
  tracer.release();
  const RunResult result = wait_for(*own.sandbox, started);
  EXPECT_EQ(to_string(result.outcome.status), "signal") << result.outcome.reason;
  EXPECT_EQ(result.outcome.signal, SIGSEGV);
}

// The processes of the other run have ended, but its zygote cannot report this.
TEST(Unkillable, DelaysNoOtherRunOfItsZygote) {
  OwnSandbox own = own_sandbox(impatient_config());
  StartedRun stuck = start_attempts(*own.sandbox, spec_with(), "print up\nsleep 60000");
  wait_for_output(stuck, "up");
  const Family family = find_family(own);
  StartedRun other = start_attempts(*own.sandbox, spec_with(), "print up\nsleep 60000");
  wait_for_output(other, "up");
  Tracer tracer(family.job);
  ::kill(family.zygote, SIGKILL);  // its exit blocks in the kernel until all its namespaces have ended
  std::map<std::uint64_t, std::string> shown;
  EXPECT_TRUE(eventually([&] {
    for (const auto& each : own.sandbox->read_ended()) shown[each.run] = to_string(each.outcome.status);
    return shown[stuck.spec.run] == "unkillable" && shown[other.spec.run] == "lost";
  })) << shown[stuck.spec.run]
      << ", " << shown[other.spec.run];
  tracer.release();
  EXPECT_EQ(to_string(wait_for(*own.sandbox, stuck).outcome.status), "lost");
  for (int fd : {other.pipes.out, other.pipes.err, other.pipes.channel, other.pipes.requests}) ::close(fd);
}

// A lost run may start again elsewhere, so it must not be reported as lost while one of its processes exists.
TEST(Unkillable, IsLostOnlyAfterItIsGone) {
  OwnSandbox own = own_sandbox(impatient_config());
  StartedRun started = start_attempts(*own.sandbox, spec_with(), "print up\nsleep 60000");
  wait_for_output(started, "up");
  const Family family = find_family(own);
  Tracer tracer(family.job);
  ::kill(own.launcher, SIGKILL);
  const auto report = next_report(*own.sandbox, started.spec.run);
  ASSERT_TRUE(report);
  EXPECT_EQ(to_string(report->status), "unkillable");
  ASSERT_TRUE(own.sandbox->restart());
  EXPECT_EQ(to_string(run_attempts(*own.sandbox, spec_with(), "getpid").outcome.status), "ok");
  EXPECT_TRUE(own.sandbox->read_ended().empty());
  tracer.release();
  EXPECT_EQ(to_string(wait_for(*own.sandbox, started).outcome.status), "lost");
  EXPECT_TRUE(is_reaped(family.job));
}

}  // namespace
}  // namespace mycojobs::test
