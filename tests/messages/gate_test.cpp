// Which requests reach the checks of messages, when a refusal is noted, and which messages identify their sender.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "messaging/envelope.h"
#include "messaging/inbound_filter.h"
#include "messaging/message_receiver.h"
#include "model/codec.h"
#include "model/enums.h"
#include "net/json_rpc_client.h"
#include "support/hand_clock.h"
#include "support/mail.h"
#include "support/redis/memory_server.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr Id kServed = 8, kOther = 9;

class MessageGates : public testing::Test {
 protected:
  test::ManualClock clock_;
  MemoryServer redis_{clock_};
  std::unique_ptr<Store> store_ = redis_.open().value();
  InboundMessageFilter gate_{clock_, {kServed}, {}};
  PublicKeyCache known_;
  SigningKey own_ = SigningKey::make(), ann_ = SigningKey::make(), peer_ = SigningKey::make();
  MessageReceiver receiver_{*store_, known_, own_.public_key(), {}};

  void SetUp() override {
    receiver_.set_filter(gate_);
    redis_.run_command(0, {"HSET", "actor:5", "id", "5", "pubkey", ann_.public_key(), "address", "[\"http://a:1\"]"});
    for (const Id context : {kServed, kOther})
      redis_.run_command(context, {"HSET", "context:" + std::to_string(context), "submitters", "[5]"});
  }
  Message message(Id id, Id target = kServed) {
    return test::make_signed_message(id, target, own_.public_key(), clock_, ann_);
  }
  std::string deliver(const Message& message, Id context = kServed) {
    return deliver(test::seal_message(message, context, clock_, peer_));
  }
  std::string deliver(const json& envelope) {
    const auto read =
        parse_rpc_answer(receiver_.handle_request(encode_rpc_request("message.deliver", {{"envelope", envelope}})));
    return read ? read->value("status", "") : std::string(to_string(read.error().code)) + ": " + read.error().message;
  }
  std::vector<RefusalNote> notes(Id context = kServed) { return store_->refusals(context, 2000).value(); }
};

TEST_F(MessageGates, UnservedContextIsUnchanged) {
  EXPECT_EQ(deliver(message(1)), "stored");
  const auto before = redis_.run_command(kOther, {"DBSIZE"}).number();
  EXPECT_THAT(deliver(message(2, kOther), kOther),
              HasSubstr("denied: context: 9 does not accept messages on this host"));
  for (Id context = 100; context < 200; ++context) {
    json answer{{"of", {{"caller", 1}, {"id", 1}, {"content", std::string(64, '0')}}}};
    EXPECT_THAT(deliver(seal({EnvelopeKind::answer, context, 1, ""}, answer, peer_).value()), HasSubstr("denied"));
    EXPECT_EQ(redis_.run_command(context, {"DBSIZE"}).number(), 0U) << context;
  }
  EXPECT_EQ(redis_.run_command(kOther, {"DBSIZE"}).number(), before);
}

TEST_F(MessageGates, EmptyDatabaseIsNoContext) {
  InboundMessageFilter all(clock_, {}, {kOther});
  receiver_.set_filter(all);
  EXPECT_THAT(deliver(message(1, 77), 77), HasSubstr("denied"));
  EXPECT_EQ(redis_.run_command(77, {"DBSIZE"}).number(), 0U);
  EXPECT_THAT(deliver(message(3, 78), 78), HasSubstr("unavailable")) << "the context was checked a moment ago";
  EXPECT_EQ(deliver(message(2, kOther), kOther), "stored") << "the other context has another Redis";
  clock_.advance(5001);
  EXPECT_THAT(deliver(message(3, 78), 78), HasSubstr("denied"));
  EXPECT_EQ(redis_.run_command(78, {"DBSIZE"}).number(), 0U);
}

TEST_F(MessageGates, ManyForgeriesEvictNoNote) {
  redis_.run_command(kServed, {"HSET", "context:8", "submitters", "[]"});
  EXPECT_THAT(deliver(message(1)), HasSubstr("denied"));
  ASSERT_EQ(notes().size(), 1U);
  EXPECT_EQ(notes()[0].actor, 5U) << "the actor is known";
  EXPECT_EQ(notes()[0].access_list, "submitters") << "the list that would permit it";
  Message forged = message(2);
  forged.message = "forged";
  for (int i = 0; i < 1500; ++i) EXPECT_THAT(deliver(forged), HasSubstr("denied"));
  ASSERT_EQ(notes().size(), 2U);
  EXPECT_EQ(notes()[0].actor, 0U);
  clock_.advance(60000);
  EXPECT_THAT(deliver(forged), HasSubstr("denied"));
  ASSERT_EQ(notes().size(), 3U);
  EXPECT_THAT(notes()[0].resource, HasSubstr("1500 refusals since the last record"));
  // A message signed by a known actor, replayed by another peer.
  for (int i = 0; i < 1500; ++i) EXPECT_THAT(deliver(message(1)), HasSubstr("denied"));
  EXPECT_LE(notes().size(), 40U);
}

TEST_F(MessageGates, RefusalOfAKnownSenderIsNotedWithoutARecord) {
  redis_.run_command(kServed, {"DEL", "context:8"});
  EXPECT_THAT(deliver(message(1)), HasSubstr("denied"));
  ASSERT_EQ(notes().size(), 1U);
  EXPECT_EQ(notes()[0].actor, 5U);
  redis_.run_command(kServed, {"DEL", "mj:refusals"});
  Message forged = message(2);
  forged.message = "forged";
  EXPECT_THAT(deliver(forged), HasSubstr("denied"));
  EXPECT_TRUE(notes().empty()) << "an unknown sender causes no note";
}

TEST_F(MessageGates, OnlyNewSealedMessagesIdentifyTheSender) {
  const Message first = message(1);
  json envelope = test::seal_message(first, kServed, clock_, peer_);
  EXPECT_EQ(deliver(envelope), "stored");
  EXPECT_EQ(receiver_.verified_sender(), ann_.public_key());
  EXPECT_FALSE(receiver_.is_unknown_sender());
  EXPECT_EQ(deliver(envelope), "known");
  EXPECT_EQ(receiver_.verified_sender(), "") << "another party may have captured the envelope";
  EXPECT_TRUE(receiver_.is_unknown_sender()) << "and can send it repeatedly";
  envelope = test::seal_message(message(2), kServed, clock_, peer_);
  envelope["sent"] = 1;
  EXPECT_EQ(deliver(envelope), "stored") << "the actor has signed the message";
  EXPECT_EQ(receiver_.verified_sender(), "") << "but the envelope has no signature";
}

}  // namespace
}  // namespace mycojobs
