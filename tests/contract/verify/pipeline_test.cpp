// Messages between contexts, by the steps of the store: from msg_out through the outbox, into the inbox of the other
// side, and back with their answers. After each test, `verify` must find nothing.
#include <gmock/gmock.h>

#include <algorithm>

#include "contract/verify_scenario.h"
#include "model/codec.h"

namespace mycojobs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr const char *kMessage = "message:12:101", *kMessageMark = "mj:message:message:12:101";
constexpr const char* kContent = "c0ffee";
constexpr std::uint32_t kHoldMs = 60000;
using MailKind = MailResult::Kind;

class Pipeline : public VerifyContract {
 protected:
  void TearDown() override {
    if (HasFatalFailure()) return;
    EXPECT_EQ(violated_rules(), std::set<std::string>{});
  }

  static std::string message_key(Id id) { return "message:12:" + std::to_string(id); }
  void save_message(Id id = 101) {
    ASSERT_TRUE(store_->save(1, message_key(id),
                             {{"id", std::to_string(id)},
                              {"caller_id", "12"},
                              {"context_id", "1"},
                              {"message_type", "job"},
                              {"status", "dispatched"}}));
  }
  static std::vector<MessageJob> make_message_jobs(const std::vector<Job>& jobs) {
    std::vector<MessageJob> out;
    for (const Job& job : jobs) out.push_back({job, "queue:python"});
    return out;
  }
  static RouteMessage make_route(const std::vector<Job>& jobs, Id id = 101) {
    return {message_key(id),
            {kContent, {{"address", "http://there:1"}, {"context", "2"}}},
            60000,
            0,
            make_message_jobs(jobs)};
  }
  void route(const std::vector<Job>& jobs) {
    save_message();
    const auto done = store_->route_message(1, make_route(jobs));
    ASSERT_TRUE(done) << done.error().message;
    ASSERT_FALSE(done->repeated);
  }
  static MessageState make_received_state(Fields more = {}) {
    more.emplace_back("answer", "wanted");
    more.emplace_back("origin", "7:5");
    return {kContent, std::move(more)};
  }
  static Fields make_message_record() {
    return {{"id", "101"}, {"caller_id", "12"}, {"context_id", "1"}, {"message_type", "job"}};
  }
  void arrive(Fields more = {}) {
    ASSERT_EQ(store_->receive_message(1, kMessage, make_received_state(std::move(more)), make_message_record()).value(),
              Arrival::stored);
  }
  Result<AcceptedMessage> accept(const std::vector<Job>& jobs, Id flow = 0) {
    AcceptMessage request{"msg_in", kMessage, make_message_jobs(jobs), flow, {}};
    for (const Job& job : jobs) request.origins.push_back("job:7:" + std::to_string(job.id));
    return store_->accept_message(1, request);
  }
  DueMessages list_due_messages(std::uint32_t hold_ms = kHoldMs) {
    return store_->due_messages(1, 100, hold_ms, false).value();
  }
  std::vector<std::string> list_outbox() { return list_members("mj:outbox"); }
  std::vector<std::string> list_members(const std::string& zset) {
    return to_texts(run_command({"ZRANGE", zset, "0", "-1"}));
  }
  std::vector<std::string> list_entries(const std::string& key) {
    return to_texts(run_command({"LRANGE", key, "0", "-1"}));
  }
  static std::vector<std::string> to_texts(const Reply& reply) {
    std::vector<std::string> out;
    for (std::size_t i = 0; i < reply.size(); ++i) out.emplace_back(reply.at(i).text());
    return out;
  }
  OutboxEntry make_outbox_entry(const std::string& kind) {
    return {kind + ' ' + kMessage, kind, kMessage, store_->load(1, kMessageMark).value_or(Fields{})};
  }
  void complete_delivery(const std::string& kind, const MailResult& after) {
    const auto done = store_->complete_delivery(1, make_outbox_entry(kind), after);
    ASSERT_TRUE(done) << done.error().message;
  }
  void deliver() { complete_delivery("send", {MailKind::delivered, 0, "", "", {{"there", "9 message:5:101"}}}); }
  static RemoteJobEnd make_job_end(Id id, JobStatus status = JobStatus::finished) {
    RemoteJobEnd out{key(id), {{"attempt", "2"}}, {}};
    out.end.status = status;
    out.end.detail = status == JobStatus::finished ? "ok" : "exception";
    out.end.result = {{"answer", "42"}};
    return out;
  }
  bool answer(const std::vector<RemoteJobEnd>& jobs, bool is_last = true, const std::string& reason = "") {
    return store_->answer_message(1, {kMessage, kContent, reason, {}, jobs, is_last, ""}).value();
  }
  std::string status(Id id) { return field(key(id), "status") + ' ' + field(key(id), "detail"); }
  std::string message_status() { return field(kMessage, "status"); }
  std::string read_mark_field(const std::string& name) { return field(kMessageMark, name); }
  static TickRequest retire_all() {
    TickRequest all;
    all.retention = Retention::same_for_all(1);
    return all;
  }
  void run_job(Id id) {
    const auto jobs = claim(64);
    const auto found =
        std::find_if(jobs.begin(), jobs.end(), [&](const ClaimedJob& each) { return each.ref.job_key == key(id); });
    ASSERT_NE(found, jobs.end());
    ASSERT_EQ(outcome(end(found->ref, finished())), "ok");
  }
};

// ---- routing ----

TEST_P(Pipeline, OutboxIsRoutedOldestFirst) {
  save_message(101);
  save_message(102);
  ASSERT_TRUE(store_->push_to_msg_out(1, message_key(101)));
  ASSERT_TRUE(store_->push_to_msg_out(1, message_key(102)));
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(store_->msg_out_keys(1).value(), ElementsAre(message_key(101), message_key(102)));
  }
  EXPECT_THAT(list_entries("msg_out"), IsEmpty());
  ASSERT_TRUE(store_->route_message(1, make_route({job(1)})));
  EXPECT_THAT(store_->msg_out_keys(1).value(), ElementsAre(message_key(102)));
}

