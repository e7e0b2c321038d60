// Messages between two coordinators whose peer is unreachable, slow or not trustworthy; the tests advance the clock.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "artifacts/local_artifact_store.h"
#include "base/sha256.h"
#include "messages/message_stage.h"
#include "messaging/envelope.h"
#include "model/codec.h"
#include "model/enums.h"
#include "net/json_rpc_client.h"
#include "security/signatures.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char *kSent = "message:12:101", *kCame = "message:34:101", *kCameMark = "mj:message:message:34:101";

class MessageDelivery : public testing::Test {
 protected:
  void TearDown() override { EXPECT_THAT(stage_.find_violations(), IsEmpty()) << stage_.outcome(); }
  static Job job(Id id, const std::string& script) { return MessageStage::job(id, script); }
  void send(std::vector<Job> jobs, const std::function<void(Message&)>& change = nullptr) {
    Message outgoing = stage_.message(101, std::move(jobs));
    if (change) change(outgoing);
    stage_.send(outgoing);
  }
  std::string here(const std::string& name, const char* key = kSent) { return stage_.here.field(key, name); }
  std::string there(const std::string& name, const char* key = kCame) { return stage_.there.field(key, name); }
  std::string job_here(Id id) {
    const std::string key = "job:12:" + std::to_string(id);
    return stage_.here.field(key, "status") + ' ' + stage_.here.field(key, "detail");
  }
  // Returns the other side's answer to a forged request.
  Result<json> deliver(const json& envelope) {
    MJ_TRY(answer,
           stage_.carry(MessageStage::kThere, encode_rpc_request("message.deliver", {{"envelope", envelope}}), 0));
    return parse_rpc_answer(answer);
  }
  Message signed_message() {
    Message outgoing = stage_.message(101, {job(1, "ok a")});
    outgoing.job[0].caller_id = 12;
    EXPECT_TRUE(sign(outgoing, stage_.alice));
    return outgoing;
  }
  json sealed(const Message& message, const SigningKey& key) {
    return seal({EnvelopeKind::message, 2, stage_.clock.unix_ms() / 1000, ""}, {{"message", to_json(message)}}, key)
        .value();
  }
  MessageStage stage_;
};

TEST_F(MessageDelivery, SentMessageRunsAndReturns) {
  send({job(1, "ok a"), job(2, "fail b")});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_EQ(job_here(2), "error exit");
  EXPECT_EQ(here("status"), "error");
  EXPECT_EQ(here("error"), "1 of its jobs failed");
  EXPECT_EQ(stage_.here.field("job:12:1", "result"), R"({"script":"ok a"})");
  EXPECT_THAT(stage_.here.list({"LRANGE", "msg_in", "0", "-1"}), ElementsAre(kSent));
  EXPECT_THAT(stage_.here.claims, IsEmpty());
}

// Each side finds the record of the other without a search.
TEST_F(MessageDelivery, CostIsIndependentOfTheNumberOfRunners) {
  const auto calls_of = [&](Id id) {
    const std::uint64_t before = stage_.commands();
    stage_.send(stage_.message(id, {job(id, "ok " + std::to_string(id))}));
    EXPECT_TRUE(stage_.play());
    return stage_.commands() - before;
  };
  (void)calls_of(101);  // the first message searches
  const std::uint64_t few = calls_of(102);
  for (MessageSide* side : {&stage_.here, &stage_.there}) {
    for (int i = 0; i < 300; ++i)
      side->server.run_command(side->context, {"SET", "runner:1" + std::to_string(1000 + i), "x"});
  }
  EXPECT_LE(calls_of(103), few + 10);
}

TEST_F(MessageDelivery, PeerThatIsDownForTenMinutesReceivesItLater) {
  send({job(1, "ok a")});
  stage_.set_disconnected(true);
  for (int minute = 0; minute < 10; ++minute) {
    for (int i = 0; i < 60; ++i) stage_.step(1000);
  }
  EXPECT_EQ(here("status"), "dispatched");
  EXPECT_EQ(here("transport_status"), "queued");
  EXPECT_LT(stage_.requests(), 40U) << "the pauses between attempts grow";
  stage_.set_disconnected(false);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_EQ(here("status"), "processed");
}

// Imitates a sender at its rate limit: the message is refused with the reason, and delivered later, once.
TEST_F(MessageDelivery, FloodingSenderGetsAReasonAndRetriesLater) {
  const std::string now = std::to_string(stage_.clock.unix_ms());
  stage_.there.server.run_command(2, {"ZADD", "mj:inbox", now, "message:34:1"});
  stage_.there.server.run_command(2, {"HSET", "mj:inbox-turns", "34",
                                      std::to_string(static_cast<double>(stage_.clock.unix_ms()) + 10000.0 / 1024)});
  send({job(1, "ok a")});
  stage_.step();
  EXPECT_EQ(here("transport_status"), "queued");
  EXPECT_THAT(here("why", "mj:message:message:12:101"), HasSubstr("messages of actor 34 arrive faster than"));
  EXPECT_EQ(there("state", kCameMark), "");
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_EQ(here("status"), "processed");
}

TEST_F(MessageDelivery, AnswerWaitsForAnUnreachablePeer) {
  send({job(1, "hold a")});
  stage_.steps(8);
  ASSERT_EQ(here("status"), "acknowledged");
  stage_.set_disconnected(true);
  const auto running = stage_.there.running;
  ASSERT_EQ(running.size(), 1U);
  ASSERT_TRUE(stage_.there.store->cancel(2, running[0].ref.job_key));
  for (int i = 0; i < 1200; ++i) stage_.step(1000);
  EXPECT_EQ(there("status"), "error");
  EXPECT_EQ(there("answer", kCameMark), "due");
  stage_.set_disconnected(false);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "error cancelled");
  EXPECT_EQ(there("answer", kCameMark), "given");
}

// Regression test: a coordinator whose settings do not allow the address was leader for a moment, and the sender's job
// never ended.
TEST_F(MessageDelivery, AnswerSurvivesDisallowingSettings) {
  send({job(1, "hold a")});
  stage_.steps(8);
  ASSERT_EQ(stage_.there.running.size(), 1U);
  ASSERT_TRUE(stage_.there.store->cancel(2, stage_.there.running[0].ref.job_key));
  for (const Code code : {Code::unsupported, Code::denied, Code::too_large, Code::io}) {
    stage_.refuse_requests(Error{code, "address: is not reached with these settings"});
    stage_.steps(200);
    EXPECT_EQ(there("answer", kCameMark), "due") << to_string(code);
    EXPECT_THAT(there("why", kCameMark), HasSubstr("with these settings"));
  }
  stage_.refuse_requests(std::nullopt);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "error cancelled");
  EXPECT_EQ(there("answer", kCameMark), "given");
}

TEST_F(MessageDelivery, AnswerIsDroppedAfterItsTime) {
  send({job(1, "hold a")});
  stage_.steps(8);
  ASSERT_EQ(stage_.there.running.size(), 1U);
  ASSERT_TRUE(stage_.there.store->cancel(2, stage_.there.running[0].ref.job_key));
  stage_.refuse_requests(Error{Code::unsupported, "there is no node"});
  stage_.steps(20);
  stage_.clock.advance(8ULL * 24 * 3600 * 1000);
  stage_.steps(20);
  EXPECT_EQ(there("answer", kCameMark), "lost");
  stage_.refuse_requests(std::nullopt);
  stage_.there.server.run_command(2, {"DEL", "mj:anomalies"});
  ASSERT_TRUE(stage_.here.store->cancel_message(1, kSent));
  stage_.steps(40);
}

TEST_F(MessageDelivery, MessageSurvivesDisallowingSettings) {
  stage_.refuse_requests(Error{Code::unsupported, "no node is configured: set mycelium.url to its API"});
  send({job(1, "ok a")});
  stage_.steps(100);
  EXPECT_EQ(here("transport_status"), "queued");
  EXPECT_THAT(here("why", "mj:message:message:12:101"), HasSubstr("mycelium.url"));
  stage_.refuse_requests(Error{Code::denied, "coordinator.networks does not allow it"});
  stage_.steps(100);
  EXPECT_EQ(job_here(1), "waiting_for_prerequisites away");
  stage_.refuse_requests(std::nullopt);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
}

