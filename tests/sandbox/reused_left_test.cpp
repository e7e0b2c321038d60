// Tests that a run leaves no state in its sandbox for the next run: open files, folders, memory, signals, timers.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "reused.h"

namespace mycojobs::test {
namespace {

// Runs `lines` in a reused sandbox, then `next` in the same sandbox. Returns the result of `next`.
RunResult run_after(DedicatedSandbox& dedicated_sandbox, const std::string& lines, const std::string& next_lines) {
  wait_for_reuse(dedicated_sandbox);
  run_with_getpid(dedicated_sandbox, lines);
  RunResult run_result = run_with_getpid(dedicated_sandbox, next_lines);
  EXPECT_TRUE(is_reused(run_result)) << "otherwise the test proves nothing: " << lines;
  return run_result;
}

// Flags and locks belong to an open file. They outlive the process that set them as long as init has the file open.
TEST(ReusedSandboxLeft, NoOpenFileIsSharedBetweenRuns) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  for (const char* fd : {"0", "1", "2", "3"}) {
    const std::string flags = std::string("flags_of ") + fd;
    const std::string initial_result = run_after(dedicated_sandbox, "", flags).get_result(flags);
    EXPECT_EQ(run_after(dedicated_sandbox, std::string("lock_descriptor ") + fd, flags).get_result(flags),
              initial_result)
        << fd;
  }
  EXPECT_EQ(run_after(dedicated_sandbox, "lock_descriptor 0", "lock /dev/null").get_result("lock /dev/null"), "ok");
  EXPECT_EQ(run_after(dedicated_sandbox, "", "list /proc/self/fd").get_result("list /proc/self/fd"), "0 1 2 3 4")
      << "no descriptor of init is open";
}

TEST(ReusedSandboxLeft, FoldersShowNothingOfAnEarlierRun) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  for (const char* folder : {"/tmp", "/dev/shm", "/job", "/job/kept"}) {
    const std::string path = folder, query = "state_of " + path;
    wait_for_reuse(dedicated_sandbox);
    const std::string initial_result = run_after(dedicated_sandbox, "", query).get_result(query);
    EXPECT_NE(initial_result.find("times 0.0 0.0"), std::string::npos) << initial_result;
    for (const std::string& change :
         {"touch_times " + path, "set_times " + path + " 123456789 987654321", "chmod " + path + " 06711",
          "write " + path + "/a x\nlist " + path, "chown " + path + " 0\nmkdir " + path + "/a",
          "write " + path + "/a x\nunlink " + path + "/a\nset_times " + path + " 0 1",
          "write " + path + "/a x\nhardlink " + path + "/a " + path + "/b\nsymlink /job " + path + "/c",
          "whiteout " + path, "chmod " + path + " 07777\ndeep " + path + " 7"})
      EXPECT_EQ(run_after(dedicated_sandbox, change, query).get_result(query), initial_result) << change;
  }
}

TEST(ReusedSandboxLeft, FolderThatCannotBeResetEndsTheSandbox) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  for (const char* lines : {"rename /job/kept /job/a\nsymlink /tmp /job/kept", "mkdir /tmp/a\nchmod /tmp/a 0",
                            "deep /tmp 12", "chmod /job 0111", "rename /job/kept /job/a\nwrite /job/kept x",
                            "mkdir /job/a\nrename /job/kept /job/a/kept\nrename /job/a /job/kept"})
    EXPECT_FALSE(next_run_uses_same_sandbox(dedicated_sandbox, lines)) << lines;
  EXPECT_EQ(run_with_getpid(dedicated_sandbox, "list /job").get_result("list /job"), "kept");
}

// A job has private copies of all writable memory; shared memory is read-only.
TEST(ReusedSandboxLeft, MemoryOfTheZygoteIsNotChangedByAJob) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  for (int i = 0; i < 3; ++i) {
    const RunResult run_result = run_with_getpid(dedicated_sandbox, "change_mappings");
    EXPECT_EQ(run_result.get_result("change_mappings"), "none") << run_result.outcome.reason;
  }
}

// No call can set the time of the last change: after each run it is the time at which that run ended.
TEST(ReusedSandboxLeft, LastModificationTimeIsNotTheJobs) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  for (const char* folder : {"/tmp", "/dev/shm", "/job", "/job/kept"}) {
    const std::string path = folder, query = "changed_at " + path;
    wait_for_reuse(dedicated_sandbox);
    const RunResult first = run_with_getpid(dedicated_sandbox, "chmod " + path + " " +
                                                                   (path == "/job"        ? "0700"
                                                                    : path == "/job/kept" ? "0755"
                                                                                          : "01777") +
                                                                   "\n" + query + "\nsleep 30");
    const RunResult second = run_with_getpid(dedicated_sandbox, query);
    ASSERT_TRUE(is_reused(second));
    EXPECT_NE(first.get_result(query), second.get_result(query)) << path;
  }
}