TEST_P(Pipeline, InvalidOutboxEntriesBlockNothing) {
  save_message();
  for (const char* each : {"nonsense", "message:0:1", "message:12", "job:12:1", "message:12:101 "})
    backend_->push(1, "msg_out", each);
  backend_->put_text(1, "message:12:7", "a text");
  backend_->push(1, "msg_out", "message:12:7");
  backend_->put_text(1, "mj:message:message:12:8", "a text");
  save_message(8);
  backend_->push(1, "msg_out", "message:12:8");
  backend_->push(1, "msg_out", kMessage);
  EXPECT_THAT(store_->msg_out_keys(1).value(), ElementsAre(kMessage));
  EXPECT_THAT(list_entries("msg_out_coordinator"), ElementsAre(kMessage));
  EXPECT_THAT(last_anomaly(), HasSubstr("message:12:8"));
}

TEST_P(Pipeline, EntryWithoutARecordIsRetriedAndThenDropped) {
  backend_->push(1, "msg_out", kMessage);
  backend_->push(1, "msg_out", message_key(102));
  EXPECT_THAT(store_->msg_out_keys(1).value(), IsEmpty());
  save_message();
  EXPECT_THAT(store_->msg_out_keys(1).value(), ElementsAre(kMessage)) << "the record was written later";
  EXPECT_TRUE(eventually([&] {
    (void)store_->msg_out_keys(1);
    return run_command({"EXISTS", "mj:topic-missing-records:msg_out"}).number() == 0;
  }));
  save_message(102);
  EXPECT_THAT(store_->msg_out_keys(1).value(), ElementsAre(kMessage));
}

TEST_P(Pipeline, MessageIsRoutedOnce) {
  route({job(1), job(2)});
  EXPECT_THAT(list_outbox(), ElementsAre("send message:12:101"));
  EXPECT_EQ(status(1), "waiting_for_prerequisites away");
  EXPECT_EQ(store_->queue_length(1, "queue:python").value(), 0U);
  EXPECT_EQ(field(kMessage, "transport_status"), "queued");
  EXPECT_EQ(read_mark_field("left"), "2");
  ASSERT_TRUE(store_->push_to_msg_out(1, kMessage));
  EXPECT_THAT(store_->msg_out_keys(1).value(), ElementsAre(kMessage));
  const auto again = store_->route_message(1, make_route({job(1), job(2)})).value();
  EXPECT_TRUE(again.repeated);
  EXPECT_THAT(again.job_keys, ElementsAre(key(1), key(2)));
  EXPECT_THAT(store_->msg_out_keys(1).value(), IsEmpty());
  EXPECT_TRUE(claim(10).empty());
}

TEST_P(Pipeline, QueuedJobCannotBeSent) {
  submit(1);
  save_message();
  EXPECT_EQ(outcome(store_->route_message(1, make_route({job(2), job(1)}))), "conflict");
  EXPECT_EQ(outcome(store_->load(1, key(2))), "not_found");
  EXPECT_EQ(outcome(store_->load(1, kMessageMark)), "not_found");
  run_job(1);
  EXPECT_EQ(outcome(store_->route_message(1, make_route({job(1)}))), "conflict") << "the job has run in this context";
}

TEST_P(Pipeline, JobPushedOrEndedByAClientCannotBeSent) {
  save_message();
  Fields bare{{"id", "1"}, {"caller_id", "12"}, {"context_id", "1"}, {"script", "print(1)"}, {"script_type", "python"}};
  ASSERT_TRUE(store_->save(1, key(1), bare));
  backend_->push(1, "queue:python", key(1));
  EXPECT_EQ(outcome(store_->route_message(1, make_route({job(1)}))), "conflict");
  run_job(1);
  bare[0].second = "2";
  bare.emplace_back("status", "error");
  ASSERT_TRUE(store_->save(1, key(2), bare));
  EXPECT_EQ(outcome(store_->route_message(1, make_route({job(2)}))), "conflict");
}

TEST_P(Pipeline, InvalidJobsKeepTheirMessageLocal) {
  save_message();
  ASSERT_TRUE(store_->create_job(job(2, "print('first')")));
  EXPECT_EQ(outcome(store_->route_message(1, make_route({job(1), job(2)}))), "conflict")
      << "a stored job with other content";
  EXPECT_EQ(outcome(store_->route_message(1, make_route({job(1), job(1)}))), "conflict") << "the same job twice";
  EXPECT_EQ(outcome(store_->route_message(1, make_route({job(0)}))), "invalid");
  EXPECT_EQ(outcome(store_->load(1, key(1))), "not_found");
  EXPECT_EQ(outcome(store_->route_message(1, make_route({job(1)}, 102))), "not_found");
  EXPECT_THAT(list_outbox(), IsEmpty());
  backend_->erase(1, key(2));  // its record was never pushed; verify would report record-not-queued
}

TEST_P(Pipeline, JobWithAMatchingRecordIsSent) {
  ASSERT_TRUE(store_->create_job(job(1)));
  route({job(1)});
  EXPECT_EQ(status(1), "waiting_for_prerequisites away");
}

TEST_P(Pipeline, RejectedMessageIsNotRoutedLater) {
  save_message();
  ASSERT_TRUE(store_->push_to_msg_out(1, kMessage));
  ASSERT_EQ(store_->msg_out_keys(1).value().size(), 1U);
  ASSERT_TRUE(store_->close_message(1, "msg_out_coordinator", kMessage, "it is not signed"));
  EXPECT_EQ(message_status(), "error");
  EXPECT_EQ(field(kMessage, "error"), "it is not signed");
  EXPECT_THAT(store_->msg_out_keys(1).value(), IsEmpty());
  EXPECT_TRUE(store_->route_message(1, make_route({job(1)})).value().repeated);
  EXPECT_THAT(list_outbox(), IsEmpty());
}

// ---- delivery ----

TEST_P(Pipeline, MailIsLeasedInOrderAndOnce) {
  route({job(1)});
  save_message(102);
  ASSERT_TRUE(store_->route_message(1, make_route({}, 102)));
  const DueMessages one = store_->due_messages(1, 1, kHoldMs, false).value();
  ASSERT_EQ(one.outbox.size(), 1U);
  EXPECT_EQ(one.outbox[0].entry, "send message:12:101");
  EXPECT_EQ(one.outbox[0].kind, "send");
  EXPECT_EQ(one.outbox[0].message_key, kMessage);
  EXPECT_EQ(field_of(one.outbox[0].mark, "address"), "http://there:1");
  const DueMessages other = list_due_messages();
  ASSERT_EQ(other.outbox.size(), 1U);
  EXPECT_EQ(other.outbox[0].message_key, message_key(102));
  const DueMessages none = list_due_messages();
  EXPECT_THAT(none.outbox, IsEmpty());
  EXPECT_GT(none.next_ms, 0U);
  EXPECT_LE(none.next_ms, kHoldMs);
}

