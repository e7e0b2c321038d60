// An agent follows the registered record of its runner.
#include <gmock/gmock.h>

#include "base/ed25519.h"
#include "base/log.h"
#include "support/agent_fixture.h"

namespace mycojobs::test {
namespace {

using testing::HasSubstr;

class RunnerRecord : public AgentTest {
 protected:
  std::string field(const std::string& name) {
    return std::string(server_.run_command(1, {"HGET", "runner:1", name}).text());
  }
  std::string message_with_job(Id id, const std::string& topic) {
    Message message;
    message.id = id;
    message.caller_id = 7;
    message.context_id = 1;
    Job job = new_job();
    job.id = id;
    message.job = {job};
    EXPECT_TRUE(client_->send_to_topic(1, topic, redis_key(message), encode(message)));
    return "job:7:" + std::to_string(id);
  }
  Result<std::unique_ptr<Agent>> try_to_start() {
    std::vector<std::unique_ptr<Executor>> executors;
    executors.push_back(std::make_unique<FakeExecutor>());
    return Agent::start({server_, std::make_unique<FakeSandbox>(control_), std::move(executors), clock_}, settings_);
  }
  static std::shared_ptr<const SigningKey> new_key() { return std::make_shared<const SigningKey>(SigningKey::make()); }
};

TEST_F(RunnerRecord, TopicAndQueuesOfTheRecordApply) {
  ASSERT_TRUE(client_->save(1, "runner:1", {{"id", "1"}, {"topic", "work.here"}, {"local", "false"}}));
  settings_.runner.topic = "other";
  ::testing::internal::CaptureStderr();
  init_log(LogLevel::info, LogFormat::json);
  start();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("--topic other"));
  EXPECT_THAT(log, HasSubstr("--queues yes"));
  const std::string queued = submit();
  const std::string message_job = message_with_job(101, "work.here");
  ASSERT_TRUE(wait_for_runs(1));
  EXPECT_EQ(read(message_job).status, JobStatus::started);
  EXPECT_EQ(read(queued).status, JobStatus::dispatched);
  EXPECT_EQ(field("topic"), "work.here");
  EXPECT_EQ(field("local"), "false");
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end(message_job));
}

TEST_F(RunnerRecord, SettingsApplyWithoutARecord) {
  ASSERT_TRUE(client_->save(1, "runner:1", {{"id", "1"}, {"pubkey", ""}}));
  settings_.runner.topic = "work.here";
  start();
  EXPECT_EQ(field("topic"), "work.here");
  EXPECT_EQ(field("local"), "true");
  const std::string message_job = message_with_job(101, "work.here"), queued = submit();
  ASSERT_TRUE(wait_for_runs(2));
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end(message_job) && wait_for_end(queued));
}

TEST_F(RunnerRecord, QueuesOfTheRecordOverrideTheSetting) {
  ASSERT_TRUE(client_->save(1, "runner:1", {{"id", "1"}, {"local", "true"}}));
  settings_.runner.local = false;
  start();
  const std::string queued = submit();
  ASSERT_TRUE(wait_for_runs(1));
  control_.end_all(RunStatus::ok);
  EXPECT_TRUE(wait_for_end(queued));
}

TEST_F(RunnerRecord, AgentWithoutTheRegisteredKeyDoesNotStart) {
  const auto key = new_key();
  ASSERT_TRUE(client_->save(1, "runner:1", {{"id", "1"}, {"pubkey", key->public_key()}}));
  const auto without = try_to_start();
  ASSERT_FALSE(without);
  EXPECT_EQ(without.error().code, Code::conflict);
  EXPECT_THAT(without.error().message, HasSubstr("this agent has no key"));
  EXPECT_THAT(without.error().message, HasSubstr("runner update 1 --pubkey"));
  settings_.key = new_key();
  const auto other = try_to_start();
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("this agent has the key " + settings_.key->public_key()));
  EXPECT_EQ(field("pubkey"), key->public_key());
  settings_.key = key;
  start();
  EXPECT_EQ(field("pubkey"), key->public_key());
}

TEST_F(RunnerRecord, FirstKeyIsRegisteredByTheAgent) {
  settings_.key = new_key();
  start();
  EXPECT_EQ(field("pubkey"), settings_.key->public_key());
}

// Regression test: when the key was replaced while the agent ran, the heartbeat of the agent restored the old key.
TEST_F(RunnerRecord, AgentStopsOnceTheRecordHasAnotherKey) {
  settings_.key = new_key();
  start(2, 1000);
  const std::string next = new_key()->public_key();
  ASSERT_TRUE(client_->save(1, "runner:1", {{"pubkey", next}}));
  ASSERT_TRUE(eventually([&] { return agent_->has_lost_runner_id(); }));
  EXPECT_EQ(field("pubkey"), next);
}

}  // namespace
}  // namespace mycojobs::test
