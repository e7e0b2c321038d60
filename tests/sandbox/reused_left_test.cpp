// State that a run could leave in its sandbox for the next run, other than processes and files.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "reused.h"

namespace mycojobs::test {
namespace {

// Runs `lines` in a reused sandbox, then `next` in the same sandbox. Returns the result of `next`.
RunResult after(OwnSandbox& own, const std::string& lines, const std::string& next) {
  wait_for_reuse(own);
  run_in(own, lines);
  RunResult run_result = run_in(own, next);
  EXPECT_TRUE(is_reused(run_result)) << "else this says nothing: " << lines;
  return run_result;
}

// Flags and locks belong to an open file. They outlive the process that set them as long as init has the file open.
TEST(ReusedSandboxLeft, NoOpenFileIsSharedBetweenRuns) {
  OwnSandbox own = own_sandbox(one_sandbox());
  for (const char* fd : {"0", "1", "2", "3"}) {
    const std::string flags = std::string("flags_of ") + fd;
    const std::string before = after(own, "", flags).answer(flags);
    EXPECT_EQ(after(own, std::string("lock_descriptor ") + fd, flags).answer(flags), before) << fd;
  }
  EXPECT_EQ(after(own, "lock_descriptor 0", "lock /dev/null").answer("lock /dev/null"), "ok");
  EXPECT_EQ(after(own, "", "list /proc/self/fd").answer("list /proc/self/fd"), "0 1 2 3 4") << "and nothing of init's";
}

TEST(ReusedSandboxLeft, FoldersShowNothingOfAnEarlierRun) {
  OwnSandbox own = own_sandbox(one_sandbox());
  for (const char* folder : {"/tmp", "/dev/shm", "/job", "/job/kept"}) {
    const std::string path = folder, ask = "state_of " + path;
    wait_for_reuse(own);
    const std::string before = after(own, "", ask).answer(ask);
    EXPECT_NE(before.find("times 0.0 0.0"), std::string::npos) << before;
    for (const std::string& left :
         {"touch_times " + path, "set_times " + path + " 123456789 987654321", "chmod " + path + " 06711",
          "write " + path + "/a x\nlist " + path, "chown " + path + " 0\nmkdir " + path + "/a",
          "write " + path + "/a x\nunlink " + path + "/a\nset_times " + path + " 0 1",
          "write " + path + "/a x\nhardlink " + path + "/a " + path + "/b\nsymlink /job " + path + "/c",
          "whiteout " + path, "chmod " + path + " 07777\ndeep " + path + " 7"})
      EXPECT_EQ(after(own, left, ask).answer(ask), before) << left;
  }
}

TEST(ReusedSandboxLeft, FolderThatCannotBeResetEndsTheSandbox) {
  OwnSandbox own = own_sandbox(one_sandbox());
  for (const char* lines : {"rename /job/kept /job/a\nsymlink /tmp /job/kept", "mkdir /tmp/a\nchmod /tmp/a 0",
                            "deep /tmp 12", "chmod /job 0111", "rename /job/kept /job/a\nwrite /job/kept x",
                            "mkdir /job/a\nrename /job/kept /job/a/kept\nrename /job/a /job/kept"})
    EXPECT_FALSE(next_is_in_the_same(own, lines)) << lines;
  EXPECT_EQ(run_in(own, "list /job").answer("list /job"), "kept");
}

// A job has private copies of all writable memory; shared memory is read-only.
TEST(ReusedSandboxLeft, MemoryOfTheZygoteIsNotChangedByAJob) {
  OwnSandbox own = own_sandbox(one_sandbox());
  for (int i = 0; i < 3; ++i) {
    const RunResult run_result = run_in(own, "change_mappings");
    EXPECT_EQ(run_result.answer("change_mappings"), "none") << run_result.outcome.reason;
  }
}

// No call can set the time of the last change: after each run it is the time at which that run ended.
TEST(ReusedSandboxLeft, LastModificationTimeIsNotTheJobs) {
  OwnSandbox own = own_sandbox(one_sandbox());
  for (const char* folder : {"/tmp", "/dev/shm", "/job", "/job/kept"}) {
    const std::string path = folder, ask = "changed_at " + path;
    wait_for_reuse(own);
    const RunResult one = run_in(own, "chmod " + path + " " +
                                          (path == "/job"        ? "0700"
                                           : path == "/job/kept" ? "0755"
                                                                 : "01777") +
                                          "\n" + ask + "\nsleep 30");
    const RunResult two = run_in(own, ask);
    ASSERT_TRUE(is_reused(two));
    EXPECT_NE(one.answer(ask), two.answer(ask)) << path;
  }
}

TEST(ReusedSandboxLeft, FoldersRejectExtendedAttributes) {
  OwnSandbox own = own_sandbox(one_sandbox());
  for (const char* folder : {"/tmp", "/dev/shm", "/job", "/job/kept"}) {
    const std::string ask = std::string("mark_folder ") + folder;
    EXPECT_EQ(run_in(own, ask).answer(ask), "EOPNOTSUPP EOPNOTSUPP EPERM EPERM");
  }
}

TEST(ReusedSandboxLeft, FoldersHaveTheSameCapacity) {
  OwnSandbox own = own_sandbox(one_sandbox());
  const std::string ask = "room_in /tmp\nroom_in /dev/shm";
  const RunResult before = after(own, "", ask);
  const RunResult next =
      after(own, "deep /tmp 6\nprint_into /tmp/a 2\nprint_into /dev/shm/a 1\nmknod /job/p 0x1000", ask);
  EXPECT_EQ(next.answer("room_in /tmp"), before.answer("room_in /tmp"));
  EXPECT_EQ(next.answer("room_in /dev/shm"), before.answer("room_in /dev/shm"));
}

// A job is a fork of init, which listed and removed the files of the previous run and waited for the job.
TEST(ReusedSandboxLeft, MemoryContainsNothingOfAnEarlierRun) {
  OwnSandbox own = own_sandbox(one_sandbox());
  const std::string name = "a_name_that_was_left_behind", ask = "word_in_memory a_name_that_was _left_behind";
  EXPECT_EQ(after(own, "write /tmp/" + name + " x\nmkdir /job/kept/" + name, ask).answer(ask), "none");
  std::string deep, folder = "/tmp";
  for (int i = 0; i < 5; ++i) deep += "mkdir " + (folder += "/d") + "\n";
  EXPECT_EQ(after(own, deep + "write " + folder + "/" + name + " x", ask).answer(ask), "none") << "deep on the stack";
  EXPECT_EQ(after(own, "exit 3", "end_in_memory").answer("end_in_memory"), "none");
}

// A job also contains memory of the zygote, which has read the grants of every run.
TEST(ReusedSandboxLeft, MemoryContainsNoGrantsOfOtherJobs) {
  OwnSandbox own = own_sandbox(one_sandbox());
  std::string path = "/var/tmp/mycojobs-test-for-the_folder_of_the_other_XXXXXX";
  ASSERT_NE(::mkdtemp(path.data()), nullptr);
  ::chmod(path.c_str(), 0755);
  for (int i = 0; i < 6; ++i) {
    RunSpec spec = spec_with();
    spec.grants.fs_read = {path};
    const RunResult granted = run_attempts(*own.sandbox, spec, "list " + path);
    EXPECT_EQ(granted.answer("list " + path), "") << granted.outcome.reason;
    RunSpec other = spec_with();
    other.limits.open_files =
        100 + static_cast<std::uint32_t>(i);  // forces a new sandbox, which is forked from the zygote now
    const std::string ask = "word_in_memory the_folder_of _the_other";
    EXPECT_EQ(run_attempts(*own.sandbox, other, ask).answer(ask), "none") << i;
  }
  ::rmdir(path.c_str());
}

// The kernel keeps data for a run (cached names, pages of files) and charges it to the group of the run.
TEST(ReusedSandboxLeft, RunThatLeavesMuchMemoryIsTheLast) {
  if (!may_limit_by_cgroup()) GTEST_SKIP() << "no group can be made and limited here";
  OwnSandbox own = own_sandbox(one_sandbox());
  EXPECT_TRUE(next_is_in_the_same(own, "look_up_absent /usr/bin 100"));
  EXPECT_FALSE(next_is_in_the_same(own, "look_up_absent /usr/bin 40000"));
  EXPECT_LT(run_in(own, "").outcome.usage.memory_peak_bytes, 8ULL << 20);
}

// Uses the number of init's socket to the launcher: in a job, the number is another descriptor or unused, and sending
// messages is not permitted.
TEST(ReusedSandboxLeft, JobCannotImpersonateInit) {
  OwnSandbox own = own_sandbox(one_sandbox());
  wait_for_reuse(own);
  std::string lines = "list /proc/self/fd\naddress_on_four\nnest_rights 4\nrights_to_channel 4";
  for (int kind = 0; kind < 32; ++kind) lines += "\nspeak_for_init 4 " + std::to_string(kind);
  const RunResult run_result = run_in(own, lines);
  for (const auto& [attempt, result] : run_result.answers) {
    if (attempt.find('_') == std::string::npos) continue;
    EXPECT_EQ(result, "EPERM") << attempt;
  }
  EXPECT_EQ(to_string(run_result.outcome.status), "ok") << run_result.outcome.reason;
  EXPECT_EQ(run_result.outcome.usage.pids_peak, may_limit_by_cgroup() ? 1U : 0U);
  const RunResult next = run_in(own, "exit 7");
  EXPECT_EQ(next.outcome.exit_code, 7);
  EXPECT_TRUE(is_reused(run_in(own, "")));
}

// Pid 1 has no handlers, so the kernel drops signals from inside. A blocked signal would stay queued and reduce the
// user's quota. Landlock of newer kernels blocks such signals, so this test runs without Landlock.
TEST(ReusedSandboxLeft, NoSignalIsPendingForInit) {
  SandboxConfig config = one_sandbox();
  config.disabled_steps = {"landlock"};
  OwnSandbox own = own_sandbox(config);
  wait_for_reuse(own);
  const int before = std::stoi(run_in(own, "room_for_signals").answer("room_for_signals"));
  EXPECT_GT(before, 900);
  EXPECT_EQ(run_in(own, "flood_init 3000").answer("flood_init 3000"), "ok");
  const RunResult next = run_in(own, "room_for_signals");
  ASSERT_TRUE(is_reused(next));
  EXPECT_GE(std::stoi(next.answer("room_for_signals")), before - 8);
}

// The kernel counts some resources per user, and the next run has the same user.
TEST(ReusedSandboxLeft, UserLimitsAreAvailableAgain) {
  OwnSandbox own = own_sandbox(one_sandbox());
  for (const std::string& all :
       {std::string("posix_timers"), std::string("room_for_signals"), std::string("hold_pipes"),
        std::string("eventfds"), std::string("timerfds"), std::string("descriptors")}) {
    // needs more memory than a sandbox may use and be reused
    if (all == "hold_pipes" && !a_peak_begins_anew()) continue;
    const std::string first = after(own, "", all).answer(all);
    EXPECT_EQ(after(own, all, all).answer(all), first) << all;
  }
}

// If processes are counted in a child group, refusals by the pids limit are counted there as well.
TEST(ReusedSandboxLeft, RefusalsInANestedGroupAreReported) {
  if (!may_limit_by_cgroup()) GTEST_SKIP() << "no group can be made and limited here";
  OwnSandbox own = own_sandbox(one_sandbox());
  RunSpec spec = spec_with();
  spec.limits.exec = true;
  const auto run = [&](const std::string& lines) {
    spec.run = next_run();
    return run_attempts(*own.sandbox, spec, lines + "\ngetpid");
  };
  ASSERT_TRUE(eventually([&] { return is_reused(run("")); }));
  for (int i = 0; i < 3; ++i) run("shell sleep 0.05 | sleep 0.05 | sleep 0.05; :");
  EXPECT_EQ(to_string(run("fork_bomb\nexit 3").outcome.status), "pids_limit");
  EXPECT_EQ(to_string(run("exit 3").outcome.status), "exit");
}

// Only the group counts the CPU time of children without wait(). It belongs to the run in which they ran.
TEST(ReusedSandboxLeft, CpuOfUnreapedChildrenIsNotTheNextRuns) {
  OwnSandbox own = own_sandbox(one_sandbox());
  RunSpec spec = spec_with();
  spec.limits.exec = true;
  spec.limits.cpu_ms = 4000;
  const auto run = [&](const std::string& lines) {
    spec.run = next_run();
    return run_attempts(*own.sandbox, spec, lines + "\ngetpid");
  };
  ASSERT_TRUE(eventually([&] { return is_reused(run("")); }));
  const RunResult burnt = run("burn_unwaited 6 100");
  ASSERT_EQ(burnt.answer("burn_unwaited 6 100"), "ok");
  spec.limits.cpu_ms = 400;
  const RunResult next = run("sleep 500");
  EXPECT_EQ(to_string(next.outcome.status), "ok") << next.outcome.reason;
  EXPECT_LT(next.outcome.usage.user_us + next.outcome.usage.system_us, 300'000U);
}

// Timers on the CPU clock of init, which every process can read, end with the job that created them.
TEST(ReusedSandboxLeft, TimersOnTheClockOfInitEndWithTheJob) {
  OwnSandbox own = own_sandbox(one_sandbox());
  EXPECT_TRUE(next_is_in_the_same(own, "timers_on 1 200"));
  EXPECT_EQ(to_string(run_in(own, "inherited_clocks\nsleep 20").outcome.status), "ok");
  EXPECT_EQ(run_in(own, "timers_on 1 200").answer("timers_on 1 200"), "ok") << "nor is their number used up";
}

}  // namespace
}  // namespace mycojobs::test