TEST_P(Pipeline, WaitIsDueAfterTheClockWentBack) {
  route({job(1)});
  const std::string in_20_minutes = std::to_string(list_due_messages().now_ms + 1200000);
  for (const std::string each : {"send ", "expire "})
    run_command({"ZADD", "mj:outbox", in_20_minutes, each + kMessage});
  EXPECT_THAT(list_due_messages().outbox, IsEmpty());
  const DueMessages found = store_->due_messages(1, 100, kHoldMs, true).value();
  ASSERT_EQ(found.outbox.size(), 1U);
  EXPECT_EQ(found.outbox[0].kind, "send");
}

TEST_P(Pipeline, UnsettledMailIsLeasedAgain) {
  route({job(1)});
  ASSERT_EQ(list_due_messages(1).outbox.size(), 1U);
  EXPECT_TRUE(eventually([&] { return list_due_messages(1).outbox.size() == 1; }));
}

TEST_P(Pipeline, InvalidOutboxEntriesAreRemoved) {
  for (const char* each : {"send message:12:999", "nonsense", "send job:12:1"})
    run_command({"ZADD", "mj:outbox", "1", each});
  run_command({"ZADD", "mj:inbox", "1", "message:12:999"});
  const DueMessages found = list_due_messages();
  EXPECT_THAT(found.outbox, IsEmpty());
  EXPECT_THAT(found.inbox, IsEmpty());
  EXPECT_EQ(list_due_messages().next_ms, 0U);
}

TEST_P(Pipeline, DeliveredMessageIsAcknowledged) {
  RouteMessage request = make_route({job(1)});
  request.result_timeout_ms = 50000;
  save_message();
  ASSERT_TRUE(store_->route_message(1, request));
  deliver();
  EXPECT_EQ(message_status(), "acknowledged");
  EXPECT_EQ(field(kMessage, "transport_status"), "delivered");
  EXPECT_EQ(field(kMessage, "transport_id"), "9 message:5:101");
  EXPECT_THAT(list_outbox(), ElementsAre("expire message:12:101")) << "the answer has a deadline";
  deliver();  // removes the entry
  EXPECT_THAT(list_outbox(), ElementsAre("expire message:12:101"));
}

TEST_P(Pipeline, DeferredMailCountsItsAttempts) {
  route({job(1)});
  complete_delivery("send", {MailKind::retry, 40000, "", "nobody answers"});
  complete_delivery("send", {MailKind::retry, 40000, "", "nobody answers", {{"told", "3"}}});
  EXPECT_EQ(read_mark_field("tries"), "2");
  EXPECT_EQ(read_mark_field("why"), "nobody answers");
  EXPECT_EQ(read_mark_field("told"), "3");
  complete_delivery("send", {MailKind::retry, 40000, "", ""});
  EXPECT_EQ(read_mark_field("tries"), "2") << "a postponed delivery is not an attempt";
  EXPECT_THAT(list_due_messages().outbox, IsEmpty());
}

TEST_P(Pipeline, FailedMessageEndsItsJobs) {
  route({job(1), job(2)});
  complete_delivery("send", {MailKind::failed, 0, "refused", "not known there"});
  EXPECT_EQ(status(1), "error refused");
  EXPECT_EQ(field(key(1), "error"), "not known there");
  EXPECT_EQ(message_status(), "error");
  EXPECT_EQ(field(kMessage, "error"), "not known there");
  EXPECT_EQ(field(kMessage, "transport_status"), "failed");
  EXPECT_EQ(read_mark_field("state"), "over");
  EXPECT_EQ(read_mark_field("left"), "0");
  EXPECT_THAT(list_outbox(), ElementsAre("cancel message:12:101"))
      << "the recipient may have the message, if the reply to an earlier attempt was lost";
  EXPECT_THAT(list_entries("msg_in"), ElementsAre(kMessage));
  complete_delivery("send", {MailKind::failed, 0, "refused", "another reason"});
  EXPECT_EQ(field(kMessage, "error"), "not known there");
}

TEST_P(Pipeline, TimedOutMessageIsCancelledAtTheRecipient) {
  RouteMessage request = make_route({job(1)});
  request.result_timeout_ms = 1;
  save_message();
  ASSERT_TRUE(store_->route_message(1, request));
  deliver();
  complete_delivery("expire", {MailKind::failed, 0, "timeout", "timeout_result: no answer was received in time"});
  EXPECT_EQ(status(1), "error timeout");
  EXPECT_EQ(message_status(), "error");
  EXPECT_EQ(field(kMessage, "transport_status"), "delivered");
  EXPECT_THAT(list_outbox(), ElementsAre("cancel message:12:101"));
  complete_delivery("cancel", {MailKind::closed, 0, "", ""});
  EXPECT_THAT(list_outbox(), IsEmpty());
}

TEST_P(Pipeline, RejectedCancelEndsNothingElse) {
  route({job(1), job(2)});
  deliver();
  ASSERT_TRUE(store_->cancel(1, key(1)));
  EXPECT_EQ(status(1), "error cancelled");
  EXPECT_THAT(list_outbox(), ElementsAre("cancel message:12:101"));
  complete_delivery("cancel", {MailKind::failed, 0, "lost", "no such message was received on this host"});
  EXPECT_EQ(status(2), "waiting_for_prerequisites away");
  EXPECT_EQ(message_status(), "acknowledged");
  EXPECT_EQ(read_mark_field("left"), "1");
  ASSERT_TRUE(answer({make_job_end(1), make_job_end(2)}));
  EXPECT_EQ(status(1), "error cancelled") << "a stored end is not replaced";
  EXPECT_EQ(status(2), "finished ok");
  EXPECT_EQ(field(kMessage, "error"), "1 of its jobs failed");
}

// ---- arrival ----

