// Each scenario first runs undisturbed, which numbers the writing calls of supervisors and the requests between them.
// Then the scenario is repeated with a fault at each of them: a supervisor is killed before or after a call of its
// store, or the call or its reply is lost; a request or its answer is lost, or the request is delivered twice, at once
// or much later. Every message and job must end as in the undisturbed run: each job ran once, each result was delivered
// once, and `verify` finds no problem. A step can also be disturbed at each retry.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "messages/message_stage.h"

namespace mycojobs {
namespace {

struct MessageScenario {
  const char* name;
  void (*play)(MessageStage&);
  std::vector<const char*> ends;  // texts that the outcome must contain
};
void PrintTo(const MessageScenario& scenario, std::ostream* out) { *out << scenario.name; }

Flow make_flow(const std::string& name) {
  Flow out;
  out.name = name;
  FlowNode first, second;
  first.id = 1;
  first.name = "first";
  second.id = 2;
  second.name = "second";
  second.depends = {1};
  out.nodes = {first, second};
  out.jobs = {1, 2};
  return out;
}

const MessageScenario kScenarios[] = {
    {"Jobs",
     [](MessageStage& stage) {
       Message outgoing = stage.message(101, {MessageStage::job(1, "ok a"), MessageStage::job(2, "fail b")});
       outgoing.stream_logs = true;
       stage.send(outgoing);
     },
     {"here\n  message:12:101 error read (1 of its jobs failed) in msg_in 1", "job:12:1 ok a | finished | ok |",
      "job:12:2 fail b | error | exit | it went wrong", "ran ok a: 1", "ran fail b: 1"}},
    {"Files",
     [](MessageStage& stage) {
       Job reads = MessageStage::job(1, "ok read");
       reads.inputs = {"build/app"};
       const std::string left = stage.here.store_artifact("job:12:7", "app", "a program");
       EXPECT_TRUE(stage.here.store->save(1, "job:12:7",
                                          {{"id", "7"},
                                           {"caller_id", "12"},
                                           {"context_id", "1"},
                                           {"script", "x"},
                                           {"script_type", "python"},
                                           {"status", "finished"},
                                           {"artifacts", left}}));
       reads.remote_inputs = remote_inputs_to_json({{7, "build", {{"size", "9"}}, {}, left}});
       stage.send(stage.message(101, {reads, MessageStage::job(2, "ok leave")}));
     },
     {"here\n  message:12:101 processed", R"("read":"build/app=a program build says 9")",
      "ok leave | finished | ok |  | {\"script\":\"ok leave\"} | file out/left.txt=ok leave"}},
    {"FilesInParts",  // FilesInParts: the artifacts of an answer.
     [](MessageStage& stage) {
       stage.there.files.max_bytes = 10;
       stage.restart();
       stage.send(stage.message(101, {MessageStage::job(1, "ok a leave"), MessageStage::job(2, "ok b leave")}));
     },
     {"here\n  message:12:101 processed",
      "ok a leave | finished | ok |  | {\"script\":\"ok a leave\"} | file out/left.txt=ok a leave",
      "ok b leave | finished | ok |  | {\"script\":\"ok b leave\"} | file out/left.txt=ok b leave"}},
    {"Flow",
     [](MessageStage& stage) {
       Message outgoing = stage.message(101, {MessageStage::job(1, "ok a"), MessageStage::job(2, "ok b")});
       outgoing.flow = make_flow("two");
       stage.send(outgoing);
     },
     {"here\n  message:12:101 processed read () in msg_in 1", "ran ok a: 1", "ran ok b: 1"}},
    {"Chat",
     [](MessageStage& stage) {
       Message outgoing = stage.message(101, {});
       outgoing.message_type = MessageType::chat;
       outgoing.message = "good morning";
       stage.send(outgoing);
     },
     {"here\n  message:12:101 processed read () in msg_in 1", "there\n  message:34:101 processed"}},
    {"ToItself",
     [](MessageStage& stage) {
       Message outgoing = stage.message(101, {MessageStage::job(1, "ok a")});
       outgoing.target_address.clear();
       outgoing.target_key.clear();
       outgoing.target_context = 1;
       stage.send(outgoing);
     },
     {"here\n  message:12:101 processed", "job:12:1 ok a | finished | ok |", "ran ok a: 1"}},
    {"Refused",
     [](MessageStage& stage) {
       EXPECT_TRUE(stage.there.store->save(2, "context:2", {{"submitters", "[]"}}));
       stage.send(stage.message(101, {MessageStage::job(1, "ok a")}));
     },
     {"here\n  message:12:101 error", "job:12:1 ok a | error | refused |"}},
    {"Cancelled",
     [](MessageStage& stage) {
       stage.send(stage.message(101, {MessageStage::job(1, "hold a"), MessageStage::job(2, "ok b")}));
       stage.when([&stage] { return !stage.there.running.empty(); },
                  [&stage] { EXPECT_TRUE(stage.here.store->cancel(1, "job:12:1")); });
     },
     {"job:12:1 hold a | error | cancelled |", "job:12:2 ok b | finished | ok |"}},
    {"MessageCancelled",
     [](MessageStage& stage) {
       stage.send(stage.message(101, {MessageStage::job(1, "hold a"), MessageStage::job(2, "hold b")}));
       const auto heard = [&stage] { return stage.here.field("message:12:101", "status") == "acknowledged"; };
       stage.when([&stage, heard] { return stage.there.running.size() == 2 && heard(); },
                  [&stage] { EXPECT_TRUE(stage.here.store->cancel_message(1, "message:12:101")); });
     },
     {"here\n  message:12:101 error read (cancelled: 2 of its jobs failed)", "job:12:1 hold a | error | cancelled |",
      "job:12:2 hold b | error | cancelled |", "ran hold a: 1", "ran hold b: 1"}},
    {"NotDeliveredInTime",
     [](MessageStage& stage) {
       Message outgoing = stage.message(101, {MessageStage::job(1, "ok a")});
       outgoing.timeout = 5;
       stage.set_disconnected(true);
       stage.send(outgoing);
       stage.when_later(15000, [&stage] { stage.set_disconnected(false); });
     },
     {"here\n  message:12:101 error failed (timeout: it was not delivered in time)",
      "job:12:1 ok a | error | timeout |"}},
    {"NotAcknowledgedInTime",
     [](MessageStage& stage) {
       Message outgoing = stage.message(101, {MessageStage::job(1, "ok a"), MessageStage::job(2, "ok b")});
       outgoing.timeout_ack = 5;
       stage.set_disconnected(true);
       stage.send(outgoing);
       stage.when_later(15000, [&stage] { stage.set_disconnected(false); });
     },
     {"here\n  message:12:101 error failed (timeout_ack: it was not acknowledged in time)",
      "job:12:1 ok a | error | timeout |", "job:12:2 ok b | error | timeout |"}},
    // The message is accepted, runs and is answered, but its arrival is never acknowledged.
    {"NeverAcknowledged",
     [](MessageStage& stage) {
       stage.drop_answers_to(MessageStage::kThere);
       stage.send(stage.message(101, {MessageStage::job(1, "ok a"), MessageStage::job(2, "fail b")}));
     },
     {"here\n  message:12:101 error read (1 of its jobs failed) in msg_in 1", "job:12:1 ok a | finished | ok |",
      "job:12:2 fail b | error | exit | it went wrong", "ran ok a: 1", "ran fail b: 1"}},
    // The message runs at the receiver when its acknowledgement times out at the sender.
    {"NotHeardInTime",
     [](MessageStage& stage) {
       Message outgoing = stage.message(101, {MessageStage::job(1, "hold a")});
       outgoing.timeout_ack = 120;  // longer than the delivery takes with any fault
       stage.set_step_ms(2000);
       stage.drop_answers_to(MessageStage::kThere);
       stage.send(outgoing);
       stage.when_later(125000, [&stage] { stage.drop_answers_to(""); });
     },
     {"here\n  message:12:101 error failed (timeout_ack: it was not acknowledged in time)",
      "job:12:1 hold a | error | timeout |", "hold a | error | cancelled |", "ran hold a: 1"}},
    {"NoResultInTime",
     [](MessageStage& stage) {
       Message outgoing = stage.message(101, {MessageStage::job(1, "hold a")});
       outgoing.timeout_result = 60;
       stage.send(outgoing);
     },
     {"(timeout_result: no answer was received in time)", "job:12:1 hold a | error | timeout |",
      "| error | cancelled |"}},
};

constexpr MessageFate kCallFates[] = {MessageFate::killed_before, MessageFate::killed_after, MessageFate::reply_lost,
                                      MessageFate::request_lost};
constexpr MessageFate kRequestFates[] = {MessageFate::parcel_lost, MessageFate::answer_lost, MessageFate::twice,
                                         MessageFate::late};

class MessageCrashPoints : public testing::TestWithParam<MessageScenario> {
 protected:
  void SetUp() override {
    play({}, {});
    ASSERT_EQ(failures_, 0);
    ASSERT_GT(calls_, 2U);
  }
  void play(const std::vector<MessageDisturbance>& calls, const std::vector<MessageDisturbance>& requests) {
    MessageStage stage;
    stage.disturb_calls(calls);
    stage.disturb_requests(requests);
    GetParam().play(stage);
    std::string wrong = stage.play(4000) ? "" : "it does not end; ";
    const std::string outcome = stage.outcome();
    for (const std::string& line : stage.find_violations()) wrong += line + "; ";
    if (undisturbed_.empty()) {
      undisturbed_ = outcome;
      calls_ = stage.calls();
      requests_ = stage.requests();
      for (const char* end : GetParam().ends) {
        if (outcome.find(end) == std::string::npos) wrong += std::string("its end does not say: ") + end + "; ";
      }
    }
    if (outcome != undisturbed_) wrong += "another end:\n" + outcome;
    if (wrong.empty() || ++failures_ > 3) return;
    std::string where;
    for (const auto* each : {&calls, &requests}) {
      for (const MessageDisturbance& one : *each)
        where += (each == &calls ? "call " : "request ") + std::to_string(one.call) + '/' +
                 std::to_string(static_cast<int>(one.fate)) + ' ';
    }
    ADD_FAILURE() << where << ": " << wrong << "\nundisturbed:\n" << undisturbed_;
  }
  bool is_enough() const { return failures_ >= 3; }

