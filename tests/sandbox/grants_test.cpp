// Grants of a run beyond its profile, and sandboxes that are prewarmed before their run.
#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "fixture.h"

namespace mycojobs::test {
namespace {

bool has_step(const Outcome& outcome, const std::string& step) {
  return std::any_of(outcome.setup.begin(), outcome.setup.end(), [&](const auto& time) { return time.step == step; });
}

TEST(Grants, FolderIsReadAndNotWritten) {
  const GrantedFolder folder;
  std::ofstream(folder / "data") << "hello";
  ::chmod((folder / "data").c_str(), 0666);
  RunSpec spec = make_spec();
  spec.grants.fs_read = {folder.path()};
  const RunResult result = run_attempts(shared_sandbox(), spec,
                                        "read " + (folder / "data") + "\nopen_create " + (folder / "new") +
                                            "\nopen_write " + (folder / "data") + "\nlist /var\nopen_create /var/x");
  EXPECT_EQ(result.get_result("read " + (folder / "data")), "hello") << result.outcome.reason;
  EXPECT_EQ(result.get_result("open_create " + (folder / "new")), "EROFS");
  EXPECT_EQ(result.get_result("open_write " + (folder / "data")), "EROFS");
  EXPECT_EQ(result.get_result("list /var"), "tmp");
  EXPECT_EQ(result.get_result("open_create /var/x"), "EROFS");
}

TEST(Grants, EndWithTheirRun) {
  const GrantedFolder folder;
  std::ofstream(folder / "data") << "hello";
  RunSpec spec = make_spec();
  spec.grants.fs_read = {folder.path()};
  run_attempts(shared_sandbox(), spec, "getpid");
  const std::string line = "read " + (folder / "data");
  EXPECT_EQ(run_attempts(line).get_result(line), "ENOENT");
}

std::vector<pid_t> find_openers(pid_t launcher) {
  std::vector<pid_t> openers = find_children(launcher);
  std::erase_if(openers, [](pid_t pid) { return read_process_name(pid) != "mycojobs-folder"; });
  return openers;
}

// Each run gets exactly its own grants, independent of the grants and failures of the previous run.
TEST(Grants, OneProcessOpensFoldersForAllRuns) {
  const GrantedFolder first_folder, second_folder;
  std::ofstream(first_folder / "data") << "one";
  std::ofstream(second_folder / "data") << "two";
  const DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  const auto run_with_folders = [&](std::vector<std::string> folders) {
    RunSpec spec = make_spec();
    spec.grants.fs_read = std::move(folders);
    return run_attempts(*dedicated_sandbox.sandbox, spec,
                        "read " + (first_folder / "data") + "\nread " + (second_folder / "data"));
  };
  const auto join_results = [&](const RunResult& result) {
    return result.get_result("read " + (first_folder / "data")) + " " +
           result.get_result("read " + (second_folder / "data"));
  };
  EXPECT_EQ(join_results(run_with_folders({first_folder.path()})), "one ENOENT");
  const auto openers = find_openers(dedicated_sandbox.launcher);
  ASSERT_EQ(openers.size(), 1U);
  EXPECT_EQ(to_string(run_with_folders({first_folder.path(), "/srv/mycojobs-test/is/not/there"}).outcome.status),
            "setup_error");
  EXPECT_EQ(join_results(run_with_folders({second_folder.path()})), "ENOENT two");
  EXPECT_EQ(find_openers(dedicated_sandbox.launcher), openers);
  ::kill(openers[0], SIGKILL);
  ASSERT_TRUE(eventually([&] { return find_openers(dedicated_sandbox.launcher).empty(); }));
  EXPECT_EQ(join_results(run_with_folders({first_folder.path(), second_folder.path()})), "one two");
}

TEST(Grants, FolderIsWritten) {
  const GrantedFolder folder;
  RunSpec spec = make_spec();
  spec.grants.fs_write = {folder.path()};
  const RunResult result = run_attempts(
      shared_sandbox(), spec, "write " + (folder / "result") + " done\nmknod " + (folder / "device") + " 0020666");
  EXPECT_EQ(read_file(folder / "result"), "done")
      << result.outcome.reason << result.get_result("write " + (folder / "result") + " done");
  EXPECT_FALSE(std::filesystem::exists(folder / "device"));
}

// Another job may have created the link.
TEST(Grants, LinkInThePathIsNotFollowed) {
  const GrantedFolder folder;
  std::filesystem::create_directory_symlink("/etc", folder / "data");
  RunSpec spec = make_spec();
  spec.grants.fs_read = {folder / "data"};
  const Outcome outcome = run_attempts(shared_sandbox(), spec, "getpid").outcome;
  EXPECT_EQ(to_string(outcome.status), "setup_error");
  EXPECT_NE(outcome.reason.find("symbolic link"), std::string::npos) << outcome.reason;
}

TEST(Grants, MissingFolderIsNamed) {
  RunSpec spec = make_spec();
  spec.grants.fs_read = {"/srv/mycojobs-test/is/not/there"};
  const Outcome outcome = run_attempts(shared_sandbox(), spec, "getpid").outcome;
  EXPECT_EQ(to_string(outcome.status), "setup_error");
  EXPECT_NE(outcome.reason.find("/srv/mycojobs-test/is/not/there"), std::string::npos) << outcome.reason;
}

TEST(Grants, ForbiddenPathsAreRejected) {
  for (const char* path :
       {"", "/etc", "relative", "/srv/../etc", "/", "/proc", "/srv", "/srv/./x", "/srv//x", "/srv/x/"}) {
    RunSpec spec = make_spec();
    spec.grants.fs_read = {path};
    const Outcome outcome = run_attempts(shared_sandbox(), spec, "getpid").outcome;
    EXPECT_EQ(to_string(outcome.status), "setup_error") << path;
    EXPECT_NE(outcome.reason.find(path), std::string::npos) << outcome.reason;
  }
}

TEST(Grants, CallIsAllowed) {
  RunSpec spec = make_spec();
  spec.grants.syscalls = {"keyctl", "inotify_init1"};
  const RunResult result = run_attempts(shared_sandbox(), spec, "call inotify_init1\ncall keyctl");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  EXPECT_NE(result.get_result("call inotify_init1"), "EMFILE");
}

TEST(Grants, CallThatLeavesTheSandboxIsNeverAllowed) {
  for (const char* name : {"mount", "io_uring_setup", "no_such_call"}) {
    RunSpec spec = make_spec();
    spec.grants.syscalls = {name};
    const Outcome outcome = run_attempts(shared_sandbox(), spec, "getpid").outcome;
    EXPECT_EQ(to_string(outcome.status), "setup_error") << name;
    EXPECT_NE(outcome.reason.find(name), std::string::npos) << outcome.reason;
  }
}

// Only the exec grant includes these calls: each of them alone would let a job start a program from memory.
TEST(Grants, ProcessesAndProgramsAreNeverGrantedByName) {
  for (const char* name : {"fork", "vfork", "clone", "clone3", "execve", "execveat"}) {
    RunSpec spec = make_spec();
    spec.grants.syscalls = {"memfd_create", name};
    const Outcome outcome = run_attempts(shared_sandbox(), spec, "fork\nexec_memfd").outcome;
    EXPECT_EQ(to_string(outcome.status), "setup_error") << name;
    EXPECT_NE(outcome.reason.find(std::string(name) + " is never granted by name"), std::string::npos)
        << outcome.reason;
    EXPECT_NE(outcome.reason.find("exec"), std::string::npos) << outcome.reason;
  }
}

TEST(Cpu, LimitEndsARunThatSpins) {
  RunSpec spec = make_spec();
  spec.limits.cpu_ms = 400;
  const Outcome outcome = run_attempts(shared_sandbox(), spec, "spin").outcome;
  EXPECT_EQ(to_string(outcome.status), "timeout_cpu") << outcome.reason;
  EXPECT_GE(outcome.usage.user_us + outcome.usage.system_us, 380'000U);
  EXPECT_LE(outcome.usage.user_us + outcome.usage.system_us, 600'000U);
}

TEST(Cpu, SleepCostsNothing) {
  RunSpec spec = make_spec();
  spec.limits.cpu_ms = 300;
  EXPECT_EQ(to_string(run_attempts(shared_sandbox(), spec, "sleep 600").outcome.status), "ok");
}

TEST(Cpu, ChildrenCount) {
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  spec.limits.cpu_ms = 400;
  EXPECT_EQ(to_string(run_attempts(shared_sandbox(), spec, "fork_spin\nfork_spin\nsleep 20000").outcome.status),
            "timeout_cpu");
}

TEST(PrewarmedSandbox, ServesIndependentEqualRuns) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  std::vector<std::string> pids;
  EXPECT_TRUE(eventually([&] {
    const RunResult result = run_attempts(*dedicated_sandbox.sandbox, make_spec(),
                                          "getpid\nopen_create /tmp/mine\nlist /tmp\nlist /proc/self/fd");
    EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
    EXPECT_TRUE(result.get_result("getpid").ends_with(" of 1")) << result.get_result("getpid");
    EXPECT_EQ(result.get_result("list /tmp"), "mine");
    EXPECT_EQ(result.get_result("list /proc/self/fd"), "0 1 2 3 4");
    return has_step(result.outcome, "prewarmed");
  }));
}

TEST(PrewarmedSandbox, DifferentRunIsSetUpSeparately) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  ASSERT_TRUE(eventually(
      [&] { return has_step(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome, "prewarmed"); }));
  RunSpec spec = make_spec();
  spec.limits.open_files = 40;
  const RunResult result = run_attempts(*dedicated_sandbox.sandbox, spec, "descriptors");
  EXPECT_FALSE(has_step(result.outcome, "prewarmed"));
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason << result.stderr_text;
  // After many runs of the new kind, prewarmed sandboxes are of that kind.
  EXPECT_TRUE(eventually(
      [&] { return has_step(run_attempts(*dedicated_sandbox.sandbox, spec, "getpid").outcome, "prewarmed"); }));
}

TEST(PrewarmedSandbox, ClocksStartWithTheRun) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  ASSERT_TRUE(eventually(
      [&] { return has_step(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome, "prewarmed"); }));
  ::usleep(400'000);
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(300), "getpid").outcome.status), "ok");
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(300), "sleep 60000").outcome.status),
            "timeout_wall");
}