TEST_P(Pipeline, MessageArrivesOnce) {
  arrive();
  EXPECT_EQ(store_->receive_message(1, kMessage, make_received_state(), make_message_record()).value(),
            Arrival::duplicate);
  EXPECT_EQ(store_->receive_message(1, kMessage, {"decaf", {{"origin", "7:5"}}}, make_message_record()).value(),
            Arrival::content_conflict);
  EXPECT_EQ(store_->receive_message(1, kMessage, {"decaf", {{"origin", "8:5"}}}, make_message_record()).value(),
            Arrival::key_in_use);
  EXPECT_EQ(store_->receive_message(1, message_key(9), make_received_state(), make_message_record()).value(),
            Arrival::duplicate)
      << "a repeated message is a duplicate also under another key";
  EXPECT_THAT(list_entries("msg_in"), ElementsAre(kMessage));
  EXPECT_THAT(list_members("mj:inbox"), ElementsAre(kMessage));
  EXPECT_EQ(message_status(), "dispatched");
  EXPECT_EQ(read_mark_field("origin"), "7:5");
  EXPECT_THAT(list_due_messages().inbox, ElementsAre(kMessage));
  EXPECT_THAT(list_due_messages().inbox, IsEmpty()) << "the message is leased to the first caller";
}

TEST_P(Pipeline, RecordOfAnotherMessageIsNotOverwritten) {
  save_message();
  EXPECT_EQ(store_->receive_message(1, kMessage, make_received_state(), make_message_record()).value(),
            Arrival::key_in_use);
  EXPECT_EQ(outcome(store_->load(1, kMessageMark)), "not_found");
}

TEST_P(Pipeline, SentJobsCannotBeReceived) {
  route({job(1)});
  EXPECT_EQ(store_->receive_message(1, kMessage, make_received_state(), make_message_record()).value(),
            Arrival::key_in_use);
  ASSERT_TRUE(answer({make_job_end(1)}));
  EXPECT_EQ(store_->receive_message(1, kMessage, make_received_state(), {}).value(), Arrival::content_conflict);
}

TEST_P(Pipeline, MessageToItsOwnContextArrives) {
  save_message();
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(store_->push_to_msg_out(1, kMessage));
    ASSERT_EQ(store_->msg_out_keys(1).value().size(), 1U);
    EXPECT_EQ(store_->receive_message(1, kMessage, {kContent, {{"own", "1"}}}, {}).value(),
              again == 0 ? Arrival::stored : Arrival::duplicate);
    EXPECT_THAT(store_->msg_out_keys(1).value(), IsEmpty());
  }
  ASSERT_TRUE(accept({job(1)}));
  run_job(1);
  EXPECT_EQ(message_status(), "processed");
  EXPECT_THAT(list_outbox(), IsEmpty()) << "no host waits for the result";
  EXPECT_THAT(list_entries("msg_in"), ElementsAre(kMessage));
}

TEST_P(Pipeline, FullInboxAcceptsNoMore) {
  std::vector<std::string> many{"ZADD", "mj:inbox"};
  for (int i = 0; i < 100000; ++i) {
    many.emplace_back("1");
    many.push_back("message:9:" + std::to_string(i + 1));
  }
  run_command(many);
  EXPECT_EQ(store_->receive_message(1, kMessage, make_received_state(), make_message_record()).value(),
            Arrival::inbox_full);
  EXPECT_EQ(outcome(store_->load(1, kMessage)), "not_found");
  EXPECT_EQ(outcome(store_->load(1, kMessageMark)), "not_found");
}

// A busy sender does not delay other senders.
TEST_P(Pipeline, SendersAreServedInTurn) {
  Id number = 0;
  const auto receive = [&](Id caller) {
    Message one;
    one.caller_id = caller;
    one.id = ++number;
    const MessageState mark{"c0de" + std::to_string(number), {{"origin", "7:" + std::to_string(number)}}};
    return store_->receive_message(1, redis_key(one), mark, encode(one)).value();
  };
  for (int i = 0; i < 200; ++i) ASSERT_EQ(receive(12), Arrival::stored);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(receive(13), Arrival::stored);
  ASSERT_EQ(receive(14), Arrival::stored);
  const auto first = store_->due_messages(1, 9, kHoldMs, false).value().inbox;
  EXPECT_THAT(first, testing::IsSupersetOf({"message:13:201", "message:13:202", "message:13:203", "message:14:204",
                                            "message:12:1", "message:12:2", "message:12:3"}));
  const auto position_of = [&](const char* key) { return std::find(first.begin(), first.end(), key) - first.begin(); };
  EXPECT_LT(position_of("message:13:201"), position_of("message:13:202"))
      << "the messages of a sender are served in order";
  EXPECT_LT(position_of("message:13:202"), position_of("message:13:203"));
}

TEST_P(Pipeline, OneSenderFillsAtMostATenthOfTheInbox) {
  const std::string now = std::to_string(store_->now_ms().value());
  run_command({"ZADD", "mj:inbox", now, "message:12:1"});
  run_command({"HSET", "mj:inbox-turns", "12", std::to_string(std::stod(now) + 10000.0 / 1024)});
  EXPECT_EQ(store_->receive_message(1, kMessage, make_received_state(), make_message_record()).value(),
            Arrival::sender_limit_reached);
  EXPECT_EQ(outcome(store_->load(1, kMessageMark)), "not_found");
  EXPECT_EQ(store_->receive_message(1, "message:13:1", make_received_state(), make_message_record()).value(),
            Arrival::stored)
      << "other senders are not affected";
  run_command({"HSET", "mj:inbox-turns", "12", std::to_string(std::stod(now) + 3600000)});
  EXPECT_EQ(store_->receive_message(1, kMessage, {"decaf", {}}, make_message_record()).value(), Arrival::stored)
      << "a turn far in the future is reset, as after a clock that went back";
}

TEST_P(Pipeline, LargeMessageCountsAsSeveral) {
  const std::uint64_t now = store_->now_ms().value();
  run_command({"ZADD", "mj:inbox", std::to_string(now), "message:12:1"});
  // Leaves capacity for twenty more messages.
  run_command({"HSET", "mj:inbox-turns", "12", std::to_string(static_cast<double>(now) + 9980.0 / 1024)});
  const auto receive = [&](Id id, std::size_t bytes) {
    Fields fields = make_message_record();
    fields.emplace_back("message", std::string(bytes, 'x'));
    return store_->receive_message(1, message_key(id), {"c0de" + std::to_string(id), {{"origin", "7:5"}}}, fields)
        .value();
  };
  EXPECT_EQ(receive(2, 100), Arrival::stored);
  EXPECT_EQ(receive(3, 20 * 16384), Arrival::stored) << "the limit is checked before the message is added";
  EXPECT_EQ(receive(4, 100), Arrival::sender_limit_reached);
  EXPECT_EQ(receive(5, 1U << 20), Arrival::sender_limit_reached)
      << "the next message of this sender exceeds the limit, too";
  EXPECT_EQ(store_->receive_message(1, "message:13:1", make_received_state(), make_message_record()).value(),
            Arrival::stored)
      << "other senders are not affected";
}

