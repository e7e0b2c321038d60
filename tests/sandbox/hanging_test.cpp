// A hanging disk of the host affects only runs that need it. Other runs start, are killed and end normally.
#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "fixture.h"
#include "support/hanging_folder.h"

namespace mycojobs::test {
namespace {

using ::testing::HasSubstr;

RunSpec make_spec_with_folder(const std::string& path) {
  RunSpec spec = make_spec();
  spec.grants.fs_read = {path};
  return spec;
}

void expect_other_runs_unaffected(Sandbox& sandbox) {
  EXPECT_EQ(to_string(run_attempts(sandbox, make_spec(), "getpid").outcome.status), "ok");
  const RunResult slow_result = run_attempts(sandbox, make_spec(300), "sleep 60000");
  EXPECT_EQ(to_string(slow_result.outcome.status), "timeout_wall") << slow_result.outcome.reason;
  const std::string other_folder = "/var/tmp/mycojobs-other-" + std::to_string(::getpid());
  std::filesystem::create_directories(other_folder);
  const RunResult granted_result = run_attempts(sandbox, make_spec_with_folder(other_folder), "getpid");
  EXPECT_EQ(to_string(granted_result.outcome.status), "ok") << granted_result.outcome.reason;
  std::filesystem::remove(other_folder);
  StartedRun killed = start_attempts(sandbox, make_spec(), "sleep 60000");
  sandbox.kill(killed.spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for_end(sandbox, killed).outcome.status), "cancelled");
}

class Hanging : public ::testing::Test {
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can mount a file system of its own";
    if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "this machine has no /dev/fuse";
  }
};

TEST_F(Hanging, GrantedFolderDelaysOnlyItsUsers) {
  HangingFolder folder;
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  StartedRun first = start_attempts(*dedicated_sandbox.sandbox, make_spec_with_folder(folder.path()), "getpid");
  StartedRun cancelled = start_attempts(*dedicated_sandbox.sandbox, make_spec_with_folder(folder.path()), "getpid");
  ASSERT_TRUE(eventually([&] { return folder.waiting_count() > 0; }));
  expect_other_runs_unaffected(*dedicated_sandbox.sandbox);
  dedicated_sandbox.sandbox->kill(cancelled.spec.run, KillReason::cancelled, 0);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, cancelled).outcome.status), "cancelled");
  const Outcome lost_outcome = wait_for_end(*dedicated_sandbox.sandbox, first).outcome;
  EXPECT_EQ(to_string(lost_outcome.status), "lost");
  EXPECT_TRUE(lost_outcome.never_started);
  EXPECT_THAT(lost_outcome.reason, HasSubstr("the granted " + folder.path() + " has not answered for 10 s"));
  // A run that arrives while the folder is known to hang sends no second request, and receives the result when the hang
  // ends.
  const int blocked_count = folder.waiting_count();
  StartedRun next = start_attempts(*dedicated_sandbox.sandbox, make_spec_with_folder(folder.path()), "getpid");
  expect_other_runs_unaffected(*dedicated_sandbox.sandbox);
  EXPECT_EQ(folder.waiting_count(), blocked_count);
  folder.disconnect();
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, next).outcome.status), "setup_error")
      << "the file system was disconnected permanently";
}

// Lost runs are reported when no process of the job is left. An exiting agent waits for these reports, but not for the
// disk.
TEST_F(Hanging, WaitForAllJobsDoesNotWaitForTheDisk) {
  HangingFolder folder;
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox();
  start_attempts(*dedicated_sandbox.sandbox, make_spec_with_folder(folder.path()), "getpid");
  StartedRun running = start_attempts(*dedicated_sandbox.sandbox, make_spec(), "print up\nsleep 60000");
  wait_for_output(running, "up");
  ASSERT_TRUE(eventually([&] { return folder.waiting_count() > 0; }));
  ::kill(dedicated_sandbox.launcher, SIGKILL);
  EXPECT_EQ(to_string(wait_for_end(*dedicated_sandbox.sandbox, running).outcome.status), "lost")
      << "both runs are lost";
  EXPECT_TRUE(eventually([&] { return is_reaped(dedicated_sandbox.guardian); }));
}

TEST_F(Hanging, FolderOfAScriptHostDelaysOnlyItsContext) {
  HangingFolder folder;
  SandboxConfig config = make_test_config();
  ScriptHost host = config.hosts[0];
  host.context = 1;
  host.folders = {{folder.path(), "/extra"}};
  config.hosts.push_back(host);
  DedicatedSandbox dedicated_sandbox = start_dedicated_sandbox(config);
  RunSpec spec = make_spec();
  spec.context = 1;
  StartedRun first = start_attempts(*dedicated_sandbox.sandbox, spec, "getpid");
  ASSERT_TRUE(eventually([&] { return folder.waiting_count() > 0; }));
  RunSpec other = make_spec();
  other.context = 2;
  EXPECT_EQ(to_string(run_attempts(*dedicated_sandbox.sandbox, other, "getpid").outcome.status), "ok");
  folder.disconnect();
  const Outcome outcome = wait_for_end(*dedicated_sandbox.sandbox, first).outcome;
  EXPECT_EQ(to_string(outcome.status), "setup_error");
  EXPECT_THAT(outcome.reason, HasSubstr(folder.path()));
}

}  // namespace
}  // namespace mycojobs::test