TEST_F(MessageDelivery, UnknownAddressKindEndsAMessageAtOnce) {
  stage_.refuse_requests(Error{Code::invalid, "address: is none of a supervisor"});
  send({job(1, "ok a")});
  stage_.steps(4);
  EXPECT_THAT(here("error"), HasSubstr("none of a supervisor"));
  EXPECT_EQ(job_here(1), "error refused");
  stage_.refuse_requests(std::nullopt);
  ASSERT_TRUE(stage_.play());
}

// The record that identifies this side at the other side is changed and then repaired.
TEST_F(MessageDelivery, CancelSurvivesADisallowingRecord) {
  send({job(1, "hold a")});
  stage_.steps(8);
  ASSERT_EQ(stage_.there.running.size(), 1U);
  const std::string key = stage_.here.key->public_key();
  ASSERT_TRUE(stage_.there.store->save(2, "runner:7", {{"pubkey", SigningKey::make().public_key()}}));
  ASSERT_TRUE(stage_.here.store->cancel(1, "job:12:1"));
  stage_.steps(100);
  ASSERT_EQ(stage_.there.running.size(), 1U);
  ASSERT_TRUE(stage_.there.store->save(2, "runner:7", {{"pubkey", key}}));
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "error cancelled");
  EXPECT_THAT(stage_.there.running, IsEmpty());
}

TEST_F(MessageDelivery, UndeliveredMessageTimesOut) {
  send({job(1, "ok a")}, [](Message& outgoing) { outgoing.timeout = 60; });
  stage_.set_disconnected(true);
  for (int i = 0; i < 100; ++i) stage_.step(1000);
  EXPECT_THAT(here("error"), HasSubstr("timeout: it was not delivered in time"));
  EXPECT_EQ(job_here(1), "error timeout");
  stage_.set_disconnected(false);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "error timeout");
  EXPECT_THAT(stage_.there.claims, IsEmpty()) << "the message was not delivered";
}

TEST_F(MessageDelivery, UnacknowledgedMessageIsCancelledRemotely) {
  // The message arrives, but every acknowledgement is lost.
  std::vector<MessageDisturbance> lost;
  for (std::uint64_t i = 1; i < 40; ++i) lost.push_back({i, MessageFate::answer_lost});
  stage_.disturb_requests(lost);
  send({job(1, "hold a")}, [](Message& outgoing) {
    outgoing.timeout = 300;
    outgoing.timeout_ack = 20;
  });
  for (int i = 0; i < 40; ++i) stage_.step(1000);
  EXPECT_THAT(here("error"), HasSubstr("timeout_ack: it was not acknowledged in time"));
  stage_.disturb_requests({});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "error timeout");
  EXPECT_EQ(there("status"), "error");
  EXPECT_THAT(stage_.there.running, IsEmpty()) << "the job was cancelled";
}

TEST_F(MessageDelivery, LateAnswerAfterAMissingResultChangesNothing) {
  send({job(1, "hold a"), job(2, "ok b")}, [](Message& outgoing) { outgoing.timeout_result = 30; });
  stage_.steps(8);
  ASSERT_EQ(here("status"), "acknowledged");
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(here("error"), HasSubstr("timeout_result: no answer was received in time"));
  EXPECT_EQ(job_here(1), "error timeout");
  EXPECT_EQ(job_here(2), "error timeout");
  EXPECT_EQ(there("answer", kCameMark), "given") << "the late answer is accepted as a duplicate";
  EXPECT_THAT(stage_.here.list({"LRANGE", "msg_in", "0", "-1"}), ElementsAre(kSent));
}

TEST_F(MessageDelivery, LinesArriveDuringTheRun) {
  send({job(1, "hold a")}, [](Message& outgoing) { outgoing.stream_logs = true; });
  stage_.steps(20);
  const auto page = stage_.here.store->logs(1, "job:12:1", 0, 100, 0).value();
  ASSERT_EQ(page.lines.size(), 1U);
  EXPECT_EQ(page.lines[0].text, "hold a one\n");
  EXPECT_FALSE(page.ended);
  ASSERT_TRUE(stage_.here.store->cancel(1, "job:12:1"));
  ASSERT_TRUE(stage_.play());
}

TEST_F(MessageDelivery, ManyLinesArriveInOrderAndOnce) {
  send({job(1, "hold a")}, [](Message& outgoing) { outgoing.stream_logs = true; });
  stage_.steps(8);
  ASSERT_EQ(stage_.there.running.size(), 1U);
  std::vector<Log> lines;
  for (std::uint64_t seq = 2; seq < 1500; ++seq) lines.push_back({seq, seq, LogStream::out, std::to_string(seq)});
  const std::vector<Report> reports{LogAppend{stage_.there.running[0].ref, lines}};
  ASSERT_TRUE(stage_.there.store->report(2, reports).value().at(0));
  std::vector<MessageDisturbance> disturbed;
  for (std::uint64_t i = stage_.requests() + 1; i < stage_.requests() + 10; ++i)
    disturbed.push_back({i, i % 2 == 0 ? MessageFate::answer_lost : MessageFate::late});
  stage_.disturb_requests(disturbed);
  stage_.steps(400);
  const auto page = stage_.here.store->logs(1, "job:12:1", 0, 5000, 0).value();
  ASSERT_EQ(page.lines.size(), 1499U);
  for (std::size_t i = 0; i < page.lines.size(); ++i) ASSERT_EQ(page.lines[i].seq, i + 1);
  ASSERT_TRUE(stage_.here.store->cancel(1, "job:12:1"));
  ASSERT_TRUE(stage_.play());
}

TEST_F(MessageDelivery, TailIsSentAfterTheEndOfTheJob) {
  send({job(1, "hold a")}, [](Message& outgoing) { outgoing.stream_logs = true; });
  stage_.steps(8);
  ASSERT_EQ(stage_.there.running.size(), 1U);
  const ClaimRef ref = stage_.there.running[0].ref;
  const auto report = [&](const Report& each) {
    ASSERT_TRUE(stage_.there.store->report(2, std::vector<Report>{each}).value().at(0));
  };
  report(LogAppend{ref, {{1, 2, LogStream::out, "head\n"}, {1, 7, LogStream::out, "old1\n", 5}}});
  stage_.steps(100);
  ASSERT_EQ(stage_.here.store->logs(1, "job:12:1", 0, 100, 0).value().lines.size(), 2U);
  report(LogAppend{ref, {{1, 12, LogStream::out, "last\n", 5}}, 7, 7, 600});
  JobEnd end;
  end.status = JobStatus::finished;
  end.detail = "ok";
  report(EndReport{ref, end});
  stage_.there.running.clear();
  ASSERT_TRUE(stage_.play());
  const auto page = stage_.here.store->logs(1, "job:12:1", 1, 100, 0).value();
  std::string text;
  for (const Log& line : page.lines) text += line.text;
  EXPECT_EQ(text, "head\n5 bytes of output dropped here\nlast\n");
}

// Another client's key blocks the job's log at the sender; the end is still reported.
TEST_F(MessageDelivery, EndIsSentThoughItsLinesAreRejected) {
  stage_.here.server.run_command(1, {"SET", "mj:log:job:12:1", "mine"});
  send({job(1, "ok a")}, [](Message& outgoing) { outgoing.stream_logs = true; });
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_THAT(stage_.find_violations(), testing::Contains(HasSubstr("anomaly: mj:log:job:12:1 is a string")));
  stage_.here.server.run_command(1, {"DEL", "mj:log:job:12:1", "mj:anomalies"});
  stage_.here.server.run_command(1, {"XADD", "mj:log:job:12:1", "1-0", "end", "finished"});
}

TEST_F(MessageDelivery, JobCancelledBeforeSendingIsCancelledRemotely) {
  stage_.set_disconnected(true);
  send({job(1, "hold a"), job(2, "ok b")});
  stage_.steps(4);
  ASSERT_TRUE(stage_.here.store->cancel(1, "job:12:1"));
  stage_.steps(20);
  EXPECT_EQ(job_here(2), "waiting_for_prerequisites away");
  stage_.set_disconnected(false);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "error cancelled");
  EXPECT_EQ(job_here(2), "finished ok");
  EXPECT_THAT(stage_.there.running, IsEmpty());
}