TEST_P(Pipeline, MessagePushedToMsgInHasArrived) {
  save_message();
  backend_->push(1, "msg_in", "nonsense");
  backend_->push(1, "msg_in", message_key(999));
  backend_->push(1, "msg_in", kMessage);
  EXPECT_THAT(list_due_messages().inbox, ElementsAre(kMessage));
  ASSERT_TRUE(accept({job(1)}));
  EXPECT_THAT(list_due_messages().inbox, IsEmpty());
  EXPECT_THAT(list_entries("msg_in"), ElementsAre(message_key(999), "nonsense"));
  run_job(1);
  EXPECT_EQ(message_status(), "processed");
}

TEST_P(Pipeline, AcceptedMessageRunsOnceAndIsAnswered) {
  arrive();
  EXPECT_THAT(accept({job(1), job(2)}).value().job_keys, ElementsAre(key(1), key(2)));
  EXPECT_EQ(message_status(), "acknowledged");
  EXPECT_EQ(read_mark_field("jobs"), "job:12:1 job:12:2");
  EXPECT_EQ(read_mark_field("origins"), "job:7:1 job:7:2");
  EXPECT_THAT(list_members("mj:inbox"), IsEmpty());
  EXPECT_THAT(list_entries("msg_in"), IsEmpty());
  EXPECT_TRUE(accept({job(3), job(4)}).value().repeated) << "other ids after a crash";
  EXPECT_EQ(outcome(store_->load(1, key(3))), "not_found");
  const auto jobs = claim(10);
  ASSERT_EQ(jobs.size(), 2U);
  ASSERT_EQ(outcome(end(jobs[0].ref, finished())), "ok");
  EXPECT_THAT(list_outbox(), IsEmpty());
  ASSERT_EQ(outcome(end(jobs[1].ref, finished())), "ok");
  EXPECT_EQ(message_status(), "processed");
  EXPECT_THAT(list_outbox(), ElementsAre("answer message:12:101"));
  EXPECT_EQ(read_mark_field("answer"), "due");
  complete_delivery("answer", {MailKind::closed, 0, "", ""});
  EXPECT_EQ(read_mark_field("answer"), "given");
  EXPECT_THAT(list_outbox(), IsEmpty());
}

TEST_P(Pipeline, ForeignFieldsOnARecordDoNotBlockIt) {
  arrive();
  ASSERT_TRUE(store_->save(1, kMessage, {{"status", "processed"}}));
  EXPECT_FALSE(accept({job(1)}).value().repeated);
  run_job(1);
  EXPECT_THAT(list_outbox(), ElementsAre("answer message:12:101"));
}

TEST_P(Pipeline, LogLinesAreSentDuringTheRun) {
  arrive({{"stream", "1"}});
  ASSERT_TRUE(accept({job(1)}));
  EXPECT_THAT(list_outbox(), ElementsAre("logs message:12:101"));
  run_job(1);
  EXPECT_THAT(list_outbox(), UnorderedElementsAre("answer message:12:101", "logs message:12:101"));
  complete_delivery("answer", {MailKind::closed, 0, "", ""});
  EXPECT_THAT(list_outbox(), IsEmpty());
}

TEST_P(Pipeline, FlowAnswersAtItsEnd) {
  arrive();
  run_command({"HSET", "mj:flow:7", "state", "active"});
  ASSERT_TRUE(accept({}, 7));
  EXPECT_EQ(run_command({"HGET", "mj:flow:7", "message"}).text(), kMessage);
  EXPECT_EQ(read_mark_field("flow"), "7");
  EXPECT_EQ(message_status(), "acknowledged");
  EXPECT_THAT(list_outbox(), IsEmpty());
}

TEST_P(Pipeline, FlowEndedBeforeItsAcceptanceAnswersAtOnce) {
  arrive();
  run_command({"HSET", "mj:flow:7", "state", "ended"});
  run_command({"HSET", "flow:7", "status", "error", "error", "node b failed: exit 3"});
  ASSERT_TRUE(accept({}, 7));
  EXPECT_EQ(message_status(), "error");
  EXPECT_EQ(field(kMessage, "error"), "its flow failed: node b failed: exit 3");
  EXPECT_THAT(list_outbox(), ElementsAre("answer message:12:101"));
}

TEST_P(Pipeline, TextMessageStaysInMsgInAndIsAnswered) {
  arrive();
  ASSERT_TRUE(store_->close_message(1, "msg_in", kMessage, ""));
  EXPECT_EQ(message_status(), "processed");
  EXPECT_THAT(list_entries("msg_in"), ElementsAre(kMessage));
  EXPECT_THAT(list_outbox(), ElementsAre("answer message:12:101"));
  ASSERT_TRUE(store_->close_message(1, "msg_in", kMessage, ""));
  EXPECT_THAT(list_entries("msg_in"), ElementsAre(kMessage));
}

TEST_P(Pipeline, MessageToItselfIsInMsgInOnce) {
  save_message();
  ASSERT_EQ(store_->receive_message(1, kMessage, {kContent, {{"own", "1"}}}, {}).value(), Arrival::stored);
  ASSERT_TRUE(store_->close_message(1, "msg_in", kMessage, ""));
  EXPECT_THAT(list_entries("msg_in"), ElementsAre(kMessage));
}

TEST_P(Pipeline, RejectedArrivalIsAnswered) {
  arrive();
  ASSERT_TRUE(store_->close_message(1, "msg_in", kMessage, "no runner has that topic"));
  EXPECT_EQ(message_status(), "error");
  EXPECT_EQ(read_mark_field("state"), "refused");
  EXPECT_THAT(list_outbox(), ElementsAre("answer message:12:101"));
  EXPECT_THAT(list_entries("msg_in"), IsEmpty());
  EXPECT_TRUE(accept({job(1)}).value().repeated);
}

