// Agent behaviour with paused queues, delays, retries, priorities of contexts and queues, and expiry times.
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "base/mailbox.h"
#include "support/agent_fixture.h"
#include "support/hand_clock.h"
#include "worker/intake/intake.h"
#include "worker/intake/topic_intake.h"

namespace mycojobs::test {
namespace {

TEST_F(AgentTest, PausedQueueIsNotClaimedUntilResumed) {
  ASSERT_TRUE(client_->set_queue_paused(1, "queue:fake", true));
  start();
  const std::string key = submit();
  const std::string other = submit();
  std::atomic<int> claims{0};
  const auto faulty = with_faults([&](std::string_view call) {
    claims += call == "claim" ? 1 : 0;
    return Fault::none;
  });
  ASSERT_TRUE(eventually([&] { return claims > 1; }));
  EXPECT_EQ(read(key).status, JobStatus::dispatched);
  const int before = claims;
  eventually([] { return false; }, Seconds(1.2));
  EXPECT_LE(claims - before, 10) << "entries of a paused queue do not wake the agent";
  ASSERT_TRUE(client_->set_queue_paused(1, "queue:fake", false));
  ASSERT_TRUE(wait_for_runs(2));
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end(key) && wait_for_end(other));
}

TEST_F(AgentTest, DelayedJobRunsOnlyAtItsTime) {
  start();
  Job later = new_job();
  later.run_at_ms = *client_->now_ms() + 700;
  const std::string key = submit(later);
  ASSERT_TRUE(wait_for_runs(1));
  EXPECT_GE(*client_->now_ms(), later.run_at_ms);
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_GE(read(key).started_ms, later.run_at_ms);
}

TEST_F(AgentTest, FailureIsFollowedByAnotherAttemptAfterAPause) {
  settings_.retry = {50, 100};
  start();
  Job job = new_job();
  job.retries = 2;
  const std::string key = submit(job);
  for (std::uint32_t attempt = 1; attempt <= 3; ++attempt) {
    ASSERT_TRUE(wait_for_runs(1)) << attempt;
    EXPECT_EQ(read(key).attempt, attempt);
    control_.end_all(attempt < 3 ? RunStatus::exit : RunStatus::ok);
    ASSERT_TRUE(wait_for_runs(0));
  }
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).status, JobStatus::finished);
  EXPECT_EQ(control_.launches, 3U);
}

TEST_F(AgentTest, FailureOfTheLastAttemptIsTheJobs) {
  settings_.retry = {10, 10};
  start();
  Job job = new_job();
  job.retries = 1;
  const std::string key = submit(job);
  for (int attempt = 1; attempt <= 2; ++attempt) {
    ASSERT_TRUE(wait_for_runs(1));
    control_.end_all(RunStatus::exit);
    ASSERT_TRUE(wait_for_runs(0));
  }
  ASSERT_TRUE(wait_for_end(key));
  EXPECT_EQ(read(key).status, JobStatus::error);
  EXPECT_EQ(read(key).detail, "exit");
}

TEST_F(AgentTest, DependentQueuedFirstRunsAfterItsDependency) {
  start();
  Job second = new_job("second");
  second.id = 20;
  second.dependends = {10};
  const std::string after = submit(second);
  ASSERT_TRUE(eventually([&] { return read(after).status == JobStatus::waiting_for_prerequisites; }));
  Job first = new_job("first");
  first.id = 10;
  const std::string before = submit(first);
  ASSERT_TRUE(wait_for_runs(1));
  EXPECT_EQ(read(before).status, JobStatus::started);
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(before));
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  ASSERT_TRUE(wait_for_end(after));
  EXPECT_EQ(read(after).status, JobStatus::finished);
}

// Regression test: contexts and queues shared one round-robin counter. With as many queues as contexts, some queues
// were never served first in any context.
TEST_F(AgentTest, FullQueuesOfTwoContextsStarveNoOther) {
  settings_.contexts = {1, 2};
  const auto push = [&](Id context, Id id, const std::string& queue) {
    Job job = new_job("x", context);
    const std::string key = job_key(7, id);
    server_.run_command(context,
                        {"HSET", key, "id", std::to_string(id), "caller_id", "7", "context_id", std::to_string(context),
                         "script", "x", "script_type", "fake", "status", "dispatched"});
    server_.push(context, queue, key);
    return key;
  };
  for (Id id = 1; id <= 60; ++id) {
    push(1, id, runner_queue(1));
    push(2, id, "queue:fake");
  }
  const std::string patient_one = push(1, 100, "queue:fake");
  const std::string patient_two = push(2, 100, runner_queue(1));
  start(1);
  ASSERT_TRUE(eventually([&] {
    control_.end_all(RunStatus::ok);
    return read(patient_one).ended_ms != 0 && read(patient_two, 2).ended_ms != 0;
  }));
  EXPECT_LE(control_.launches, 20U);
}