// ---- cancelling a whole message ----

TEST_F(MessageDelivery, MessageCancelledBeforeSendingDoesNotRun) {
  stage_.set_disconnected(true);
  send({job(1, "hold a"), job(2, "ok b")});
  stage_.steps(4);
  ASSERT_TRUE(stage_.here.store->cancel_message(1, kSent));
  for (int i = 0; i < 40; ++i) stage_.step(1000);
  EXPECT_EQ(here("error"), "cancelled before it was delivered") << "the cancellation does not wait for the time-out";
  EXPECT_EQ(job_here(1), "error cancelled");
  EXPECT_EQ(job_here(2), "error cancelled");
  EXPECT_EQ(stage_.here.field("job:12:1", "error"), "cancelled while it was in another context");
  stage_.set_disconnected(false);
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(stage_.there.claims, IsEmpty());
}

// The arrival of the message was never acknowledged here.
TEST_F(MessageDelivery, CancelReachesASeeminglyUndeliveredMessage) {
  std::vector<MessageDisturbance> lost;
  for (std::uint64_t i = 1; i < 6; ++i) lost.push_back({i, MessageFate::answer_lost});
  stage_.disturb_requests(lost);
  send({job(1, "hold a")});
  stage_.steps(4);
  ASSERT_EQ(stage_.there.running.size(), 1U);
  ASSERT_TRUE(stage_.here.store->cancel_message(1, kSent));
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "error cancelled");
  EXPECT_EQ(here("error").substr(0, 9), "cancelled") << "the cancelled message ends as cancelled";
  EXPECT_THAT(stage_.there.running, IsEmpty());
  EXPECT_EQ(there("status"), "error");
}

TEST_F(MessageDelivery, RecipientMayCancelAMessage) {
  send({job(1, "hold a"), job(2, "hold b")});
  stage_.steps(8);
  ASSERT_EQ(stage_.there.running.size(), 2U);
  ASSERT_TRUE(stage_.there.store->cancel_message(2, kCame));
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(there("error"), "cancelled: 2 of its jobs failed");
  EXPECT_EQ(here("error"), "cancelled: 2 of its jobs failed") << "the error of the answer";
  EXPECT_EQ(job_here(1), "error cancelled");
  EXPECT_EQ(job_here(2), "error cancelled");
}

TEST_F(MessageDelivery, RemoteCancelIsReportedAsCancelled) {
  send({job(1, "hold a"), job(2, "hold b")});
  stage_.steps(8);
  ASSERT_EQ(stage_.there.running.size(), 2U);
  ASSERT_TRUE(stage_.here.store->cancel_message(1, kSent));
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(here("error"), "cancelled: 2 of its jobs failed");
  EXPECT_EQ(job_here(1), "error cancelled");
  EXPECT_EQ(job_here(2), "error cancelled");
}

TEST_F(MessageDelivery, UnacceptedMessageEndsAtOnce) {
  send({job(1, "ok a")});
  EXPECT_EQ(stage_.here.store->cancel_message(1, "message:12:102").error().code, Code::not_found);
  ASSERT_TRUE(stage_.here.store->cancel_message(1, kSent));
  EXPECT_EQ(here("status"), "error");
  EXPECT_EQ(here("error"), "cancelled before it was taken");
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.here.field("job:12:1", "id"), "") << "the job was not created";
  EXPECT_THAT(stage_.there.claims, IsEmpty());
  EXPECT_THAT(stage_.here.list({"LRANGE", "msg_out", "0", "-1"}), IsEmpty());
  ASSERT_TRUE(stage_.here.store->cancel_message(1, kSent)) << "the ended message is unchanged";
  EXPECT_EQ(here("error"), "cancelled before it was taken");
}

TEST_F(MessageDelivery, ProcessedMessageStaysProcessedWhenCancelled) {
  send({job(1, "ok a")});
  ASSERT_TRUE(stage_.play());
  ASSERT_TRUE(stage_.here.store->cancel_message(1, kSent));
  ASSERT_TRUE(stage_.there.store->cancel_message(2, kCame));
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(here("status"), "processed");
  EXPECT_EQ(there("status"), "processed");
}

TEST_F(MessageDelivery, FlowCancelledWithItsMessageEndsRemotely) {
  send({job(1, "hold a")}, [](Message& outgoing) {
    FlowNode node;
    node.id = 1;
    node.name = "one";
    outgoing.flow.emplace();
    outgoing.flow->name = "whole";
    outgoing.flow->nodes = {node};
    outgoing.flow->jobs = {1};
  });
  for (int i = 0; i < 40 && stage_.there.running.empty(); ++i) stage_.step();
  ASSERT_EQ(stage_.there.running.size(), 1U);
  ASSERT_TRUE(stage_.here.store->cancel_message(1, kSent));
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(here("status"), "error");
  EXPECT_EQ(here("error").substr(0, 22), "cancelled: its flow fa");
  EXPECT_THAT(stage_.there.running, IsEmpty());
}

// ---- invalid messages ----

// A message that is repeated on msg_out, or whose record another client has overwritten, does not block other messages.
TEST_F(MessageDelivery, InvalidMessagesDelayNoOther) {
  MemoryServer& server = stage_.here.server;
  server.run_command(1, {"SET", "message:12:7", "a text"});
  server.run_command(1, {"LPUSH", "msg_out", "message:12:7", "nonsense", "message:12:8"});
  send({job(1, "ok a")});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  for (int i = 0; i < 2; ++i) {
    server.run_command(1, {"LPUSH", "msg_out", kSent});
    ASSERT_TRUE(stage_.play());
  }
  EXPECT_EQ(here("status"), "processed");
  const auto anomalies = stage_.here.store->anomalies(1, 10).value();
  EXPECT_EQ(anomalies.size(), 2U);
  server.run_command(1, {"DEL", "mj:anomalies"});
}

TEST_F(MessageDelivery, OverwrittenRemoteRecordIsAnswered) {
  send({job(1, "ok a")});
  stage_.there.server.set_faults(
      [](const ServerCall& call) { return call.name == "take_message" ? Fault::before : Fault::none; });
  stage_.step();
  ASSERT_EQ(there("state", kCameMark), "arrived");
  stage_.there.server.run_command(2, {"DEL", kCame});
  stage_.there.server.run_command(2, {"SET", kCame, "mine"});
  stage_.there.server.set_faults(nullptr);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(here("status"), "error");
  EXPECT_EQ(job_here(1), "error lost");
  stage_.there.server.run_command(2, {"DEL", kCame, "mj:anomalies"});
}

// ---- signers that the receiver accepts ----

TEST_F(MessageDelivery, NamingTheRecipientsKeyIsNoProof) {
  const SigningKey stranger = SigningKey::make();
  json envelope = sealed(signed_message(), stranger);
  envelope["signer"] = stage_.there.key->public_key();
  const auto answer = deliver(envelope);
  ASSERT_FALSE(answer) << "otherwise the answer would remain there";
  EXPECT_EQ(answer.error().code, Code::denied);
  EXPECT_EQ(there("state", kCameMark), "");
}

TEST_F(MessageDelivery, SignatureCountsForAnyCarrier) {
  const auto answer = deliver(sealed(signed_message(), SigningKey::make()));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ((*answer)["status"], "stored");
  EXPECT_EQ((*deliver(sealed(signed_message(), SigningKey::make())))["status"], "known");
  stage_.steps(20);
  EXPECT_EQ(stage_.there.claims["ok a"], 1);
  EXPECT_EQ(there("answer", kCameMark), "lost") << "no message of this host has this answer";
  stage_.there.server.run_command(2, {"DEL", "mj:anomalies"});
}