TEST_P(Pipeline, ArrivalWithADeletedRecordIsAnswered) {
  arrive();
  backend_->erase(1, kMessage);
  ASSERT_EQ(outcome(accept({job(1)})), "not_found");
  ASSERT_TRUE(store_->close_message(1, "msg_in", kMessage, "it is gone"));
  EXPECT_THAT(list_outbox(), ElementsAre("answer message:12:101"));
  EXPECT_THAT(list_members("mj:inbox"), IsEmpty());
  EXPECT_EQ(outcome(store_->load(1, kMessage)), "not_found") << "no part of a record remains";
}

TEST_P(Pipeline, JobsAnswerAfterTheirMessageRecordIsDeleted) {
  arrive();
  ASSERT_TRUE(accept({job(1)}));
  backend_->erase(1, kMessage);
  run_job(1);
  EXPECT_THAT(list_outbox(), ElementsAre("answer message:12:101"));
  EXPECT_EQ(read_mark_field("answer"), "due");
}

// ---- answers ----

TEST_P(Pipeline, AnswerEndsTheJobs) {
  route({job(1), job(2)});
  deliver();
  ASSERT_TRUE(answer({make_job_end(1), make_job_end(2)}));
  EXPECT_EQ(status(1), "finished ok");
  EXPECT_EQ(field(key(1), "attempt"), "2");
  EXPECT_EQ(message_status(), "processed");
  EXPECT_THAT(list_entries("msg_in"), ElementsAre(kMessage));
  EXPECT_EQ(read_mark_field("state"), "over");
  EXPECT_TRUE(answer({make_job_end(1, JobStatus::error)})) << "a repeated answer is accepted";
  EXPECT_EQ(status(1), "finished ok");
  EXPECT_THAT(list_entries("msg_in"), ElementsAre(kMessage));
}

TEST_P(Pipeline, AnswerMayOvertakeItsAcknowledgement) {
  route({job(1)});
  ASSERT_TRUE(answer({make_job_end(1)}));
  EXPECT_THAT(list_outbox(), IsEmpty());
  deliver();
  EXPECT_EQ(message_status(), "processed");
}

TEST_P(Pipeline, AnswerMayArriveInParts) {
  route({job(1), job(2)});
  ASSERT_TRUE(answer({make_job_end(1)}, false));
  ASSERT_TRUE(answer({make_job_end(1)}, false)) << "repeated after a lost reply";
  EXPECT_EQ(status(1), "finished ok");
  EXPECT_EQ(status(2), "waiting_for_prerequisites away");
  EXPECT_EQ(message_status(), "dispatched");
  ASSERT_TRUE(answer({make_job_end(2, JobStatus::error)}));
  EXPECT_EQ(status(2), "error exception");
  EXPECT_EQ(field(kMessage, "error"), "1 of its jobs failed");
}

// Other clients can write to the record, so a waiter for a carried job reads the mark.
TEST_P(Pipeline, RouterStateIsOnlyInTheMark) {
  save_message();
  RouteMessage carrying = make_route({});
  carrying.mark.extra_fields.emplace_back("carried", "1");
  ASSERT_TRUE(store_->route_message(1, carrying));
  run_command({"HSET", kMessage, "status", "processed", "answer", "forged"});
  EXPECT_EQ(read_mark_field("state"), "away");
  ASSERT_TRUE(store_->answer_message(1, {kMessage, kContent, "it failed there", {}, {}, true, "[]"}).value());
  EXPECT_EQ(read_mark_field("state"), "over");
  EXPECT_EQ(read_mark_field("carried_answer"), "[]");
  EXPECT_EQ(read_mark_field("why"), "it failed there");
  EXPECT_EQ(field(kMessage, "carried_answer"), "");
}

TEST_P(Pipeline, JobsMissingFromAnAnswerAreLost) {
  route({job(1), job(2)});
  ASSERT_TRUE(answer({make_job_end(1)}));
  EXPECT_EQ(status(2), "error lost");
  EXPECT_EQ(message_status(), "error");
}

TEST_P(Pipeline, AnswerEndsNoForeignJobs) {
  submit(5);
  route({job(1)});
  ASSERT_TRUE(answer({make_job_end(5), make_job_end(1)}));
  EXPECT_EQ(status(5), "dispatched queued");
  EXPECT_EQ(status(1), "finished ok");
}

TEST_P(Pipeline, AnswerToAnUnknownMessageIsIgnored) {
  EXPECT_FALSE(answer({make_job_end(1)}));
  route({job(1)});
  EXPECT_FALSE(store_->answer_message(1, {kMessage, "decaf", "", {}, {make_job_end(1)}, true, ""}).value());
  EXPECT_EQ(status(1), "waiting_for_prerequisites away");
}

TEST_P(Pipeline, AnswerAfterTheTimeoutChangesNothing) {
  route({job(1)});
  deliver();
  run_command({"ZADD", "mj:outbox", "1", "expire message:12:101"});
  complete_delivery("expire", {MailKind::failed, 0, "timeout", "timeout_result"});
  ASSERT_TRUE(answer({make_job_end(1)})) << "the sender need not repeat the answer";
  EXPECT_EQ(status(1), "error timeout");
  EXPECT_EQ(message_status(), "error");
}

TEST_P(Pipeline, AnswerWakesWaitersOfItsJobs) {
  Job after = job(9);
  after.dependends = {1};
  ASSERT_TRUE(store_->submit(after));
  route({job(1)});
  EXPECT_TRUE(claim(10).empty());
  ASSERT_TRUE(answer({make_job_end(1)}));
  run_job(9);
}

