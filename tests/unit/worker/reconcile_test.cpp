// Reclaiming the jobs of a former instance of a runner, and the proof that the instance is dead.
#include "worker/leases/runner_registration.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/agent_fixture.h"
#include "worker/leases/instance_lock.h"

namespace mycojobs::test {
namespace {

const std::string kOld(32, 'a'), kOther(32, 'b');

class ReconcileTest : public AgentTest {
 protected:
  TempDir state_;
  ReconcileTest() { settings_.state_dir = state_.path().string(); }

  // Creates the claimed job of a former agent; the lock file is created separately.
  std::string claim_as(const std::string& instance) {
    const std::string key = submit();
    ClaimRequest request{.context = 1, .runner = 1, .instance = instance, .queues = {"queue:fake"}};
    EXPECT_EQ(client_->claim(request)->jobs.size(), 1U);
    return key;
  }
  InstanceLock acquire_lock(const std::string& instance) {
    auto held = InstanceLock::acquire(settings_.state_dir, 1, instance);
    EXPECT_TRUE(held) << held.error().message;
    return std::move(*held);
  }
  PreviousInstances open_previous() const {
    return {std::make_unique<InstanceFiles>(settings_.state_dir, settings_.runner.id), settings_, self_};
  }
  void release_jobs(const std::vector<Id>& contexts = {1}, const std::string& died = "") {
    PreviousInstances previous = open_previous();
    if (!died.empty()) previous.on_agent_died(died);
    while (previous.release_jobs_of_previous(*client_, contexts, SystemClock().boot_ms())) ::usleep(5000);
  }
  Result<RegisteredRunner> register_this_runner() {
    PreviousInstances previous = open_previous();
    return register_runner(*client_, 1, settings_, current_instance(), previous);
  }
  const RunnerHolder self_{std::string(32, 'c'), "h", "b", 1};
  bool has_file(const std::string& instance) {
    return std::filesystem::exists(state_.path() / "runners" / ("1-" + instance + ".lock"));
  }
};

TEST_F(ReconcileTest, JobsOfADeadInstanceRunAgainAtOnce) {
  const std::string key = claim_as(kOld);
  { const InstanceLock died = acquire_lock(kOld); }
  start();
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).deliveries, 2U);
  EXPECT_EQ(read(key).attempt, 1U);
  EXPECT_FALSE(has_file(kOld));
}

TEST_F(ReconcileTest, JobsOfALivingInstanceKeepTheirLeases) {
  const std::string key = claim_as(kOld);
  const InstanceLock lives = acquire_lock(kOld);
  start();
  const std::string next = submit();
  ASSERT_TRUE(wait_for_runs(1));  // the other job
  EXPECT_EQ(read(key).status, JobStatus::started);
  EXPECT_EQ(client_->leases(1)->size(), 2U);
  EXPECT_TRUE(has_file(kOld));
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end(next));
}

TEST_F(ReconcileTest, MissingInstanceFileProvesNothing) {
  const std::string key = claim_as(kOld);
  start();
  const std::string next = submit();
  ASSERT_TRUE(wait_for_runs(1));
  EXPECT_EQ(read(key).status, JobStatus::started);
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end(next));
}

// A process id means something on one host, since one start and in one pid namespace only.
TEST_F(ReconcileTest, ForeignProcessIdProvesNothing) {
  const pid_t ended_pid = ::fork();
  ASSERT_GE(ended_pid, 0);
  if (ended_pid == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(ended_pid, nullptr, 0), ended_pid);
  const RunnerHolder current = current_instance();
  const auto register_after = [&](const std::string& host, const std::string& boot_id) {
    const RunnerHolder holder{kOther, host, boot_id, ended_pid};
    RunnerHolder held_by;
    EXPECT_TRUE(client_->hold_runner(1, make_runner_record(settings_, 1), holder, settings_.lease_ms, "", held_by));
    auto entered = register_this_runner();
    EXPECT_TRUE(client_->release_runner(1, settings_.runner.id, holder));
    return entered;
  };
  EXPECT_EQ(register_after("elsewhere", current.boot_id).error().code, Code::conflict);
  EXPECT_EQ(register_after(current.host, "another boot").error().code, Code::conflict);
  EXPECT_TRUE(register_after(current.host, current.boot_id))
      << "on the same host and boot, the process is known to have ended";
}

TEST_F(ReconcileTest, OnlyTheDeadInstancesJobsAreReturned) {
  const std::string mine = claim_as(kOld);
  const std::string others = claim_as(kOther);
  { const InstanceLock died = acquire_lock(kOld); }
  const InstanceLock lives = acquire_lock(kOther);
  release_jobs();
  EXPECT_EQ(read(mine).status, JobStatus::dispatched);
  EXPECT_EQ(read(others).status, JobStatus::started);
  EXPECT_EQ(list_instances(settings_.state_dir, 1), std::vector<std::string>{kOther});
  EXPECT_TRUE(list_instances(settings_.state_dir, 2).empty());
}