TEST_F(MessageDelivery, MessageChangedInTransitIsRejected) {
  const auto refused = [&](const std::function<void(Message&)>& change) {
    Message outgoing = signed_message();
    change(outgoing);
    const auto answer = deliver(sealed(outgoing, *stage_.here.key));
    return answer ? "" : answer.error().message;
  };
  EXPECT_THAT(refused([](Message& m) { m.job[0].script = "ok b"; }), HasSubstr("signature"));
  EXPECT_THAT(refused([](Message& m) { m.target_context = 3; }), HasSubstr("target_context"));
  EXPECT_THAT(refused([](Message& m) { m.signature.clear(); }), HasSubstr("signature: is missing"));
  EXPECT_THAT(refused([](Message& m) { m.created_at -= 1000; }), HasSubstr("signature"));
  EXPECT_THAT(refused([](Message& m) { m.context_id = 0; }), HasSubstr("context_id"));
  EXPECT_THAT(refused([](Message& m) { m.id = 0; }), HasSubstr("id"));
}

TEST_F(MessageDelivery, KeyOfTwoActorsBelongsToNoActor) {
  stage_.there.server.run_command(0, {"HSET", "actor:2", "id", "2", "pubkey", stage_.alice.public_key()});
  const auto answer = deliver(sealed(signed_message(), *stage_.here.key));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, Code::denied);
  EXPECT_THAT(answer.error().message, HasSubstr("more than one actor"));
  EXPECT_EQ(there("state", kCameMark), "");
}

TEST_F(MessageDelivery, UnknownKeyIsLookedUpOnceASecond) {
  const SigningKey carol = SigningKey::make();
  Message outgoing = stage_.message(102, {job(1, "ok a")});
  ASSERT_TRUE(sign(outgoing, carol));
  const auto asked = [&] {
    const auto answer = deliver(sealed(outgoing, *stage_.here.key));
    return answer ? "" : std::string(to_string(answer.error().code));
  };
  EXPECT_EQ(asked(), "denied") << "all records are scanned";
  EXPECT_EQ(asked(), "unavailable") << "a second scan must wait";
  stage_.there.server.run_command(0, {"HSET", "actor:34", "pubkey", carol.public_key()});
  EXPECT_EQ(asked(), "unavailable");
  stage_.clock.advance(1100);
  EXPECT_EQ(asked(), "");
  stage_.there.server.run_command(2, {"FLUSHDB"});
}

// Regression test: a store error at the receiver ended the message permanently.
TEST_F(MessageDelivery, UnreadableStoreGivesNoAnswer) {
  constexpr const char* kMark = "mj:received";
  const json body{{"of", to_json(MessageRef{12, 500, std::string(64, 'a')})},
                  {"by", stage_.alice.public_key()},
                  {"jobs", json::array({"job:12:1"})}};
  const auto cancel = [&] {
    const auto answer =
        deliver(seal({EnvelopeKind::cancel, 2, stage_.clock.unix_ms() / 1000, ""}, body, *stage_.here.key).value());
    return answer ? "" : std::string(to_string(answer.error().code));
  };
  EXPECT_EQ(cancel(), "not_found");
  stage_.there.server.run_command(2, {"SET", kMark, "no hash"});
  EXPECT_EQ(cancel(), "unavailable");
  stage_.there.server.run_command(2, {"DEL", kMark});
}

TEST_F(MessageDelivery, CancelNamesOnlyJobsOfItsMessage) {
  send({job(1, "hold a")});
  stage_.steps(8);
  json body{{"of", to_json(MessageRef{12, 101, here("content", "mj:message:message:12:101")})},
            {"by", stage_.alice.public_key()},
            {"jobs", json(std::vector<std::string>(257, "job:12:1"))}};
  const auto cancel = [&] {
    return deliver(seal({EnvelopeKind::cancel, 2, stage_.clock.unix_ms() / 1000, ""}, body, *stage_.here.key).value());
  };
  EXPECT_EQ(cancel().error().code, Code::invalid);
  const auto calls = [&] { return stage_.calls(); };
  body["jobs"] = json(std::vector<std::string>(256, "job:12:1"));
  const std::uint64_t before = calls();
  ASSERT_TRUE(cancel());
  EXPECT_LE(calls() - before, 3U) << "a job that is named several times is cancelled once";
  ASSERT_TRUE(stage_.play());
}

// ---- the addressee of a signature ----

TEST_F(MessageDelivery, SignatureForOneHostRunsOnNoOther) {
  const auto refused = [&](const SigningKey& by, const std::function<void(Message&)>& change) {
    Message outgoing = signed_message();
    change(outgoing);
    EXPECT_TRUE(sign(outgoing, stage_.alice));
    const auto answer = deliver(sealed(outgoing, by));
    return answer ? "" : answer.error().message;
  };
  const std::string elsewhere = SigningKey::make().public_key();
  EXPECT_THAT(refused(*stage_.here.key, [&](Message& m) { m.target_key = elsewhere; }), HasSubstr("target_key: "));
  EXPECT_THAT(refused(*stage_.here.key, [](Message& m) { m.target_key.clear(); }), HasSubstr("target_key: "));
  EXPECT_THAT(refused(*stage_.here.key, [](Message& m) { m.target_address.clear(); }), HasSubstr("target_address: "));
  // The receiver's own supervisor sealed the envelope, which is sent back to it.
  EXPECT_THAT(refused(*stage_.there.key, [&](Message& m) { m.target_key = elsewhere; }), HasSubstr("target_key: "));
  EXPECT_EQ(there("state", kCameMark), "");
}

TEST_F(MessageDelivery, MessageWithoutItsTargetCoordinatorIsNotSent) {
  send({job(1, "ok a")}, [](Message& outgoing) { outgoing.target_key.clear(); });
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(here("error"), HasSubstr("target_key: is absent"));
  EXPECT_THAT(here("error"), HasSubstr("mycojobs message sign 12:101"));
  EXPECT_THAT(stage_.there.claims, IsEmpty());
}

TEST_F(MessageDelivery, MessageForAnotherHostIsNotAcceptedFromMsgIn) {
  Message outgoing = stage_.message(101, {job(1, "ok a")});
  outgoing.target_context = 1;
  ASSERT_TRUE(sign(outgoing, stage_.alice));
  ASSERT_TRUE(stage_.here.store->save(1, kSent, encode(outgoing)));
  stage_.here.server.run_command(1, {"LPUSH", "msg_in", kSent});
  stage_.steps(4);
  EXPECT_THAT(here("error"), HasSubstr("target_address: it is signed for the coordinator at"));
  EXPECT_THAT(stage_.here.claims, IsEmpty());
}

// ---- received messages ----

TEST_F(MessageDelivery, ReceivedMessageIsKnownAfterItsKeyIsGone) {
  const json envelope = sealed(signed_message(), *stage_.here.key);
  ASSERT_TRUE(deliver(envelope));
  ASSERT_TRUE(stage_.there.store->save(2, "context:2", {{"submitters", "[]"}}));
  stage_.there.server.run_command(0, {"HSET", "actor:34", "pubkey", SigningKey::make().public_key()});
  stage_.clock.advance(3600 * 1000);
  const auto again = deliver(envelope);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ((*again)["status"], "known");
  Message forged = signed_message();
  forged.signature[7] = forged.signature[7] == 'a' ? 'b' : 'a';
  EXPECT_FALSE(deliver(sealed(forged, *stage_.here.key))) << "no other peer is informed";
  stage_.steps(20);
  stage_.there.server.run_command(2, {"DEL", "mj:anomalies"});
}

TEST_F(MessageDelivery, RejectedRetryDoesNotDisproveArrival) {
  stage_.disturb_requests({{1, MessageFate::answer_lost}});
  send({job(1, "ok a")});
  stage_.steps(1);
  ASSERT_EQ(there("state", kCameMark), "taken");
  ASSERT_TRUE(stage_.there.store->save(2, "context:2", {{"submitters", "[]"}}));
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
}

TEST_F(MessageDelivery, RejectedMessageIsCancelledRemotely) {
  ASSERT_TRUE(stage_.there.store->save(2, "context:2", {{"submitters", "[]"}}));
  send({job(1, "ok a")});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "error refused");
  EXPECT_EQ(stage_.requests(), 2U) << "the message and its cancellation";
}