// A message acts with the rights of its caller, and the record of the context must admit the caller.
TEST_F(AgentTest, MessageActsOnlyAsItsCaller) {
  ASSERT_TRUE(client_->save(1, "context:1", {{"id", "1"}, {"admins", "[12]"}, {"submitters", "[7]"}}));
  start();
  const auto send = [&](Id id, Id caller, void (*forge)(Job&)) {
    Message message;
    message.id = id;
    message.caller_id = caller;
    message.context_id = 1;
    Job job = new_job();
    job.id = id;
    job.caller_id = caller;
    forge(job);
    message.job = {job};
    EXPECT_TRUE(client_->send_to_topic(1, "runner1", redis_key(message), encode(message)));
    return redis_key(message);
  };
  const auto ended = [&](const std::string& key) {
    return eventually([&] { return decode<Message>(*client_->load(1, key)).record.status == MessageStatus::error; });
  };
  const auto get_error = [&](const std::string& key) { return decode<Message>(*client_->load(1, key)).record.error; };
  const std::string as_admin = send(1, 7, [](Job& job) { job.caller_id = 12; });
  const std::string of_flow = send(2, 7, [](Job& job) { job.flow_id = 3; });
  const std::string stranger = send(3, 8, [](Job&) {});
  for (const std::string& key : {as_admin, of_flow, stranger}) ASSERT_TRUE(ended(key)) << key;
  EXPECT_NE(get_error(as_admin).find("job[0]: caller_id"), std::string::npos) << get_error(as_admin);
  EXPECT_NE(get_error(of_flow).find("flow_id"), std::string::npos) << get_error(of_flow);
  EXPECT_NE(get_error(stranger).find("context grant 1 --submitter 8"), std::string::npos) << get_error(stranger);
  EXPECT_FALSE(client_->load(1, "job:12:1"));
  send(4, 7, [](Job&) {});
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end("job:7:4"));
}

TEST_F(AgentTest, RejectedClaimsOfOneContextDoNotDelayAnother) {
  settings_.contexts = {1, 2};
  server_.put_text(1, "mj:leases", "another client's");
  start(1);
  for (int i = 0; i < 20; ++i) {
    auto stored = client_->submit(new_job("x", 2));
    ASSERT_TRUE(stored);
    const std::string key = redis_key(*stored);
    ASSERT_TRUE(wait_for_runs(1));
    control_.end_all(RunStatus::ok);
    ASSERT_TRUE(eventually([&] { return read(key, 2).ended_ms != 0; }));
  }
}

// Passes everything on, and notes which queues of context 1 are not waited for.
class RecordingWaiter final : public Waiter {
 public:
  using Notes = std::shared_ptr<Mailbox<std::vector<std::string>>>;
  RecordingWaiter(std::unique_ptr<Waiter> inner, Notes notes) : inner_(std::move(inner)), notes_(std::move(notes)) {}
  Result<WaitResult> wait(std::uint32_t timeout_ms, bool for_work) override {
    return inner_->wait(timeout_ms, for_work);
  }
  void set_paused(Id context, const std::vector<std::string>& queues) override {
    if (context == 1) notes_->post(queues);
    inner_->set_paused(context, queues);
  }
  void wake() override { inner_->wake(); }

 private:
  std::unique_ptr<Waiter> inner_;
  Notes notes_;
};

class RecordingServer final : public StoreFactory {
 public:
  explicit RecordingServer(StoreFactory& inner) : inner_(inner) {}
  Result<std::unique_ptr<Store>> open() override { return inner_.open(); }
  Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                              const std::string& topic) override {
    auto waiter = inner_.open_waiter(queues, topic);
    if (!waiter) return waiter;
    return std::unique_ptr<Waiter>(new RecordingWaiter(std::move(*waiter), paused));
  }
  Result<std::unique_ptr<HintSubscription>> subscribe(Id context, const HintTopics& topics,
                                                      HintListener& listener) override {
    return inner_.subscribe(context, topics, listener);
  }
  Result<std::unique_ptr<ObjectStore>> open_objects() override { return inner_.open_objects(); }
  Result<std::unique_ptr<FlowStore>> open_flows() override { return inner_.open_flows(); }
  Result<std::unique_ptr<WorkflowStore>> open_workflows() override { return inner_.open_workflows(); }

  RecordingWaiter::Notes paused = std::make_shared<Mailbox<std::vector<std::string>>>();

 private:
  StoreFactory& inner_;
};