  std::string undisturbed_;
  std::uint64_t calls_ = 0, requests_ = 0;
  int failures_ = 0;
};

TEST_P(MessageCrashPoints, OneCrashAnywhereChangesNothing) {
  for (std::uint64_t call = 1; call <= calls_ && !is_enough(); ++call) {
    for (const MessageFate fate : kCallFates) play({{call, fate}}, {});
  }
  for (std::uint64_t request = 1; request <= requests_ && !is_enough(); ++request) {
    for (const MessageFate fate : kRequestFates) play({}, {{request, fate}});
  }
  std::printf("%s: %llu calls, %llu requests\n%s", GetParam().name, static_cast<unsigned long long>(calls_),
              static_cast<unsigned long long>(requests_), undisturbed_.c_str());
}

// A restarted supervisor is killed at the same step again; several consecutive attempts of a request fail.
TEST_P(MessageCrashPoints, RepeatedCrashAtOneStepChangesNothing) {
  for (std::uint64_t call = 1; call <= calls_ && !is_enough(); ++call) {
    for (const MessageFate fate : kCallFates) play({{call, fate, 2}}, {});
  }
  for (std::uint64_t request = 1; request <= requests_ && !is_enough(); ++request) {
    for (const MessageFate fate : {MessageFate::parcel_lost, MessageFate::answer_lost, MessageFate::twice})
      play({}, {{request, fate, 3}});
  }
}

// Tests all pairs if MYCOJOBS_SIM_ROUNDS is set, otherwise a sample.
TEST_P(MessageCrashPoints, TwoCrashesAnywhereChangeNothing) {
  const bool all = std::getenv("MYCOJOBS_SIM_ROUNDS") != nullptr;
  constexpr std::uint64_t kFew = 100;
  const std::uint64_t stride = all ? 1 : 1 + calls_ * calls_ / kFew;
  std::uint64_t turn = 0;
  for (std::uint64_t first = 1; first <= calls_ && !is_enough(); ++first) {
    for (std::uint64_t second = first + 1 + turn % stride; second <= calls_ + 20 && !is_enough();
         second += stride, ++turn) {
      play({{first, kCallFates[turn % 4]}, {second, kCallFates[turn / 4 % 4]}},
           {{1 + turn % (requests_ + 1), kRequestFates[turn / 16 % 4]}});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, MessageCrashPoints, testing::ValuesIn(kScenarios),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace mycojobs