TEST_F(MessageDelivery, CancelFindsItsMessageAfterAKeyChange) {
  send({job(1, "hold a")});
  stage_.steps(8);
  ASSERT_EQ(stage_.there.running.size(), 1U);
  stage_.there.server.run_command(0, {"HSET", "actor:34", "pubkey", SigningKey::make().public_key()});
  ASSERT_TRUE(stage_.here.store->cancel(1, "job:12:1"));
  ASSERT_TRUE(stage_.play(200)) << "the job continues on the other host";
  EXPECT_EQ(job_here(1), "error cancelled");
}

TEST_F(MessageDelivery, MessagesOfTwoContextsMayHaveTheSameId) {
  const auto of = [&](Id context, const std::string& script) {
    Message outgoing = stage_.message(101, {job(1, script)});
    outgoing.context_id = context;
    EXPECT_TRUE(sign(outgoing, stage_.alice));
    return sealed(outgoing, *stage_.here.key);
  };
  const json first = of(1, "ok a"), second = of(3, "ok b");
  for (const json* each : {&first, &second}) {
    const auto answer = deliver(*each);
    ASSERT_TRUE(answer) << answer.error().message;
    EXPECT_EQ((*answer)["status"], "stored");
  }
  for (const json* each : {&second, &first}) EXPECT_EQ((*deliver(*each))["status"], "known");
  const auto other = deliver(of(1, "ok c"));
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("with other content"));
  stage_.steps(20);
  EXPECT_EQ(stage_.there.claims["ok a"], 1);
  EXPECT_EQ(stage_.there.claims["ok b"], 1);
  EXPECT_EQ(stage_.there.claims.size(), 2U);
  stage_.there.server.run_command(2, {"DEL", "mj:anomalies"});
}

// ---- records changed by other clients ----

class MessageRecordChanged : public MessageDelivery {
 protected:
  void change(const std::string& field, const std::string& value) {
    send({job(1, "ok a")});
    stage_.there.server.set_faults(
        [](const ServerCall& call) { return call.name == "take_message" ? Fault::before : Fault::none; });
    stage_.step();
    ASSERT_EQ(there("state", kCameMark), "arrived");
    stage_.there.server.run_command(2, {"HSET", kCame, field, value});
    stage_.there.server.set_faults(nullptr);
    ASSERT_TRUE(stage_.play());
    EXPECT_EQ(here("status"), "error");
    EXPECT_THAT(here("error"), HasSubstr("another client has changed its record since it was received"));
    EXPECT_THAT(stage_.there.claims, IsEmpty());
  }
};

TEST_F(MessageRecordChanged, ForAnotherJob) {
  change("job", R"([{"id":1,"caller_id":12,"context_id":1,"script":"ok evil","script_type":"python"}])");
}
TEST_F(MessageRecordChanged, ForAnotherCaller) { change("caller_id", "12"); }
TEST_F(MessageRecordChanged, ForAnotherRunner) { change("topic", "runner1"); }

// ---- answers that must not get lost ----

class MessageLines : public MessageDelivery {
 protected:
  // Writes the lines and ends the job while the delivery of log lines is not scheduled.
  void write(std::size_t count, std::size_t bytes) {
    send({job(1, "hold a")}, [](Message& outgoing) { outgoing.stream_logs = true; });
    stage_.steps(8);
    const auto next = [&] {
      return std::stoull(stage_.there.text({"ZSCORE", "mj:outbox", std::string("logs ") + kCame}));
    };
    for (int i = 0; i < 10 && next() <= stage_.clock.unix_ms(); ++i) stage_.step();
    ASSERT_GT(next(), stage_.clock.unix_ms());
    ASSERT_EQ(stage_.there.running.size(), 1U);
    std::vector<Log> lines;
    for (std::size_t i = 0; i < count; ++i) lines.push_back({2 + i, 2 + i, LogStream::out, std::string(bytes, '\x01')});
    JobEnd end;
    end.status = JobStatus::finished;
    end.detail = "ok";
    const ClaimRef ref = stage_.there.running[0].ref;
    const std::vector<Report> reports{LogAppend{ref, lines}, EndReport{ref, end}};
    const auto reported = stage_.there.store->report(2, reports).value();
    for (const auto& each : reported) ASSERT_TRUE(each) << each.error().message;
    stage_.there.running.clear();
    ASSERT_TRUE(stage_.play());
    EXPECT_EQ(there("answer", kCameMark), "given");
    EXPECT_EQ(job_here(1), "finished ok");
  }
};

TEST_F(MessageLines, ControlBytesAreSentInSmallerParts) {
  write(5, 50000);
  EXPECT_GE(stage_.here.store->logs(1, "job:12:1", 0, 100, 0).value().lines.size(), 6U);
}
TEST_F(MessageLines, TooLargeLinesAreOmittedAndTheAnswerIsSent) { write(1, 300000); }

TEST_F(MessageDelivery, TooLongReasonIsShortenedAndAnswered) {
  send({job(1, "hold a")});
  stage_.steps(8);
  stage_.set_disconnected(true);
  ASSERT_EQ(stage_.there.running.size(), 1U);
  ASSERT_TRUE(stage_.there.store->cancel(2, stage_.there.running[0].ref.job_key));
  stage_.steps(4);
  ASSERT_EQ(there("answer", kCameMark), "due");
  stage_.there.server.run_command(2, {"HSET", kCame, "error", std::string(2U << 20, 'x')});
  stage_.set_disconnected(false);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(there("answer", kCameMark), "given");
  EXPECT_LE(here("error").size(), 4096U);
  EXPECT_EQ(job_here(1), "error cancelled");
}

TEST_F(MessageDelivery, LateAnswerIsRetriedAsLongAsAnyOther) {
  constexpr std::uint64_t kDay = 24ULL * 3600 * 1000;
  send({job(1, "hold a")});
  stage_.steps(8);
  ASSERT_EQ(stage_.there.running.size(), 1U);
  stage_.clock.advance(8 * kDay);
  stage_.set_disconnected(true);
  ASSERT_TRUE(stage_.there.store->cancel(2, stage_.there.running[0].ref.job_key));
  for (int i = 0; i < 60; ++i) stage_.step(1000);
  EXPECT_EQ(there("answer", kCameMark), "due");
  stage_.set_disconnected(false);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "error cancelled");
}

TEST_F(MessageDelivery, DeliveryTimeoutIsAtMostAWeek) {
  send({job(1, "ok a")}, [](Message& outgoing) { outgoing.timeout = 8 * 24 * 3600; });
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(here("error"), HasSubstr("timeout: 691200 s is more than the limit for a message, 604800"));
  Message outgoing = signed_message();
  outgoing.timeout = 8 * 24 * 3600;
  ASSERT_TRUE(sign(outgoing, stage_.alice));
  const auto answer = deliver(sealed(outgoing, *stage_.here.key));
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().message, HasSubstr("timeout: "));
}

// Without capacity, no due entry becomes a request, and the rounds do not run in a busy loop.
TEST_F(MessageDelivery, FullQuotaCarriesNothingWithoutSpinning) {
  stage_.set_disconnected(true);
  send({job(1, "ok a")});
  stage_.step();
  stage_.clock.advance(60000);
  MessageLoop rounds(*stage_.here.store, *stage_.here.flows, stage_.clock, {1, stage_.here.key, true, 0});
  std::vector<std::string> asked;
  const auto round = rounds.run_round(1, [&](const OutboxEntry& entry) {
    asked.push_back(entry.entry);
    return 5000;
  });
  ASSERT_TRUE(round);
  EXPECT_THAT(round->requests, IsEmpty());
  EXPECT_THAT(asked, ElementsAre("send message:12:101"));
  // The first round may follow a change of the clock.
  stage_.clock.advance(6000);
  EXPECT_GT(rounds.run_round(1, [](const OutboxEntry&) { return 5000; }).value().next_ms, 0U);
  stage_.set_disconnected(false);
  ASSERT_TRUE(stage_.play());
}