TEST_F(ReconcileTest, FileStaysUntilTheStoreHasAnswered) {
  const std::string key = claim_as(kOld);
  { const InstanceLock died = acquire_lock(kOld); }
  server_.set_faults([](std::string_view call) { return call == "expire_instance" ? Fault::before : Fault::none; });
  release_jobs();
  EXPECT_TRUE(has_file(kOld));
  server_.set_faults({});
  release_jobs();
  EXPECT_FALSE(has_file(kOld));
  EXPECT_EQ(read(key).status, JobStatus::dispatched);
}

TEST_F(ReconcileTest, FileStaysUntilAllContextsHaveReturnedTheirJobs) {
  settings_.contexts = {1, 2, 3};
  const std::string key = claim_as(kOld);
  { const InstanceLock died = acquire_lock(kOld); }
  PreviousInstances previous = open_previous();
  EXPECT_FALSE(previous.release_jobs_of_previous(*client_, {2, 3}, 0));
  EXPECT_FALSE(previous.release_jobs_of_previous(*client_, {2, 3}, 0));
  EXPECT_TRUE(has_file(kOld));
  EXPECT_EQ(read(key).status, JobStatus::started);
  EXPECT_FALSE(previous.release_jobs_of_previous(*client_, {1}, 0));
  EXPECT_FALSE(has_file(kOld));
  EXPECT_EQ(read(key).status, JobStatus::dispatched);
}

TEST_F(ReconcileTest, ConcurrentChecksOfOneLockAllSucceed) {
  { const InstanceLock died = acquire_lock(kOld); }
  PreviousInstances previous = open_previous();
  std::atomic<int> ended_pid{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { ended_pid += previous.has_ended(kOld) ? 1 : 0; });
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(ended_pid, 8);
}

TEST_F(ReconcileTest, HelpersOfAKilledAgentAreAwaitedForHalfALease) {
  const InstanceLock lives = acquire_lock(kOld), other = acquire_lock(kOther);
  settings_.lease_ms = 30000;
  PreviousInstances previous = open_previous();
  EXPECT_FALSE(previous.release_jobs_of_previous(*client_, {1}, 1000)) << "no instance has ended";
  previous.on_agent_died(kOld);
  EXPECT_TRUE(previous.release_jobs_of_previous(*client_, {1}, 1000));
  previous.on_agent_died(kOther);
  EXPECT_TRUE(previous.release_jobs_of_previous(*client_, {1}, 15999));
  EXPECT_FALSE(previous.release_jobs_of_previous(*client_, {1}, 16000));
}

TEST_F(ReconcileTest, JobsOfAKilledAgentReturnAfterItsHelpersExit) {
  const std::string key = claim_as(kOld);
  // A child that holds the lock longer, as a launcher does while it reaps its jobs.
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t helper = [&] {
    const InstanceLock ours = acquire_lock(kOld);
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ready[1]);
      char byte = 0;
      (void)!::read(ready[0], &byte, 1);
      ::usleep(300000);
      ::_exit(0);
    }
    return pid;
  }();
  ASSERT_GT(helper, 0);
  EXPECT_FALSE(try_lock_dead_instance(settings_.state_dir, 1, kOld))
      << "the child inherited the open file description and the lock";
  ::close(ready[1]);
  settings_.lease_ms = 30000;
  release_jobs({1}, kOld);
  EXPECT_EQ(read(key).status, JobStatus::dispatched);
  ::close(ready[0]);
  ::waitpid(helper, nullptr, 0);
}

TEST_F(ReconcileTest, RunnerIdOfADeadInstanceIsFree) {
  Runner record;
  record.id = 1;
  RunnerHolder held_by;
  ASSERT_TRUE(client_->hold_runner(1, record, {kOld, "an old container", "another boot", 1}, 60000, "", held_by));
  {
    const InstanceLock lives = acquire_lock(kOld);
    const auto refused = register_this_runner();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::conflict);
  }
  const auto taken = register_this_runner();
  ASSERT_TRUE(taken) << taken.error().message;
}

TEST_F(ReconcileTest, ForeignNamesAreNotPaths) {
  std::ofstream(state_ / "1-x.lock") << "";
  EXPECT_FALSE(try_lock_dead_instance(settings_.state_dir, 1, "../1-x"));
  EXPECT_FALSE(try_lock_dead_instance(settings_.state_dir, 1, ""));
  std::filesystem::create_directories(state_.path() / "runners");
  for (const char* name : {"1-.lock", "1-.lock.lock", "1-zz.lock", "1-aa", "x-aa.lock", "11-aa.lock"}) {
    std::ofstream(state_.path() / "runners" / name) << "";
  }
  EXPECT_TRUE(list_instances(settings_.state_dir, 1).empty());
  EXPECT_EQ(list_instances(settings_.state_dir, 11), std::vector<std::string>{"aa"});
}

TEST_F(ReconcileTest, UncreatableFolderIsNamed) {
  const std::string file = state_.write("file", "");
  const auto held = InstanceLock::acquire(file, 1, kOld);
  ASSERT_FALSE(held);
  EXPECT_NE(held.error().message.find(file + "/runners"), std::string::npos) << held.error().message;
}

}  // namespace
}  // namespace mycojobs::test
