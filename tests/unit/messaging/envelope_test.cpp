#include "messaging/envelope.h"

#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

namespace mycojobs {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

constexpr std::uint64_t kSentAt = 1'800'000'000;

class SealedEnvelope : public ::testing::Test {
 protected:
  json make_sealed(EnvelopeKind kind = EnvelopeKind::answer) const {
    return seal({kind, 9, kSentAt, ""}, {{"text", "héllo"}, {"number", 5}}, key_).value();
  }
  static std::string get_parse_error(const json& sealed) {
    const auto read = parse_envelope(sealed);
    if (read) return "";
    EXPECT_EQ(read.error().code, Code::invalid);
    return read.error().message;
  }
  std::string get_error(const json& sealed, std::uint64_t now_s = kSentAt, const std::string& pubkey = "") const {
    const auto checked = check_seal(sealed, {pubkey.empty() ? key_.public_key() : pubkey, now_s});
    if (checked) return "";
    EXPECT_EQ(checked.error().code, Code::denied) << checked.error().message;
    return checked.error().message;
  }
  SigningKey key_ = SigningKey::make();
};

TEST_F(SealedEnvelope, RoundTrips) {
  for (const EnvelopeKind kind :
       {EnvelopeKind::message, EnvelopeKind::answer, EnvelopeKind::logs, EnvelopeKind::cancel}) {
    const json sealed = json::parse(make_sealed(kind).dump());  // as sent over the network
    const auto read = parse_envelope(sealed);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->kind, kind) << to_string(kind);
    EXPECT_EQ(read->context, 9U);
    EXPECT_EQ(read->sent_s, kSentAt);
    EXPECT_EQ(read->signer, key_.public_key());
    EXPECT_EQ(get_error(sealed), "");
  }
}

TEST_F(SealedEnvelope, NamesTheInvalidField) {
  struct Case {
    const char *field, *value, *says;
  };
  constexpr Case kCases[] = {
      {"kind", "7", "kind: is not of type string"},
      {"kind", "\"order\"", "kind: \"order\" is not a known kind"},
      {"kind", "\"\"", "kind: "},
      {"context", "0", "context: is not between 1 and 4294967295"},
      {"context", "4294967296", "context: is not between"},
      {"context", "-1", "context: is not of type whole number"},
      {"context", "1.5", "context: is not of type whole number"},
      {"context", "\"9\"", "context: is not of type whole number"},
      {"sent", "0", "sent: is not between"},
      {"sent", "true", "sent: is not of type whole number"},
      {"signer", "[]", "signer: is not of type string"},
      {"signer", "\"abc\"", "signer: is not an ed25519 public key"},
      {"body", "[]", "body: is not of type object"},
      {"body", "\"x\"", "body: is not of type object"},
      {"body", "null", "body: is not of type object"},
  };
  for (const Case& each : kCases) {
    json sealed = make_sealed();
    sealed[each.field] = json::parse(each.value);
    EXPECT_THAT(get_parse_error(sealed), StartsWith(each.says)) << each.field << '=' << each.value;
  }
  for (const char* field : {"kind", "context", "sent", "signer", "body"}) {
    json sealed = make_sealed();
    sealed.erase(field);
    EXPECT_EQ(get_parse_error(sealed), std::string(field) + ": is missing");
  }
}

TEST_F(SealedEnvelope, HasNoOtherFields) {
  json sealed = make_sealed();
  sealed["more"] = 1;
  EXPECT_THAT(get_parse_error(sealed), HasSubstr("\"more\" is not a known field"));
  for (const char* text : {"[]", "null", "5", "\"envelope\""})
    EXPECT_THAT(get_parse_error(json::parse(text)), HasSubstr("is not of type object"));
}