TEST_F(MessageDelivery, AnswerIsAcceptedOnlyFromItsPeer) {
  send({job(1, "hold a")});
  stage_.steps(8);
  const MessageRef name{12, 101, here("content", "mj:message:message:12:101")};
  const json body{{"of", to_json(name)},
                  {"status", "processed"},
                  {"jobs", json::array({{{"key", "job:12:1"}, {"status", "finished"}}})},
                  {"last", true}};
  const auto answered = [&](const SigningKey& key, const json& output) -> std::string {
    const json envelope = seal({EnvelopeKind::answer, 1, stage_.clock.unix_ms() / 1000, ""}, output, key).value();
    const auto answer =
        stage_.carry(MessageStage::kHere, encode_rpc_request("message.deliver", {{"envelope", envelope}}), 0);
    const auto read = parse_rpc_answer(answer.value());
    return read ? "" : read.error().message;
  };
  EXPECT_THAT(answered(SigningKey::make(), body), HasSubstr("is not the coordinator to which"));
  EXPECT_EQ(job_here(1), "waiting_for_prerequisites away");
  json odd = body;
  odd["jobs"][0]["key"] = "job:12:2";
  EXPECT_THAT(answered(*stage_.there.key, odd), HasSubstr("is not a job of"));
  odd = body;
  odd["jobs"][0]["status"] = "started";
  EXPECT_THAT(answered(*stage_.there.key, odd), HasSubstr("is not the status of an ended job"));
  odd = body;
  odd["jobs"] = 7;
  EXPECT_THAT(answered(*stage_.there.key, odd), HasSubstr("jobs"));
  odd = body;
  odd["status"] = 7;
  odd["error"] = json::array();
  EXPECT_EQ(answered(*stage_.there.key, odd), "") << "the answer reports the failure";
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_THAT(here("error"), HasSubstr("without a reason"));
}

// The mark stores the job keys separated by a blank; two keys joined by a blank are not a job key.
TEST_F(MessageDelivery, AnswersAndLinesBelongToOneJob) {
  send({job(1, "hold a"), job(2, "hold b")});
  stage_.steps(8);
  const MessageRef name{12, 101, here("content", "mj:message:message:12:101")};
  const auto refusal = [&](EnvelopeKind kind, const json& body) -> std::string {
    json with = body;
    with["of"] = to_json(name);
    const json envelope = seal({kind, 1, stage_.clock.unix_ms() / 1000, ""}, with, *stage_.there.key).value();
    const auto answer =
        stage_.carry(MessageStage::kHere, encode_rpc_request("message.deliver", {{"envelope", envelope}}), 0);
    const auto read = parse_rpc_answer(answer.value());
    return read ? "" : read.error().message;
  };
  for (const char* none : {"job:12:1 job:12:2", "", " "}) {
    EXPECT_THAT(refusal(EnvelopeKind::answer,
                        {{"status", "processed"}, {"jobs", json::array({{{"key", none}, {"status", "finished"}}})}}),
                HasSubstr("is not a job of"))
        << none;
    EXPECT_THAT(refusal(EnvelopeKind::logs, {{"job", none}, {"lines", json::array()}}), HasSubstr("is not a job of"))
        << none;
  }
  EXPECT_EQ(here("state", "mj:message:message:12:101"), "away");
  EXPECT_EQ(job_here(1), "waiting_for_prerequisites away");
  ASSERT_TRUE(stage_.here.store->cancel_message(1, kSent));
  ASSERT_TRUE(stage_.play());
}

TEST_F(MessageDelivery, PeerCannotSetLocalFields) {
  const auto read = [](const char* status, const char* detail) {
    const json job_sent{{"key", "job:12:1"}, {"status", status}, {"detail", detail}};
    return parse_answer_job(job_sent, 0).value().end.detail;
  };
  for (const char* word : {"skipped", "dead_letter", "not_needed", "retired", "away", "anything", ""})
    EXPECT_EQ(read("error", word), "lost") << word;
  for (const char* word : {"exit", "oom", "cancelled", "timeout", "policy_refused"})
    EXPECT_EQ(read("error", word), word);
  EXPECT_EQ(read("finished", "skipped"), "ok");
}

TEST_F(MessageDelivery, CancelOfAnUnacceptedMessageIsRepeated) {
  ASSERT_TRUE(deliver(sealed(signed_message(), *stage_.here.key)));
  const std::string content = there("content", kCameMark);
  const json body{{"of", to_json(MessageRef{12, 101, content})},
                  {"by", stage_.alice.public_key()},
                  {"jobs", json::array({"job:12:1"})}};
  const auto cancel = [&](const SigningKey& key) {
    return deliver(seal({EnvelopeKind::cancel, 2, stage_.clock.unix_ms() / 1000, ""}, body, key).value());
  };
  EXPECT_EQ(cancel(SigningKey::make()).error().code, Code::denied);
  EXPECT_EQ(cancel(*stage_.here.key).error().code, Code::unavailable);
  stage_.steps(1);
  EXPECT_TRUE(cancel(*stage_.here.key));
  stage_.steps(20);
  stage_.there.server.run_command(2, {"DEL", "mj:anomalies"});
}

// ---- files ----

constexpr std::size_t kManyPieces = 1300 << 10;

class MessageFiles : public MessageDelivery {
 protected:
  // Returns a job with an ended local job's artifact as its input.
  Job make_reader_job(const std::string& bytes) {
    const std::string left = stage_.here.store_artifact("job:12:7", "app", bytes);
    EXPECT_TRUE(stage_.here.store->save(1, "job:12:7",
                                        {{"id", "7"},
                                         {"caller_id", "12"},
                                         {"context_id", "1"},
                                         {"script", "x"},
                                         {"script_type", "python"},
                                         {"status", "finished"},
                                         {"artifacts", left}}));
    Job out = job(1, "ok read");
    out.inputs = {"build"};
    out.remote_inputs = remote_inputs_to_json({{7, "build", {{"size", "9"}}, {}, left}});
    return out;
  }
};

TEST_F(MessageFiles, ArtifactsReturnWithTheAnswer) {
  Job leaves = job(1, "ok leave");
  leaves.env_vars = {{"n", "1"}};
  send({leaves, job(2, "ok long leave")});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_EQ(stage_.here.read_job_file("job:12:1", "ok leave"), "ok leave");
  EXPECT_EQ(stage_.here.read_job_file("job:12:2", MessageStage::get_artifact_bytes("ok long leave")).size(),
            (1300U << 10) + 13);
  EXPECT_THAT(stage_.here.field("job:12:2", "artifacts"), HasSubstr("out/left.txt"));
  EXPECT_GE(stage_.requests(), 6U) << "the file is sent in pieces";
}

TEST_F(MessageFiles, InputsAreSentWithTheMessage) {
  const std::string bytes(kManyPieces, 'b');
  send({make_reader_job(bytes)});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  const json result = json::parse(stage_.here.field("job:12:1", "result"));
  EXPECT_EQ(result["read"], "build/app=" + sha256_hex(bytes) + " build says 9");
}

TEST_F(MessageFiles, ExceedingTheLimitIsAnErrorThatNamesIt) {
  stage_.here.files.max_bytes = 10;
  stage_.restart();
  send({job(1, "ok leave"), job(2, "ok more leave"), job(3, "ok c")});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_EQ(job_here(2), "error too_large");
  EXPECT_THAT(stage_.here.field("job:12:2", "error"), HasSubstr("message.max_artifact_bytes is 10 here"));
  EXPECT_EQ(job_here(3), "finished ok");
}

TEST_F(MessageFiles, ExceedingThePeersLimitIsAnErrorThatNamesIt) {
  stage_.there.files.max_bytes = 8;
  stage_.restart();
  send({job(1, "ok leave"), job(2, "ok more leave")});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_EQ(job_here(2), "error too_large");
  EXPECT_THAT(stage_.here.field("job:12:2", "error"), HasSubstr("message.max_artifact_bytes there is 8"));
}

TEST_F(MessageFiles, InputsBeyondEitherLimitAreNotSent) {
  stage_.there.files.max_bytes = 8;
  stage_.restart();
  send({make_reader_job("nine byte")});
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(here("error"), HasSubstr("message.max_artifact_bytes is 8 there"));
  EXPECT_THAT(stage_.there.claims, IsEmpty());
}