TEST_P(Pipeline, LinesArriveInOrderAndOnce) {
  route({job(1)});
  const auto line = [](std::uint64_t seq) { return Log{1000 + seq, seq, LogStream::out, std::to_string(seq)}; };
  const auto append_lines = [&](const std::vector<Log>& lines, const char* content = kContent) {
    return store_->append_remote_log(1, kMessage, content, key(1), lines).value();
  };
  EXPECT_EQ(append_lines({line(1), line(2)}), 2U);
  EXPECT_EQ(append_lines({line(1), line(2), line(4)}), 4U);
  EXPECT_EQ(append_lines({line(3)}), 4U);
  EXPECT_EQ(append_lines({line(5)}, "decaf"), 0U);
  EXPECT_EQ(store_->append_remote_log(1, kMessage, kContent, key(2), {line(1)}).value(), 0U)
      << "the job does not belong to the message";
  ASSERT_TRUE(answer({make_job_end(1)}));
  EXPECT_EQ(append_lines({line(6)}), 0U) << "the job has ended";
  const auto page = store_->logs(1, key(1), 0, 100, 0).value();
  std::string all;
  for (const Log& each : page.lines) all += each.text + ' ';
  EXPECT_EQ(all, "1 2 4 ");
  EXPECT_TRUE(page.ended);
}

TEST_P(Pipeline, LinesKeepTheirSize) {
  route({job(1)});
  const std::vector<Log> lines{
      {1, 1, LogStream::out, "head\n"}, {1, 106, LogStream::out, "tail\n", 5}, {1, 120, LogStream::out, "more\n", 50}};
  EXPECT_EQ(store_->append_remote_log(1, kMessage, kContent, key(1), lines).value(), 120U);
  const auto page = store_->logs(1, key(1), 0, 100, 0).value();
  ASSERT_EQ(page.lines.size(), 4U);
  EXPECT_EQ(page.lines[1].text, "100 bytes of output dropped here\n");
  EXPECT_EQ(page.lines[2].size, 5U);
  EXPECT_EQ(page.lines[3].size, 14U) << "a size is limited to the numbers after the line before";
}

TEST_P(Pipeline, LineBetweenTwoRunsIsMarked) {
  route({job(1)});
  Log next_run{1, 2, LogStream::system, "attempt 2\n"};
  next_run.begins_run = true;
  const std::vector<Log> lines{{1, 1, LogStream::out, "first\n"}, next_run, {1, 3, LogStream::out, "second\n"}};
  EXPECT_EQ(store_->append_remote_log(1, kMessage, kContent, key(1), lines).value(), 3U);
  const auto page = store_->logs(1, key(1), 0, 100, 0).value();
  ASSERT_EQ(page.lines.size(), 3U);
  EXPECT_FALSE(page.lines[0].begins_run);
  EXPECT_TRUE(page.lines[1].begins_run);
  EXPECT_FALSE(page.lines[2].begins_run);
}

// ---- miscellaneous ----

TEST_P(Pipeline, ReservedJobsCannotBeUsedByOthers) {
  ASSERT_TRUE(store_->submit(job(3)));
  EXPECT_EQ(store_->reserve_jobs(1, 12, 2).value(), 1U);
  EXPECT_EQ(store_->reserve_jobs(1, 12, 2).value(), 4U) << "id 3 is in use";
  EXPECT_EQ(store_->submit(job(0)).value().id, 6U);
  run_command({"SET", "mj:next:12", "4294967290"});
  EXPECT_EQ(outcome(store_->reserve_jobs(1, 12, 10)), "too_large");
}

TEST_P(Pipeline, CancelOfARemoteJobIsSent) {
  route({job(1)});
  ASSERT_TRUE(store_->cancel(1, key(1)));
  EXPECT_EQ(status(1), "error cancelled");
  EXPECT_THAT(list_outbox(), UnorderedElementsAre("cancel message:12:101", "send message:12:101"));
  EXPECT_EQ(read_mark_field("left"), "0");
  EXPECT_EQ(read_mark_field("state"), "away");
}

TEST_P(Pipeline, ActiveMessageIsNotDeleted) {
  route({job(1)});
  EXPECT_EQ(outcome(store_->delete_record(1, kMessage)), "conflict");
  ASSERT_TRUE(store_->cancel(1, key(1)));
  EXPECT_EQ(outcome(store_->delete_record(1, kMessage)), "conflict") << "the message has been routed";
  ASSERT_TRUE(answer({}));
  EXPECT_EQ(outcome(store_->delete_record(1, kMessage)), "ok");
  EXPECT_EQ(outcome(store_->load(1, kMessageMark)), "not_found");
  EXPECT_THAT(list_entries("msg_in"), IsEmpty());
}

TEST_P(Pipeline, AnsweredMessageIsDeletedAndNotAcceptedAgain) {
  const std::string fresh = std::to_string(store_->now_ms().value() + 3600000);
  arrive({{"fresh_until", fresh}});
  EXPECT_EQ(outcome(store_->delete_record(1, kMessage)), "conflict");
  ASSERT_TRUE(accept({job(1)}));
  EXPECT_EQ(outcome(store_->delete_record(1, kMessage)), "conflict");
  run_job(1);
  EXPECT_EQ(outcome(store_->delete_record(1, kMessage)), "conflict") << "the sender has not received the answer";
  complete_delivery("answer", {MailKind::closed, 0, "", ""});
  EXPECT_EQ(outcome(store_->delete_record(1, kMessage)), "ok");
  EXPECT_EQ(store_->receive_message(1, kMessage, make_received_state(), make_message_record()).value(),
            Arrival::duplicate);
  EXPECT_EQ(outcome(store_->load(1, kMessage)), "not_found");
}

TEST_P(Pipeline, RetentionKeepsJobsUntilTheirMessageIsAnswered) {
  arrive();
  ASSERT_TRUE(accept({job(1)}));
  run_job(1);
  ASSERT_TRUE(eventually([&] { return store_->now_ms().value() > std::stoull(field(key(1), "ended_ms")) + 1; }));
  EXPECT_EQ(store_->tick(1, retire_all()).value().retired, 0U);
  EXPECT_EQ(outcome(store_->delete_record(1, key(1))), "conflict");
  complete_delivery("answer", {MailKind::closed, 0, "", ""});
  EXPECT_TRUE(eventually([&] { return store_->tick(1, retire_all()).value().retired == 1; }));
}

TEST_P(Pipeline, MessagesAreRemovedAfterEndAndAnswer) {
  arrive();
  const auto retire_messages = [&] { return store_->retire_messages(1, 1, 100).value(); };
  EXPECT_EQ(retire_messages(), 0U);
  ASSERT_TRUE(accept({job(1)}));
  run_job(1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(retire_messages(), 0U) << "the sender has not received the answer";
    ASSERT_TRUE(eventually([&] { return retire_messages() == 0 && store_->now_ms().value() % 5 == 0; }));
  }
  complete_delivery("answer", {MailKind::closed, 0, "", ""});
  EXPECT_TRUE(eventually([&] { return retire_messages() == 1; }));
  EXPECT_EQ(outcome(store_->load(1, kMessage)), "not_found");
  EXPECT_EQ(outcome(store_->load(1, kMessageMark)), "not_found");
  EXPECT_THAT(list_members("mj:messages"), IsEmpty());
  EXPECT_EQ(run_command({"EXISTS", "mj:received"}).number(), 0U);
}

