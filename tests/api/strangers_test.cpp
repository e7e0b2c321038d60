// Requests to /supervisor from unknown peers.
#include <gtest/gtest.h>

#include "api/auth/peer_rate_limiter.h"
#include "api_fixture.h"
#include "base/ed25519.h"
#include "messaging/envelope.h"
#include "model/codec.h"
#include "net/json_rpc_client.h"
#include "security/signatures.h"
#include "support/hand_clock.h"
#include "support/mail.h"

namespace mycojobs {
namespace {

TEST(PeerRateLimit, AreCountedByNetworkAndMinute) {
  test::ManualClock clock;
  api::PeerRateLimiter strangers(clock, 2);
  EXPECT_TRUE(strangers.is_below_limit("192.0.2.7"));
  strangers.count_refusal("192.0.2.7");
  EXPECT_TRUE(strangers.is_below_limit("192.0.2.7"));
  strangers.count_refusal("192.0.2.7");
  EXPECT_FALSE(strangers.is_below_limit("192.0.2.7"));
  EXPECT_TRUE(strangers.is_below_limit("192.0.2.8"));
  clock.advance(59999);
  EXPECT_FALSE(strangers.is_below_limit("192.0.2.7"));
  clock.advance(1);
  EXPECT_TRUE(strangers.is_below_limit("192.0.2.7"));
  strangers.count_refusal("192.0.2.7");
  EXPECT_TRUE(strangers.is_below_limit("192.0.2.7")) << "a new minute";
}

// The stored number of networks is bounded. Networks beyond the bound share one count.
TEST(PeerRateLimit, TooManyNetworksShareOneCounter) {
  test::ManualClock clock;
  api::PeerRateLimiter strangers(clock, 2);
  for (int i = 0; i < 1000; ++i) strangers.count_refusal(std::to_string(i));
  EXPECT_TRUE(strangers.is_below_limit("one more"));
  strangers.count_refusal("one more");
  strangers.count_refusal("another");
  EXPECT_FALSE(strangers.is_below_limit("a third"));
  EXPECT_TRUE(strangers.is_below_limit("0"));
  clock.advance(60000);
  strangers.count_refusal("one more");
  EXPECT_TRUE(strangers.is_below_limit("a third"));
}

TEST(PeerRateLimit, ManyNetworksDoNotAffectKnownNetworks) {
  test::ManualClock clock;
  api::PeerRateLimiter strangers(clock, 2);
  strangers.mark_known_network("peer");
  for (int i = 0; i < 1002; ++i) strangers.count_refusal(std::to_string(i));
  EXPECT_FALSE(strangers.is_below_limit("a third"));
  EXPECT_TRUE(strangers.is_below_limit("peer"));
  strangers.count_refusal("peer");
  EXPECT_TRUE(strangers.is_below_limit("peer"));
  strangers.count_refusal("peer");
  EXPECT_FALSE(strangers.is_below_limit("peer")) << "it is counted alone";
}

class PeerRateLimitHttp : public ApiTest {
 protected:
  SigningKey own_ = SigningKey::make(), ann_ = SigningKey::make(), peer_ = SigningKey::make();

  void open(bool exempt_loopback) {
    settings_.coordinator_key = own_.public_key();
    settings_.contexts = {8};
    settings_.limits.max_unknown_peer_requests = 3;
    settings_.limits.exempt_loopback = exempt_loopback;
    redis_.run_command(0, {"HSET", "actor:5", "id", "5", "pubkey", ann_.public_key(), "address", "[\"http://a:1\"]"});
    redis_.run_command(8, {"HSET", "context:8", "submitters", "[5]"});
    start();
  }
  // A message of ann, signed with this key.
  std::string message(Id id, const SigningKey& by) {
    const Message mail = test::make_signed_message(id, 8, own_.public_key(), clock_, by);
    return encode_rpc_request("message.deliver", {{"envelope", test::seal_message(mail, 8, clock_, peer_)}});
  }
  // Sends the request on a connection of its own, as a separate client. Returns the HTTP status.
  int deliver(const std::string& request) {
    HttpClient client;
    const auto answer = client.post({server_->url() + "/supervisor", request, ""});
    if (!answer) return 0;
    if (answer->status != 200) return answer->status;
    return json::parse(answer->body).contains("result") ? 200 : 1;  // 1: the call was rejected
  }
};

// Regression test: each such request cost a parse and a signature check, without a limit.
TEST_F(PeerRateLimitHttp, HeadsAreRejectedAboveTheRate) {
  open(false);
  const SigningKey stranger = SigningKey::make();
  for (Id id = 1; id <= 5; ++id) EXPECT_EQ(deliver(message(id, ann_)), 200) << "whom we know is not counted";
  EXPECT_EQ(deliver(message(1, stranger)), 1);
  EXPECT_EQ(deliver("{}"), 1);
  EXPECT_EQ(deliver("no json"), 1);
  EXPECT_EQ(deliver(message(2, stranger)), 429);
  EXPECT_EQ(deliver(message(6, ann_)), 429) << "is told to come again: nobody knows yet that it is hers";
  EXPECT_EQ(status("GET /health HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"), 200) << "of /supervisor alone";
}

// Every host that has seen a message can send it again, in an envelope of any key.
TEST_F(PeerRateLimitHttp, RepeatedMessagesAreCounted) {
  open(false);
  const Message mail = test::make_signed_message(1, 8, own_.public_key(), clock_, ann_);
  const auto in_envelope_of = [&](const SigningKey& key) {
    return encode_rpc_request("message.deliver", {{"envelope", test::seal_message(mail, 8, clock_, key)}});
  };
  EXPECT_EQ(deliver(in_envelope_of(peer_)), 200);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(deliver(in_envelope_of(SigningKey::make())), 200) << "known";
  EXPECT_EQ(deliver(in_envelope_of(SigningKey::make())), 429);
}

TEST_F(PeerRateLimitHttp, AuthenticatedConnectionIsNotRejected) {
  open(false);
  HttpClient known;
  ASSERT_EQ(known.post({server_->url() + "/supervisor", message(1, ann_), ""}).value().status, 200);
  for (int i = 0; i < 4; ++i) deliver("{}");
  EXPECT_EQ(deliver("{}"), 429);
  EXPECT_EQ(known.post({server_->url() + "/supervisor", message(2, ann_), ""}).value().status, 200);
}

TEST_F(PeerRateLimitHttp, LoopbackIsNotCountedBecauseOfProxies) {
  open(true);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(deliver("{}"), 1);
}

}  // namespace
}  // namespace mycojobs