// The message was accepted. The next leader is a coordinator with another state_dir, where its files are missing.
TEST_F(MessageFiles, AcceptedMessageWaitsForACoordinatorWithItsFiles) {
  const std::string incoming = stage_.there.state_dir + "/contexts/2/incoming", elsewhere = incoming + ".elsewhere";
  stage_.replace_answers([&](const std::string& answer) {
    if (there("state", kCameMark) == "arrived" && !std::filesystem::exists(elsewhere))
      std::filesystem::rename(incoming, elsewhere);
    return answer;
  });
  send({make_reader_job("nine byte")});
  stage_.steps(300);
  EXPECT_EQ(there("state", kCameMark), "arrived");
  EXPECT_EQ(job_here(1), "waiting_for_prerequisites away");
  ASSERT_TRUE(std::filesystem::exists(elsewhere));
  std::filesystem::remove_all(incoming);
  std::filesystem::rename(elsewhere, incoming);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
}

TEST_F(MessageFiles, InputsOfAnotherHostAreNotSent) {
  Job reads = make_reader_job("nine byte");
  std::filesystem::remove_all(stage_.here.state_dir + "/contexts/1/jobs");
  send({reads});
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(here("error"), HasSubstr("neither on the host of this coordinator nor at the runner of the job"));
}

// The name of a damaged file is reported, and the content is not sent.
TEST_F(MessageFiles, DamagedArtifactIsNotReceived) {
  send({job(1, "ok leave")});
  stage_.set_disconnected(true);
  stage_.steps(12);
  const std::string objects = stage_.there.state_dir + "/contexts/2/objects/";
  stage_.set_disconnected(false);
  stage_.steps(1);
  std::size_t damaged = 0;
  stage_.when([&] { return std::filesystem::exists(objects); },
              [&] {
                for (const auto& each : std::filesystem::directory_iterator(objects)) {
                  std::ofstream(each.path()) << "ok l3ave";
                  ++damaged;
                }
              });
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(damaged, 1U);
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_THAT(stage_.here.field("job:12:1", "artifacts"), HasSubstr("out/left.txt"));
  EXPECT_EQ(stage_.here.read_job_file("job:12:1", "ok leave"), "");
}

TEST_F(MessageFiles, UnrequestedFileIsRejected) {
  send({job(1, "hold a")});
  stage_.steps(8);
  const MessageRef name{12, 101, here("content", "mj:message:message:12:101")};
  const json body = make_piece_body(name, {std::string(64, 'a'), 3}, 0, "abc");
  const auto sent = [&](const SigningKey& key) {
    const json envelope = seal({EnvelopeKind::file, 1, stage_.clock.unix_ms() / 1000, ""}, body, key).value();
    return parse_rpc_answer(
        stage_.receive(stage_.here, encode_rpc_request("message.deliver", {{"envelope", envelope}})));
  };
  EXPECT_EQ(sent(SigningKey::make()).error().code, Code::denied);
  EXPECT_EQ(sent(*stage_.there.key).error().code, Code::not_found);
  ASSERT_TRUE(stage_.here.store->cancel(1, "job:12:1"));
  ASSERT_TRUE(stage_.play());
}

// The configured limit bounds the data that is accepted for a file, whatever size its pieces announce.
TEST_F(MessageFiles, PieceOfAFileOverTheLimitIsRejected) {
  stage_.here.files.max_bytes = 100;
  stage_.restart();
  send({job(1, "hold a")});
  stage_.steps(8);
  const MessageRef name{12, 101, here("content", "mj:message:message:12:101")};
  const FileContent asked{sha256_hex("abc"), 3};
  ASSERT_TRUE(stage_.here.files.store->reserve_files(*stage_.here.store, 1,
                                                     answer_bundle_id(name, stage_.there.key->public_key()), {asked}));
  const auto sent = [&](std::uint64_t bytes) {
    const json body = make_piece_body(name, {asked.sha256, bytes}, 0, "ab");
    const json envelope =
        seal({EnvelopeKind::file, 1, stage_.clock.unix_ms() / 1000, ""}, body, *stage_.there.key).value();
    return parse_rpc_answer(
        stage_.receive(stage_.here, encode_rpc_request("message.deliver", {{"envelope", envelope}})));
  };
  const auto refused = sent(101);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::too_large);
  EXPECT_THAT(refused.error().message, HasSubstr("message.max_artifact_bytes is 100 there"));
  EXPECT_EQ(sent(3).value().value("have", 0), 2);
  ASSERT_TRUE(stage_.here.store->cancel(1, "job:12:1"));
  ASSERT_TRUE(stage_.play());
}

// ---- quota of files in transit ----

constexpr std::uint64_t kSmallRoom = 8U << 20, kSmallShare = kSmallRoom / 4;

void make_small(MessageStage& stage, MessageSide& side) {
  side.files.store = make_artifact_store(side.state_dir, stage.clock, 1000, kSmallRoom);
  stage.restart();
}

TEST_F(MessageFiles, InputsArriveOnceTheQuotaAllows) {
  make_small(stage_, stage_.there);
  const InboundBundleId before{"message.12.100.x", stage_.alice.public_key()};
  const FileContent large{sha256_hex("large"), kSmallShare};
  ASSERT_TRUE(stage_.there.files.store->reserve_files(*stage_.there.store, 2, before, {large}));
  send({make_reader_job(std::string(kManyPieces, 'b'))});
  stage_.steps(100);
  EXPECT_THAT(here("why", "mj:message:message:12:101"),
              HasSubstr("no sender has more than a quarter of message.max_incoming_bytes, which is 8388608 there"));
  EXPECT_EQ(there("state", kCameMark), "");
  const InboundBundleId of_others{"message.13.100.x", SigningKey::make().public_key()};
  EXPECT_TRUE(stage_.there.files.store->reserve_files(*stage_.there.store, 2, of_others, {large}))
      << "other senders are not affected";
  stage_.restart();
  stage_.steps(100);
  EXPECT_EQ(there("state", kCameMark), "") << "received files count after a restart";
  stage_.there.files.store->remove_bundle(2, before);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_EQ(json::parse(stage_.here.field("job:12:1", "result"))["read"].get<std::string>().substr(0, 10),
            "build/app=");
}

TEST_F(MessageFiles, ArtifactsArriveOnceTheQuotaAllows) {
  make_small(stage_, stage_.here);
  const InboundBundleId before{"answer.12.100.x", stage_.there.key->public_key()};
  ASSERT_TRUE(
      stage_.here.files.store->reserve_files(*stage_.here.store, 1, before, {{sha256_hex("large"), kSmallShare}}));
  send({job(1, "ok long leave")});
  stage_.steps(100);
  EXPECT_EQ(here("status"), "acknowledged");
  EXPECT_THAT(there("why", kCameMark), HasSubstr("message.max_incoming_bytes"));
  stage_.here.files.store->remove_bundle(1, before);
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_EQ(stage_.here.read_job_file("job:12:1", MessageStage::get_artifact_bytes("ok long leave")).size(),
            (1300U << 10) + 13);
}

// All files together would exceed the quota.
TEST_F(MessageFiles, LargeAnswerArrivesInParts) {
  make_small(stage_, stage_.here);
  stage_.there.files.max_bytes = kSmallShare;
  stage_.restart();
  send({job(1, "ok long a leave"), job(2, "ok long b leave"), job(3, "ok long c leave")});
  ASSERT_TRUE(stage_.play());
  for (const char* name : {"a", "b", "c"}) {
    const Id id = static_cast<Id>(1 + name[0] - 'a');
    EXPECT_EQ(job_here(id), "finished ok");
    const std::string left = MessageStage::get_artifact_bytes("ok long " + std::string(name) + " leave");
    EXPECT_EQ(stage_.here.read_job_file("job:12:" + std::to_string(id), left), left);
  }
  EXPECT_TRUE(std::filesystem::is_empty(stage_.here.state_dir + "/contexts/1/incoming"));
}