// The launcher used to read the clock after it had started the job. In this test, both share one CPU and the job runs
// first, so the job has ended before the launcher continues.
TEST(PrewarmedSandbox, WallTimeCoversTheJobsOwnMeasurement) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  ASSERT_TRUE(eventually(
      [&] { return has_step(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome, "prewarmed"); }));
  cpu_set_t own_cpu;
  CPU_ZERO(&own_cpu);
  CPU_SET(::sched_getcpu(), &own_cpu);
  ASSERT_EQ(::sched_setaffinity(dedicated_sandbox.launcher, sizeof own_cpu, &own_cpu), 0);
  const sched_param realtime{1};
  for (const pid_t pid : find_descendants(dedicated_sandbox.launcher)) {
    ::sched_setaffinity(pid, sizeof own_cpu, &own_cpu);
    if (::sched_setscheduler(pid, SCHED_FIFO, &realtime) != 0 && errno == EPERM) GTEST_SKIP() << "needs CAP_SYS_NICE";
  }
  int prewarmed_count = 0;
  for (int i = 0; i < 20; ++i) {
    const RunResult result = run_attempts(*dedicated_sandbox.sandbox, make_spec(), "busy_for 20");
    prewarmed_count += has_step(result.outcome, "prewarmed") ? 1 : 0;
    const unsigned long measured_us = std::strtoul(result.get_result("busy_for 20").c_str(), nullptr, 10);
    EXPECT_GE(measured_us, 20'000U) << result.outcome.reason;
    EXPECT_GE(result.outcome.usage.wall_us, measured_us);
  }
  EXPECT_GT(prewarmed_count, 0) << "otherwise the test proves nothing";
}

// The first run selects the kind of prewarmed sandboxes, but its small memory limit must not apply to their set-up.
TEST(PrewarmedSandbox, SmallFirstRunAffectsNoOther) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  RunSpec small = make_spec();
  small.limits.memory_bytes = 4U << 20;
  run_attempts(*dedicated_sandbox.sandbox, small, "getpid");
  EXPECT_TRUE(eventually(
      [&] { return has_step(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome, "prewarmed"); }));
}

// A prewarmed sandbox is killed while idle: the next run must not be lost.
TEST(PrewarmedSandbox, DeathOfOneAffectsNoOther) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  ASSERT_TRUE(eventually(
      [&] { return has_step(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome, "prewarmed"); }));
  for (int i = 0; i < 20; ++i) {
    for (const pid_t zygote : find_children(dedicated_sandbox.launcher)) {
      for (const pid_t init : find_children(zygote)) {
        ::kill(init, SIGKILL);
        EXPECT_TRUE(eventually([init] { return is_reaped(init); }));
      }
    }
    EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, make_spec(), "getpid").outcome.status), "ok") << i;
  }
}

}  // namespace
}  // namespace mycojobs::test