TEST(ReusedSandboxLeft, FoldersRejectExtendedAttributes) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  for (const char* folder : {"/tmp", "/dev/shm", "/job", "/job/kept"}) {
    const std::string query = std::string("mark_folder ") + folder;
    EXPECT_EQ(run_with_getpid(dedicated_sandbox, query).get_result(query), "EOPNOTSUPP EOPNOTSUPP EPERM EPERM");
  }
}

TEST(ReusedSandboxLeft, FoldersHaveTheSameCapacity) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  const std::string query = "room_in /tmp\nroom_in /dev/shm";
  const RunResult initial_result = run_after(dedicated_sandbox, "", query);
  const RunResult next = run_after(
      dedicated_sandbox, "deep /tmp 6\nprint_into /tmp/a 2\nprint_into /dev/shm/a 1\nmknod /job/p 0x1000", query);
  EXPECT_EQ(next.get_result("room_in /tmp"), initial_result.get_result("room_in /tmp"));
  EXPECT_EQ(next.get_result("room_in /dev/shm"), initial_result.get_result("room_in /dev/shm"));
}

// A job is a fork of init, which listed and removed the files of the previous run and waited for the job.
TEST(ReusedSandboxLeft, MemoryContainsNothingOfAnEarlierRun) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  const std::string name = "a_name_that_was_left_behind", query = "word_in_memory a_name_that_was _left_behind";
  EXPECT_EQ(run_after(dedicated_sandbox, "write /tmp/" + name + " x\nmkdir /job/kept/" + name, query).get_result(query),
            "none");
  std::string mkdir_lines, folder = "/tmp";
  for (int i = 0; i < 5; ++i) mkdir_lines += "mkdir " + (folder += "/d") + "\n";
  EXPECT_EQ(run_after(dedicated_sandbox, mkdir_lines + "write " + folder + "/" + name + " x", query).get_result(query),
            "none")
      << "deep in the stack";
  EXPECT_EQ(run_after(dedicated_sandbox, "exit 3", "end_in_memory").get_result("end_in_memory"), "none");
}

// A job also contains memory of the zygote, which has read the grants of every run.
TEST(ReusedSandboxLeft, MemoryContainsNoGrantsOfOtherJobs) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  std::string path = "/var/tmp/mycojobs-test-for-the_folder_of_the_other_XXXXXX";
  ASSERT_NE(::mkdtemp(path.data()), nullptr);
  ::chmod(path.c_str(), 0755);
  for (int i = 0; i < 6; ++i) {
    RunSpec spec = make_spec();
    spec.grants.fs_read = {path};
    const RunResult granted_result = run_attempts(*dedicated_sandbox.sandbox, spec, "list " + path);
    EXPECT_EQ(granted_result.get_result("list " + path), "") << granted_result.outcome.reason;
    RunSpec other_spec = make_spec();
    other_spec.limits.open_files =
        100 + static_cast<std::uint32_t>(i);  // Forces a new sandbox, which is forked from the zygote now.
    const std::string query = "word_in_memory the_folder_of _the_other";
    EXPECT_EQ(run_attempts(*dedicated_sandbox.sandbox, other_spec, query).get_result(query), "none") << i;
  }
  ::rmdir(path.c_str());
}

// The kernel keeps data for a run (cached names, pages of files) and charges it to the group of the run.
TEST(ReusedSandboxLeft, RunThatLeavesMuchMemoryIsTheLast) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  EXPECT_TRUE(next_run_uses_same_sandbox(dedicated_sandbox, "look_up_absent /usr/bin 100"));
  EXPECT_FALSE(next_run_uses_same_sandbox(dedicated_sandbox, "look_up_absent /usr/bin 40000"));
  EXPECT_LT(run_with_getpid(dedicated_sandbox, "").outcome.usage.memory_peak_bytes, 8ULL << 20);
}

// Uses the number of init's socket to the launcher: in a job, the number is another descriptor or unused, and sending
// messages is not permitted.
TEST(ReusedSandboxLeft, JobCannotImpersonateInit) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  wait_for_reuse(dedicated_sandbox);
  std::string lines = "list /proc/self/fd\naddress_on_four\nnest_rights 4\nrights_to_channel 4";
  for (int kind = 0; kind < 32; ++kind) lines += "\nspeak_for_init 4 " + std::to_string(kind);
  const RunResult run_result = run_with_getpid(dedicated_sandbox, lines);
  for (const auto& [attempt, result] : run_result.results) {
    if (attempt.find('_') == std::string::npos) continue;
    EXPECT_EQ(result, "EPERM") << attempt;
  }
  EXPECT_EQ(to_string(run_result.outcome.status), "ok") << run_result.outcome.reason;
  EXPECT_EQ(run_result.outcome.usage.pids_peak, can_limit_by_cgroup() ? 1U : 0U);
  const RunResult next = run_with_getpid(dedicated_sandbox, "exit 7");
  EXPECT_EQ(next.outcome.exit_code, 7);
  EXPECT_TRUE(is_reused(run_with_getpid(dedicated_sandbox, "")));
}