TEST_P(Pipeline, MessageThatMayBeResentIsRemembered) {
  const std::string fresh = std::to_string(store_->now_ms().value() + 3600000);
  arrive({{"fresh_until", fresh}});
  ASSERT_TRUE(store_->close_message(1, "msg_in", kMessage, ""));
  complete_delivery("answer", {MailKind::closed, 0, "", ""});
  ASSERT_TRUE(eventually([&] {
    EXPECT_EQ(store_->retire_messages(1, 1, 100).value(), 0U);
    return run_command({"ZSCORE", "mj:messages", kMessage}).text() == fresh;
  }));
  EXPECT_EQ(outcome(store_->load(1, kMessage)), "not_found") << "only the mark of the message is kept";
  EXPECT_EQ(store_->receive_message(1, kMessage, make_received_state(), make_message_record()).value(),
            Arrival::duplicate);
}

MJ_BOTH_STORES(Pipeline);

// ---- keys overwritten by another client ----

class PipelineHostile : public Pipeline {
 protected:
  void TearDown() override {}

  struct Step {
    const char* name;
    std::function<void()> before;
    std::function<std::string()> take;
  };
  std::vector<Step> steps() {
    const auto prepare_routed = [this] { route({job(1)}); };
    const auto prepare_arrived = [this] { arrive(); };
    const auto prepare_accepted = [this] {
      arrive();
      ASSERT_TRUE(accept({job(1)}));
    };
    const auto prepare_outgoing = [this] {
      save_message();
      ASSERT_TRUE(store_->push_to_msg_out(1, kMessage));
    };
    return {
        {"outgoing", prepare_outgoing, [this] { return outcome(store_->msg_out_keys(1)); }},
        {"route", prepare_outgoing, [this] { return outcome(store_->route_message(1, make_route({job(1)}))); }},
        {"mail_due", prepare_routed, [this] { return outcome(store_->due_messages(1, 10, 1, false)); }},
        {"delivered", prepare_routed,
         [this] {
           return outcome(store_->complete_delivery(1, sent_, {MailKind::delivered, 0, "", ""}));
         }},
        {"failed", prepare_routed,
         [this] {
           return outcome(store_->complete_delivery(1, sent_, {MailKind::failed, 0, "refused", "no"}));
         }},
        {"answer", prepare_routed,
         [this] {
           return outcome(store_->answer_message(1, {kMessage, kContent, "", {}, {make_job_end(1)}, true, ""}));
         }},
        {"follow", prepare_routed,
         [this] {
           return outcome(store_->append_remote_log(1, kMessage, kContent, key(1), {{5, 1, LogStream::out, "x"}}));
         }},
        {"cancel", prepare_routed, [this] { return outcome(store_->cancel(1, key(1))); }},
        {"arrive", [] {},
         [this] {
           return outcome(store_->receive_message(1, kMessage, make_received_state(), make_message_record()));
         }},
        {"take", prepare_arrived, [this] { return outcome(accept({job(1)})); }},
        {"close", prepare_arrived, [this] { return outcome(store_->close_message(1, "msg_in", kMessage, "no")); }},
        {"delete", prepare_arrived, [this] { return outcome(store_->delete_record(1, kMessage)); }},
        {"reserve", [] {}, [this] { return outcome(store_->reserve_jobs(1, 12, 2)); }},
        {"retire", prepare_accepted, [this] { return outcome(store_->retire_messages(1, 1, 10)); }},
    };
  }
  const OutboxEntry sent_{"send message:12:101", "send", kMessage, {}};
};

// With arbitrary data in a key, a step completes or returns an error without any change.
TEST_P(PipelineHostile, FailedStepChangesNothing) {
  const std::vector<std::string> keys{kMessage,
                                      kMessageMark,
                                      "mj:outbox",
                                      "mj:inbox",
                                      "mj:messages",
                                      "mj:received",
                                      "mj:inbox-turns",
                                      "msg_in",
                                      "msg_out",
                                      "msg_out_coordinator",
                                      key(1),
                                      claim_key(1),
                                      "mj:log:job:12:1",
                                      "queue:python",
                                      "mj:next:12",
                                      "mj:topic-missing-records:msg_out",
                                      "mj:ended",
                                      "mj:leases"};
  const std::size_t count = steps().size();
  std::size_t refused = 0;
  for (const std::string& each : keys) {
    for (std::size_t i = 0; i < count; ++i) {
      StoreContract::SetUp();
      const Step step = steps()[i];
      step.before();
      ASSERT_FALSE(HasFatalFailure()) << step.name;
      (void)snapshot();  // each new connection reads mj:leases, so connect before the step
      backend_->erase(1, each);
      if (each == "mj:next:12") {
        backend_->push(1, each, "mine");
      } else {
        backend_->put_text(1, each, "mine");
      }
      const auto before = snapshot();
      const std::string output = step.take();
      if (output == "ok") continue;
      ++refused;
      EXPECT_THAT(output, testing::AnyOf("invalid", "not_found", "conflict")) << step.name << " with " << each;
      EXPECT_EQ(snapshot(), before) << step.name << " with " << each;
    }
  }
  EXPECT_GT(refused, 40U);
}

// The end of a job must not depend on the indexes of messages, which another client can damage.
TEST_P(PipelineHostile, JobEndsDespiteAnInvalidOutbox) {
  arrive();
  ASSERT_TRUE(accept({job(1)}));
  backend_->put_text(1, "mj:outbox", "mine");
  run_job(1);
  EXPECT_EQ(status(1), "finished ok");
  EXPECT_EQ(message_status(), "processed");
  EXPECT_EQ(read_mark_field("answer"), "due");
  EXPECT_THAT(last_anomaly(), HasSubstr("mj:outbox is not a sorted set"));
}

MJ_BOTH_STORES(PipelineHostile);

}  // namespace
}  // namespace mycojobs