// An entry of such a queue would wake the agent again and again, with nothing that it may claim.
TEST_F(AgentTest, QueuesOfAFailedClaimAreNotWaitedFor) {
  RecordingServer server(server_);
  const std::shared_ptr<void> stop(&server, [this](void*) { agent_.reset(); });  // before the server
  settings_.slots = 1;
  std::vector<std::unique_ptr<Executor>> executors;
  executors.push_back(std::make_unique<FakeExecutor>());
  std::atomic<bool> failing = true;
  const auto faulty = with_faults(
      [&](const ServerCall& call) { return failing && call.name == "claim" ? Fault::before : Fault::none; });
  auto agent = Agent::start({server, std::make_unique<FakeSandbox>(control_), std::move(executors), clock_}, settings_);
  ASSERT_TRUE(agent) << agent.error().message;
  agent_ = std::move(*agent);
  const std::string key = submit();
  std::set<std::vector<std::string>> paused_queues;
  const auto was_paused = [&](const std::vector<std::string>& queues) {
    for (std::vector<std::string>& each : server.paused->consume_all()) paused_queues.insert(std::move(each));
    return paused_queues.contains(queues);
  };
  EXPECT_TRUE(eventually([&] { return was_paused({runner_queue(1), "queue:fake"}); }));
  failing = false;
  EXPECT_TRUE(wait_for_runs(1)) << "the context is tried again";
  EXPECT_TRUE(eventually([&] { return was_paused({}); }));
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end(key));
}

// Otherwise each entry of another queue would end a wait at once until the pause ends.
TEST(IntakeTest, RejectedJobDoesNotEndThePauseOfItsContext) {
  ManualClock clock;
  MemoryServer server(clock);
  RecordingServer recorder(server);
  const auto store = *server.open();
  const FakeExecutor executor;
  const SecretWatcher secrets({}, {1}, clock);
  StoreHealth health;
  WorkerSettings settings;
  settings.contexts = {1};
  settings.runner.id = 1;
  settings.runner.local = true;
  int reports = 0;
  Intake intake({*store, *recorder.open_waiter({{1, "queue:fake"}}, "runner1"), {&executor}, secrets}, clock, health,
                settings, "a1",
                {.can_start_runs = [] { return true; }, .report = [&](const RunReport&) { ++reports; }});
  using PausedQueues = std::deque<std::vector<std::string>>;
  const std::vector<std::string> all{runner_queue(1), "queue:fake"};
  server.set_faults([](const ServerCall& call) { return call.name == "claim" ? Fault::before : Fault::none; });
  intake.run_once();
  EXPECT_EQ(recorder.paused->consume_all(), PausedQueues{all});
  intake.on_start_rejected({1, {1, "job:1:1"}, "queue:fake", 1, 0, {Code::unavailable, "no descriptor left"}});
  intake.run_once();
  EXPECT_EQ(reports, 1);
  EXPECT_EQ(recorder.paused->consume_all(), PausedQueues{all});
  server.set_faults({});
  clock.advance(5000);
  intake.run_once();
  EXPECT_EQ(recorder.paused->consume_all(), PausedQueues(1));
}

TEST_F(AgentTest, RunsHaveNoFenceIfConfigured) {
  settings_.kill_on_lease_lost = false;
  start(1, 1000);
  const std::string key = submit();
  ASSERT_TRUE(wait_for_runs(1));
  const auto read_lease_end = [&] { return client_->leases(1)->at(0).until_ms; };
  const std::uint64_t first = read_lease_end();
  ASSERT_TRUE(eventually([&] { return read_lease_end() > first; }));  // the lease was renewed
  {
    std::lock_guard lock(control_.mutex);
    for (const auto& [run, fence] : control_.fences) EXPECT_EQ(fence, 0U) << run;
  }
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end(key));
}

TEST_F(AgentTest, EndedJobsAreKeptUpToACount) {
  settings_.retention_count = 2;
  start();
  std::vector<std::string> keys;
  for (int i = 0; i < 4; ++i) {
    keys.push_back(submit());
    ASSERT_TRUE(eventually([&] {
      control_.end_all(RunStatus::ok);
      auto job = client_->load(1, keys.back());
      return !job || decode<Job>(*job).record.ended_ms != 0;
    }));
  }
  EXPECT_TRUE(eventually([&] { return !client_->load(1, keys[0]) && !client_->load(1, keys[1]); }));
  EXPECT_TRUE(client_->load(1, keys[2]) && client_->load(1, keys[3]));
}

TEST_F(AgentTest, SignedOffRunnerIsMarked) {
  start();
  const auto read_detail = [&] { return decode<Runner>(*client_->load(1, "runner:1")).record.detail; };
  EXPECT_EQ(read_detail(), "running");
  agent_.reset();
  EXPECT_EQ(read_detail(), "stopped");
}

}  // namespace
}  // namespace mycojobs::test