// Pid 1 has no handlers, so the kernel drops signals from inside. A blocked signal would stay queued and reduce the
// user's quota. Landlock of newer kernels blocks such signals, so this test runs without Landlock.
TEST(ReusedSandboxLeft, NoSignalIsPendingForInit) {
  SandboxConfig config = make_single_sandbox_config();
  config.disabled_steps = {"landlock"};
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  wait_for_reuse(dedicated_sandbox);
  const int initial_result =
      std::stoi(run_with_getpid(dedicated_sandbox, "room_for_signals").get_result("room_for_signals"));
  EXPECT_GT(initial_result, 900);
  EXPECT_EQ(run_with_getpid(dedicated_sandbox, "flood_init 3000").get_result("flood_init 3000"), "ok");
  const RunResult next = run_with_getpid(dedicated_sandbox, "room_for_signals");
  ASSERT_TRUE(is_reused(next));
  EXPECT_GE(std::stoi(next.get_result("room_for_signals")), initial_result - 8);
}

// The kernel counts some resources per user, and the next run has the same user.
TEST(ReusedSandboxLeft, UserLimitsAreAvailableAgain) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  for (const std::string& line :
       {std::string("posix_timers"), std::string("room_for_signals"), std::string("hold_pipes"),
        std::string("eventfds"), std::string("timerfds"), std::string("descriptors")}) {
    // After this attempt, the sandbox has used too much memory to be reused.
    if (line == "hold_pipes" && !can_reset_memory_peak()) continue;
    const std::string first = run_after(dedicated_sandbox, "", line).get_result(line);
    EXPECT_EQ(run_after(dedicated_sandbox, line, line).get_result(line), first) << line;
  }
}

// If processes are counted in a child group, refusals by the pids limit are counted there as well.
TEST(ReusedSandboxLeft, RefusalsInANestedGroupAreReported) {
  if (!can_limit_by_cgroup()) GTEST_SKIP() << "this host permits no cgroups with limits";
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  const auto run = [&](const std::string& lines) {
    spec.run = next_run_id();
    return run_attempts(*dedicated_sandbox.sandbox, spec, lines + "\ngetpid");
  };
  ASSERT_TRUE(eventually([&] { return is_reused(run("")); }));
  for (int i = 0; i < 3; ++i) run("shell sleep 0.05 | sleep 0.05 | sleep 0.05; :");
  EXPECT_EQ(to_string(run("fork_bomb\nexit 3").outcome.status), "pids_limit");
  EXPECT_EQ(to_string(run("exit 3").outcome.status), "exit");
}

// Only the group counts the CPU time of children without wait(). It belongs to the run in which they ran.
TEST(ReusedSandboxLeft, CpuOfUnreapedChildrenIsNotTheNextRuns) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  RunSpec spec = make_spec();
  spec.limits.exec = true;
  spec.limits.cpu_ms = 4000;
  const auto run = [&](const std::string& lines) {
    spec.run = next_run_id();
    return run_attempts(*dedicated_sandbox.sandbox, spec, lines + "\ngetpid");
  };
  ASSERT_TRUE(eventually([&] { return is_reused(run("")); }));
  const RunResult cpu_result = run("burn_unwaited 6 100");
  ASSERT_EQ(cpu_result.get_result("burn_unwaited 6 100"), "ok");
  spec.limits.cpu_ms = 400;
  const RunResult next = run("sleep 500");
  EXPECT_EQ(to_string(next.outcome.status), "ok") << next.outcome.reason;
  EXPECT_LT(next.outcome.usage.user_us + next.outcome.usage.system_us, 300'000U);
}

// Timers on the CPU clock of init, which every process can read, end with the job that created them.
TEST(ReusedSandboxLeft, TimersOnTheClockOfInitEndWithTheJob) {
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(make_single_sandbox_config());
  EXPECT_TRUE(next_run_uses_same_sandbox(dedicated_sandbox, "timers_on 1 200"));
  EXPECT_EQ(to_string(run_with_getpid(dedicated_sandbox, "inherited_clocks\nsleep 20").outcome.status), "ok");
  EXPECT_EQ(run_with_getpid(dedicated_sandbox, "timers_on 1 200").get_result("timers_on 1 200"), "ok")
      << "their numbers are not used up";
}

}  // namespace
}  // namespace mycojobs::test