TEST_F(MessageFiles, AnswerPartAboveTheQuotaIsAnError) {
  make_small(stage_, stage_.here);
  send({job(1, "ok long a leave"), job(2, "ok long b leave"), job(3, "ok c leave")});
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(job_here(1), "finished ok");
  EXPECT_EQ(job_here(2), "error too_large");
  EXPECT_THAT(stage_.here.field("job:12:2", "error"), HasSubstr("a sender's share of message.max_incoming_bytes"));
  EXPECT_EQ(job_here(3), "finished ok");
}

// The receiver names the missing files. A receiver that requests them endlessly is served less and less often.
TEST_F(MessageFiles, RepeatedFileRequestsAreThrottled) {
  const std::string bytes(kManyPieces, 'b');
  for (const std::uint64_t have : {std::uint64_t{0}, std::uint64_t{1}}) {
    Message outgoing = stage_.message(static_cast<Id>(101 + have), {make_reader_job(bytes)});
    outgoing.job[0].id = static_cast<Id>(1 + have);
    outgoing.timeout = 120;
    const std::string sha256 = sha256_hex(bytes);
    std::uint64_t pieces = 0;
    stage_.replace_answers([&](const std::string& answer) -> std::string {
      ++pieces;
      const bool is_piece = answer.find("\"have\"") != std::string::npos && answer.find("want") == std::string::npos;
      const json want{{"job", "job:12:7"}, {"sha256", sha256}, {"have", 0}};
      // For a piece the peer reports almost no progress; for a message it requests the file again.
      const json result = is_piece ? json{{"have", have * pieces}} : json{{"status", "files"}, {"want", want}};
      return json{{"jsonrpc", "2.0"}, {"id", 1}, {"result", result}}.dump();
    });
    stage_.send(outgoing);
    stage_.steps(700);
    const std::string key = redis_key(outgoing);
    EXPECT_EQ(stage_.here.field(key, "status"), "error");
    EXPECT_THAT(stage_.here.field(key, "error"), HasSubstr("repeatedly requests the same files"));
    EXPECT_LT(pieces, 60U) << "pieces within two minutes";
    stage_.replace_answers(nullptr);
    ASSERT_TRUE(stage_.play());
  }
}

TEST_F(MessageFiles, LocalJobReceivesNoFiles) {
  Job reads = make_reader_job("nine byte");
  Message outgoing = stage_.message(101, {reads});
  outgoing.target_address.clear();
  outgoing.target_context = 1;
  stage_.send(outgoing);
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(here("error"), HasSubstr("given: is only for jobs on another host"));
}

// ---- nodes, flows, topics ----

TEST_F(MessageDelivery, AnswerOfAnUnexpectedNodeIsRejected) {
  send({job(1, "hold a")});
  stage_.steps(8);
  const std::string node(64, 'a'), address = "mycelium://" + node;
  stage_.here.server.run_command(1, {"HSET", "mj:message:message:12:101", "address", address});
  stage_.here.server.run_command(1, {"HSET", "runner:7", "address", address});
  const MessageRef name{12, 101, here("content", "mj:message:message:12:101")};
  const json body{{"of", to_json(name)},
                  {"status", "processed"},
                  {"jobs", json::array({{{"key", "job:12:1"}, {"status", "finished"}}})},
                  {"last", true}};
  const auto envelope =
      seal({EnvelopeKind::answer, 1, stage_.clock.unix_ms() / 1000, ""}, body, *stage_.there.key).value();
  const auto from = [&](const std::string& key) {
    const auto read = parse_rpc_answer(
        stage_.receive(stage_.here, encode_rpc_request("message.deliver", {{"envelope", envelope}}), key));
    return read ? "" : read.error().message;
  };
  EXPECT_THAT(from(std::string(64, 'b')), HasSubstr("the record on this host names the node"));
  EXPECT_THAT(from(""), HasSubstr("was received not over Mycelium"));
  EXPECT_EQ(job_here(1), "waiting_for_prerequisites away");
  EXPECT_EQ(from(node), "");
  EXPECT_EQ(job_here(1), "finished ok");
  stage_.here.server.run_command(1, {"HSET", "runner:7", "address", MessageStage::kThere});
  ASSERT_TRUE(stage_.there.store->cancel(2, stage_.there.running.at(0).ref.job_key));
  stage_.steps(100);
}

TEST_F(MessageDelivery, FlowWithoutAWaitingSenderIsCancelled) {
  send({job(1, "hold a"), job(2, "ok b")}, [](Message& outgoing) {
    Flow flow;
    flow.name = "far";
    FlowNode first, second;
    first.id = 1;
    first.name = "first";
    second.id = 2;
    second.name = "second";
    second.depends = {1};
    flow.nodes = {first, second};
    flow.jobs = {1, 2};
    outgoing.flow = flow;
    outgoing.timeout_result = 30;
  });
  ASSERT_TRUE(stage_.play());
  EXPECT_THAT(here("error"), HasSubstr("timeout_result"));
  stage_.steps(40);
  EXPECT_THAT(stage_.there.running, IsEmpty());
  EXPECT_EQ(stage_.there.claims.count("ok b"), 0U);
  const std::string flow = "flow:" + there("flow", kCameMark);
  EXPECT_EQ(there("status", flow.c_str()), "error");
  EXPECT_EQ(there("detail", flow.c_str()), "cancelled");
}

TEST_F(MessageDelivery, AnswerOfAFlowLeavesTheSentFlow) {
  send({}, [](Message& outgoing) {
    outgoing.flow.emplace();
    outgoing.flow->name = "far";
    outgoing.flow->env_vars = {{"WHERE", "there"}};
    outgoing.flow->definition = R"({"name": "far", "jobs": {"a": {"type": "python", "script": "ok n=1"}}})";
  });
  const std::string sent = here("flow");
  ASSERT_THAT(sent, HasSubstr("definition"));
  ASSERT_TRUE(stage_.play());
  ASSERT_EQ(here("status"), "processed") << here("error");
  EXPECT_EQ(here("flow"), sent);
  const json result = json::parse(here("flow_result"), nullptr, false);
  ASSERT_TRUE(result.is_object()) << here("flow_result");
  EXPECT_EQ(result.at("status"), "finished");
  // The signature is still valid.
  const auto message = decode<Message>(stage_.here.store->load(1, kSent).value()).record;
  EXPECT_TRUE(check_signature(message, {stage_.alice.public_key(), message.created_at}));
}

TEST_F(MessageDelivery, FlowOverTheRemoteLimitsIsRejected) {
  send({}, [](Message& outgoing) {
    outgoing.flow.emplace();
    outgoing.flow->name = "greedy";
    outgoing.flow->definition = R"({"name": "greedy", "jobs": {"a": {"type": "python", "script": "pass",)"
                                R"( "policy": {"memory": "2 GiB"}}}})";
  });
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(here("status"), "error");
  EXPECT_THAT(here("error"), HasSubstr("flow: jobs.a: policy.memory: 2 GiB is more than the ceiling of 1 GiB"));
  EXPECT_EQ(there("flow", kCameMark), "") << "no flow was started";
}

TEST_F(MessageDelivery, TopicBelongsToItsCurrentRunner) {
  const auto has = [&](const char* runner, const char* topic) {
    stage_.there.server.run_command(2, {"HSET", runner, "id", std::string(runner).substr(7), "topic", topic});
  };
  const auto send_to_gpu = [&](Id id) {
    Message outgoing = stage_.message(id, {job(id, "ok a"), job(id + 1, "ok b")});
    outgoing.topic = "gpu";
    stage_.send(outgoing);
    stage_.steps(8);
  };
  const auto waiting = [&](const char* queue) { return stage_.there.server.run_command(2, {"LLEN", queue}).number(); };
  has("runner:8", "gpu");
  send_to_gpu(101);
  EXPECT_EQ(waiting("mj:queue:runner8"), 2U);
  has("runner:8", "cpu");
  has("runner:9", "gpu");
  send_to_gpu(201);
  EXPECT_EQ(waiting("mj:queue:runner8"), 2U);
  EXPECT_EQ(waiting("mj:queue:runner9"), 2U);
  for (const std::string each : {"job:12:101", "job:12:102", "job:12:201", "job:12:202"})
    ASSERT_TRUE(stage_.here.store->cancel(1, each));
  ASSERT_TRUE(stage_.play());
}

}  // namespace
}  // namespace mycojobs