// Every field is signed: a changed value invalidates the signature.
TEST_F(SealedEnvelope, IsInvalidForAnythingElse) {
  const std::string other = SigningKey::make().public_key();
  const std::vector<std::pair<std::string, json>> changes{{"kind", "logs"},
                                                          {"context", 10},
                                                          {"sent", kSentAt + 1},
                                                          {"body", {{"text", "héllo"}, {"number", 6}}},
                                                          {"algorithm", "rsa"},
                                                          {"signer", other},
                                                          {"signature", std::string(128, 'a')},
                                                          {"signature", ""},
                                                          {"signature", 7}};
  for (const auto& [field, value] : changes) {
    json sealed = make_sealed();
    sealed[field] = value;
    EXPECT_NE(get_error(sealed), "") << field;
  }
  json bare = make_sealed();
  bare.erase("signature");
  EXPECT_THAT(get_error(bare), StartsWith("signature: is missing"));
}

TEST_F(SealedEnvelope, IsValidOnlyForItsKey) {
  const SigningKey other = SigningKey::make();
  EXPECT_THAT(get_error(make_sealed(), kSentAt, other.public_key()), StartsWith("signer: "));
  EXPECT_THAT(get_error(make_sealed(), kSentAt, "abc"), StartsWith("signer: "));
  json forged = seal({EnvelopeKind::answer, 9, kSentAt, ""}, json::object(), other).value();
  forged["signer"] = key_.public_key();
  EXPECT_THAT(get_error(forged), StartsWith("signature: "));
}

TEST_F(SealedEnvelope, IsValidWithinTheClockWindow) {
  EXPECT_EQ(get_error(make_sealed(), kSentAt + kSignatureWindowS), "");
  EXPECT_EQ(get_error(make_sealed(), kSentAt - kSignatureWindowS), "");
  EXPECT_THAT(get_error(make_sealed(), kSentAt + kSignatureWindowS + 1), StartsWith("sent: 901 s ago"));
  EXPECT_THAT(get_error(make_sealed(), kSentAt - kSignatureWindowS - 1), HasSubstr("ahead of the clock here"));
}

// A signature of one kind is not valid for another kind.
TEST_F(SealedEnvelope, IsNotAReceipt) {
  json receipt{{"kind", "answer"}, {"context", 9}, {"sent", kSentAt}, {"body", json::object()}};
  ASSERT_TRUE(sign(receipt, "receipt", key_));
  EXPECT_THAT(get_error(receipt), StartsWith("signature: "));
}

TEST(MessageNames, RoundTrip) {
  const MessageRef name{12, 101, std::string(64, 'a')};
  const auto read = parse_message_ref(json::parse(to_json(name).dump()));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->caller, 12U);
  EXPECT_EQ(read->id, 101U);
  EXPECT_EQ(read->content, name.content);
}

TEST(MessageNames, NameTheInvalidField) {
  const json good = to_json(MessageRef{12, 101, std::string(64, 'a')});
  for (const char* field : {"caller", "id", "content"}) {
    json bad = good;
    bad.erase(field);
    EXPECT_EQ(parse_message_ref(bad).error().message, std::string(field) + ": is missing");
    bad[field] = json::array();
    EXPECT_THAT(parse_message_ref(bad).error().message, StartsWith(std::string(field) + ": is not of type "));
  }
  for (const char* text : {"", "A", "g", " ", "aa"}) {
    json bad = good;
    bad["content"] = std::string(63, 'a') + text;
    EXPECT_THAT(parse_message_ref(bad).error().message, StartsWith("content: ")) << text;
  }
  for (const char* field : {"caller", "id"}) {
    for (const std::uint64_t number :
         {std::uint64_t{0}, std::uint64_t{1} << 32, std::numeric_limits<std::uint64_t>::max()}) {
      json bad = good;
      bad[field] = number;
      EXPECT_THAT(parse_message_ref(bad).error().message, StartsWith(std::string(field) + ": is not between"));
    }
  }
  EXPECT_THAT(parse_message_ref(json("x")).error().message, HasSubstr("is not of type object"));
}

}  // namespace
}  // namespace mycojobs
