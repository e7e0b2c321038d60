#include "service/records.h"
#include "service/queues.h"
#include "service_fixture.h"

namespace mycojobs::service {
namespace {

using ::testing::StartsWith;

using RecordService = ServiceTest;
using MessageService = ServiceTest;
using QueueService = ServiceTest;

TEST_F(RecordService, WhatIsThereWithOtherContentIsNoneThatWasCreated) {
  Actor actor;
  actor.id = 15;
  actor.pubkey = "k";
  EXPECT_EQ(outcome(create_actor(stranger_, *store_, actor)), "") << "itself";
  EXPECT_EQ(outcome(create_actor(stranger_, *store_, actor)), "") << "and again";
  actor.pubkey = "another";
  EXPECT_EQ(outcome(create_actor(stranger_, *store_, actor)), "conflict");
  actor.id = 99;
  EXPECT_EQ(outcome(create_actor(admin_, *store_, actor)), "denied");
  EXPECT_EQ(outcome(create_actor(operator_, *store_, actor)), "");
}

TEST_F(RecordService, RolesAreGivenAndTakenByAdmins) {
  const RoleChange change[] = {{&roles()[3], 20}};
  EXPECT_EQ(roles()[3].name, "reader");
  EXPECT_EQ(outcome(change_roles(submitter_, *store_, true, change)), "denied");
  EXPECT_EQ(change_roles(admin_, *store_, true, change)->readers, (std::vector<Id>{13, 20}));
  EXPECT_EQ(change_roles(operator_, *store_, false, change)->readers, (std::vector<Id>{13}));
  EXPECT_EQ(read_context(operator_, *store_)->admins, (std::vector<Id>{12})) << "what is not named stays";
  const Caller elsewhere{2, 1, WayIn::command, true};
  EXPECT_EQ(outcome(change_roles(elsewhere, *store_, false, change)), "not_found");
  EXPECT_EQ(outcome(set_notify(elsewhere, *store_, "")), "not_found");
  EXPECT_EQ(change_roles(elsewhere, *store_, true, change)->readers, (std::vector<Id>{20}));
  spoil_context();
  EXPECT_EQ(outcome(change_roles(operator_, *store_, true, change)), "invalid") << "its lists would be lost";
}

TEST_F(RecordService, ContextsAreMadeByOperatorsWhereTheServerServes) {
  const auto serves = [](Id id) { return id == 3 ? Result<void>() : fail(Code::invalid, "context_id: is not served"); };
  EXPECT_EQ(outcome(create_context(admin_, *store_, {}, serves)), "denied");
  const auto made = create_context(operator_, *store_, {}, serves);
  ASSERT_TRUE(made) << message(made);
  EXPECT_EQ(made->id, 3U);
  EXPECT_EQ(made->admins, (std::vector<Id>{1}));
  Context wrong;
  wrong.id = 4;
  EXPECT_EQ(outcome(create_context(operator_, *store_, wrong, serves)), "invalid");
}

TEST_F(MessageService, ATopicIsARunnersAndJobsAreTheSenders) {
  const auto networks = *Networks::parse({"loopback"});
  Runner runner;
  runner.id = 20;
  EXPECT_EQ(outcome(create_runner(submitter_, *store_, runner, networks)), "denied");
  ASSERT_TRUE(create_runner(admin_, *store_, runner, networks));
  Message wish;
  wish.message_type = MessageType::job;
  wish.topic = "mj:flows:due";
  EXPECT_EQ(outcome(send_message(submitter_, *store_, std::nullopt, wish)), "not_found");
  wish.topic = "runner20";
  wish.job = {new_job(9)};
  wish.job[0].caller_id = 12;
  EXPECT_THAT(message(send_message(submitter_, *store_, std::nullopt, wish)), StartsWith("job[0]: caller_id"));
  EXPECT_EQ(outcome(send_message(reader_, *store_, std::nullopt, wish)), "denied");
  wish.job[0].caller_id = 0;
  const auto sent = send_message(submitter_, *store_, std::nullopt, wish);
  ASSERT_TRUE(sent) << message(sent);
  EXPECT_EQ(store_->topic_pending(1, "runner20")->size(), 1U);
  EXPECT_EQ(outcome(read_message(other_, *store_, 16, sent->id)), "denied");
  EXPECT_EQ(outcome(read_message(reader_, *store_, 16, sent->id)), "");
  EXPECT_EQ(list_messages(submitter_, *store_, 50)->size(), 1U);
  EXPECT_EQ(list_messages(other_, *store_, 50)->size(), 0U);
}

TEST(QueueNamed, NamesTheSameQueueInEachForm) {
  EXPECT_EQ(queue_named("python", {}).value(), "queue:python");
  EXPECT_EQ(queue_named("queue:python", {}).value(), "queue:python");
  std::vector<QueueInfo> known(1);
  known[0].queue = "mj:queue:runner20";
  EXPECT_EQ(queue_named("mj:queue:runner20", known).value(), "mj:queue:runner20");
}

TEST(QueueNamed, RefusesKeysThatAreNoQueue) {
  for (const char* text : {"", "Python", "queue:", "queue:A", "job:1:2", "mj:queue:runner20", "a b"}) {
    const auto queue = queue_named(text, {});
    ASSERT_FALSE(queue) << text;
    EXPECT_EQ(queue.error().code, Code::invalid);
    EXPECT_NE(queue.error().message.find("queue list"), std::string::npos);
  }
}

TEST_F(QueueService, PausingIsForAdminsAndSaysWhetherItChangedAnything) {
  EXPECT_EQ(outcome(pause_queue(submitter_, *store_, "python", true)), "denied");
  EXPECT_EQ(outcome(pause_queue(admin_, *store_, "mj:queue:runner20", true)), "invalid") << "a key that nobody uses";
  EXPECT_TRUE(pause_queue(admin_, *store_, "python", true)->changed);
  EXPECT_FALSE(pause_queue(operator_, *store_, "queue:python", true)->changed);
  EXPECT_EQ(outcome(list_queues(submitter_, *store_)), "denied");
  EXPECT_TRUE(list_queues(reader_, *store_)->front().paused);
}

}  // namespace
}  // namespace mycojobs::service
