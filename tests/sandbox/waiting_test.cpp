// Limits and grants of single runs, and script hosts that block or send too much.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fixture.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

RunResult run_with_spec(const std::function<void(RunSpec&)>& change, const std::string& lines) {
  RunSpec spec = make_spec();
  change(spec);
  return run_attempts(shared_sandbox(), spec, lines);
}

// SQ14
TEST(Waiting, SpinningJobReachesItsCpuLimit) {
  const RunResult result = run_with_spec([](RunSpec& spec) { spec.limits.cpu_ms = 300; }, "spin");
  EXPECT_EQ(to_string(result.outcome.status), "timeout_cpu") << result.outcome.reason;
  EXPECT_GE(result.outcome.usage.user_us + result.outcome.usage.system_us, 285000U);
}

// SQ14, SQ16: CPU time spread over children that end before the limit.
TEST(Waiting, CpuOfAllProcessesCountsTogether) {
  const RunResult result = run_with_spec(
      [](RunSpec& spec) {
        spec.limits.cpu_ms = 300;
        spec.limits.exec = true;
      },
      "fork_spin\nfork_spin\nfork_spin\nsleep 60000");
  EXPECT_EQ(to_string(result.outcome.status), "timeout_cpu") << result.outcome.reason;
}

// Sleeping does not count as CPU time.
TEST(Waiting, SleepCostsNoCpu) {
  const RunResult result = run_with_spec([](RunSpec& spec) { spec.limits.cpu_ms = 100; }, "sleep 500");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
}

// A write beyond the file size limit: the kernel's signal is reported as file_limit.
TEST(Waiting, FileOverItsLimitIsFileLimit) {
  const RunResult result =
      run_with_spec([](RunSpec& spec) { spec.limits.file_bytes = 1U << 20; }, "print_into /tmp/x 2");
  EXPECT_EQ(to_string(result.outcome.status), "file_limit") << result.outcome.reason;
}

// SQ1
TEST(Waiting, JobOverItsPidsLimitGetsThatError) {
  const RunResult result = run_with_spec([](RunSpec& spec) { spec.limits.exec = true; }, "fork_bomb\nexit 1");
  EXPECT_EQ(to_string(result.outcome.status), "pids_limit") << result.outcome.reason;
}

// SF7, SF8, SF16 with granted folders: one is readable, one is writable, and no other folder is accessible.
TEST(Waiting, OnlyGrantedFoldersAreOpen) {
  const std::string base_folder = "/var/tmp/mycojobs-grants-" + std::to_string(::getpid());
  for (const char* name : {"/read", "/write", "/other"}) std::filesystem::create_directories(base_folder + name);
  for (const char* name : {"/read/f", "/write/f", "/other/f"}) std::ofstream(base_folder + name) << "text";
  std::filesystem::permissions(base_folder + "/write", std::filesystem::perms(0777));
  std::filesystem::create_symlink("../other/f", base_folder + "/read/link");
  const RunResult result = run_with_spec(
      [&](RunSpec& spec) {
        spec.grants.fs_read = {base_folder + "/read"};
        spec.grants.fs_write = {base_folder + "/write"};
      },
      "read " + base_folder + "/read/f\nopen_write " + base_folder + "/read/f\nopen_truncate " + base_folder +
          "/read/f\nopen_create " + base_folder + "/write/new\nopen_read " + base_folder + "/other/f\nopen_read " +
          base_folder + "/read/link\nopen_at " + base_folder + "/read ../other/f\nrename " + base_folder + "/read/f " +
          base_folder + "/write/g\nhardlink " + base_folder + "/read/f " + base_folder + "/write/h\nmknod " +
          base_folder + "/write/null 0x2000\nexec_copy " + base_folder + "/write/program");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  EXPECT_EQ(result.get_result("read " + base_folder + "/read/f"), "text");
  EXPECT_EQ(result.get_result("open_create " + base_folder + "/write/new"), "ok");
  for (const std::string& line :
       {"open_write " + base_folder + "/read/f", "open_truncate " + base_folder + "/read/f",
        "open_read " + base_folder + "/other/f", "open_read " + base_folder + "/read/link",
        "open_at " + base_folder + "/read ../other/f", "rename " + base_folder + "/read/f " + base_folder + "/write/g",
        "hardlink " + base_folder + "/read/f " + base_folder + "/write/h",
        "mknod " + base_folder + "/write/null 0x2000", "exec_copy " + base_folder + "/write/program"}) {
    EXPECT_NE(result.get_result(line), "ok") << line;
  }
  std::filesystem::remove_all(base_folder);
}

// SF6: a granted folder that is a link or lies behind a link fails the set-up.
TEST(Waiting, GrantBehindALinkIsRejected) {
  const std::string base_folder = "/var/tmp/mycojobs-grants-" + std::to_string(::getpid());
  std::filesystem::create_directories(base_folder);
  std::filesystem::create_directory_symlink("/etc", base_folder + "/link");
  for (const std::string& folder : {base_folder + "/link", base_folder + "/link/ssl", base_folder + "/../../../etc"}) {
    const RunResult result = run_with_spec([&](RunSpec& spec) { spec.grants.fs_read = {folder}; }, "getpid");
    EXPECT_EQ(to_string(result.outcome.status), "setup_error") << folder;
  }
  std::filesystem::remove_all(base_folder);
}

// SH2
TEST(Waiting, UnknownOrForbiddenSystemCallIsRejected) {
  for (const char* name : {"no_such_call", "mount", "", "read; write"}) {
    const RunResult result = run_with_spec([&](RunSpec& spec) { spec.grants.syscalls = {name}; }, "getpid");
    EXPECT_EQ(to_string(result.outcome.status), "setup_error") << name;
  }
}

// SN1, SN2, SN5 where the job has a network of its own: sockets work, but no peer is reachable.
TEST(Waiting, LoopbackIsTheJobsOwn) {
  const RunResult result =
      run_with_spec([](RunSpec& spec) { spec.grants.network = Network::loopback; },
                    "socket 2 1\nsocket 10 1\nconnect_tcp 127.0.0.1 6379\nconnect_tcp 1.1.1.1 80\nconnect_tcp "
                    "169.254.169.254 80\nsocket 2 3\nsocket 16 3\nsocket 17 3\nsocket 38 5\nsocket 40 1");
  EXPECT_EQ(to_string(result.outcome.status), "ok") << result.outcome.reason;
  EXPECT_EQ(result.get_result("socket 2 1"), "ok");
  EXPECT_EQ(result.get_result("connect_tcp 127.0.0.1 6379"), "ECONNREFUSED");
  EXPECT_EQ(result.get_result("connect_tcp 1.1.1.1 80"), "ENETUNREACH");
  EXPECT_EQ(result.get_result("connect_tcp 169.254.169.254 80"), "ENETUNREACH");
  for (const char* line : {"socket 2 3", "socket 16 3", "socket 17 3", "socket 38 5", "socket 40 1"}) {
    EXPECT_NE(result.get_result(line), "ok") << line;
  }
}

// SX10: jobs with grants alternate with jobs without grants.
TEST(Waiting, EachRunHasItsOwnPolicyInAnyOrder) {
  for (int i = 0; i < 20; ++i) {
    RunSpec spec = make_spec();
    spec.limits.exec = i % 2 == 0;
    if (i % 3 == 0) spec.grants.network = Network::loopback;
    const RunResult result = run_attempts(shared_sandbox(), spec, "fork\nsocket 2 1");
    EXPECT_EQ(result.get_result("fork"), spec.limits.exec ? "ok" : "EPERM") << i;
    EXPECT_EQ(result.get_result("socket 2 1"), i % 3 == 0 ? "ok" : "EAFNOSUPPORT");
  }
}

// Runs a job on the bad_host with this name. Stores in `launcher_alive` whether the launcher still runs.
Outcome run_bad_host(const std::string& name, bool& is_launcher_alive) {
  const std::string folder = "/tmp/mycojobs-" + name + "-" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  std::filesystem::create_symlink(mj::test::program_path("bad_host"), folder + "/" + name);
  SandboxConfig config = make_test_config();
  config.hosts.push_back({name, folder + "/" + name});
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  RunSpec spec = make_spec(500);
  spec.host = name;
  const RunResult result = run_attempts(*dedicated_sandbox.sandbox, spec, "getpid");
  is_launcher_alive = dedicated_sandbox.sandbox->alive();
  std::filesystem::remove_all(folder);
  return result.outcome;
}

// The host sends a message and exits immediately. On a busy machine, the exit may be detected first, as a lost run.
bool is_rejected(const Outcome& outcome) {
  return outcome.status == RunStatus::setup_error || outcome.status == RunStatus::lost;
}

// SZ46: the descriptor that a job's process sends as its listener cannot be polled. Only its own run may fail.
TEST(Waiting, FileAsListenerDoesNotEndTheLauncher) {
  bool is_launcher_alive = false;
  EXPECT_TRUE(is_rejected(run_bad_host("listener", is_launcher_alive)));
  EXPECT_TRUE(is_launcher_alive);
}
TEST(Waiting, NestedListenerSetsDoNotEndTheLauncher) {
  bool is_launcher_alive = false;
  EXPECT_TRUE(is_rejected(run_bad_host("nested", is_launcher_alive)));
  EXPECT_TRUE(is_launcher_alive);
}

// The end of a run is reported even if its processes sent too much about their set-up.
TEST(Waiting, VerboseProcessCannotHideTheEndOfItsRun) {
  bool is_launcher_alive = false;
  const Outcome outcome = run_bad_host("wordy", is_launcher_alive);
  EXPECT_TRUE(is_rejected(outcome)) << outcome.reason.substr(0, 200);
  EXPECT_TRUE(is_launcher_alive);
}

// SZ47: a zygote accepts a run and never answers. The wall-clock limit still applies.
TEST(Waiting, SilentZygoteCannotExtendARun) {
  bool is_launcher_alive = false;
  const Outcome outcome = run_bad_host("silent", is_launcher_alive);
  EXPECT_EQ(to_string(outcome.status), "timeout_wall") << outcome.reason;
  EXPECT_TRUE(is_launcher_alive);
}

}  // namespace
}  // namespace mycojobs::test
