#include "security/signatures.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "model/codec.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint32_t kNow = 1'800'000'000;

Message make_message() {
  Message message;
  message.id = 101;
  message.caller_id = 12;
  message.context_id = 7;
  message.message = "run this";
  message.created_at = kNow;
  message.target_context = 9;
  message.timeout_result = 60;
  Job job;
  job.id = 2001;
  job.caller_id = 12;
  job.script = "print(1)";
  job.script_type = "python";
  job.env_vars = {{"A", "1"}};
  message.job = {job};
  return message;
}

class Signatures : public ::testing::Test {
 protected:
  SigningKey key_ = SigningKey::make();
  Message signed_ = [this] {
    Message message = make_message();
    EXPECT_TRUE(sign(message, key_));
    return message;
  }();
  std::string get_error(const Message& message, std::uint64_t now_s = kNow) const {
    const auto checked = check_signature(message, {key_.public_key(), now_s});
    if (checked) return "";
    EXPECT_EQ(checked.error().code, Code::denied);
    return checked.error().message;
  }
};

TEST_F(Signatures, AreValidAcrossARedisHashAndJson) {
  EXPECT_EQ(get_error(signed_), "");
  EXPECT_EQ(get_error(decode<Message>(encode(signed_)).record), "");
  EXPECT_EQ(get_error(decode_json<Message>(json::parse(to_json(signed_).dump())).record), "");
}

TEST_F(Signatures, AreValidForLaterStateChanges) {
  signed_.status = MessageStatus::acknowledged;
  signed_.updated_at = kNow + 5;
  signed_.error = "late";
  signed_.transport_id = "4f";
  signed_.transport_status = "delivered";
  signed_.logs.push_back({1, 1, LogStream::out, "line"});
  signed_.unknown = {{"colour", "red"}};
  signed_.job.front().unknown = {{"colour", "red"}};
  EXPECT_EQ(get_error(signed_), "");
}

TEST_F(Signatures, SignedFieldsCannotBeChanged) {
  const std::pair<const char*, std::function<void(Message&)>> changes[] = {
      {"id", [](Message& m) { m.id = 102; }},
      {"caller", [](Message& m) { m.caller_id = 13; }},
      {"context", [](Message& m) { m.context_id = 8; }},
      {"text", [](Message& m) { m.message += "!"; }},
      {"type", [](Message& m) { m.message_type = MessageType::chat; }},
      {"format", [](Message& m) { m.message_format_type = MessageFormatType::html; }},
      {"target", [](Message& m) { m.target_context = 10; }},
      {"address", [](Message& m) { m.target_address = "http://127.0.0.1:1"; }},
      {"key", [](Message& m) { m.target_key = "of another coordinator"; }},
      {"topic", [](Message& m) { m.topic = "runner20"; }},
      {"time-out", [](Message& m) { m.timeout_result = 61; }},
      {"created", [](Message& m) { m.created_at += 1; }},
      {"script", [](Message& m) { m.job.front().script = "print(2)"; }},
      {"variable", [](Message& m) { m.job.front().env_vars["A"] = "2"; }},
      {"a job more", [](Message& m) { m.job.push_back(m.job.front()); }},
      {"a job less", [](Message& m) { m.job.clear(); }},
      {"a flow", [](Message& m) { m.flow = Flow{}; }},
      {"a node", [](Message& m) { m.nodes.emplace_back(); }},
  };
  for (const auto& [field, change] : changes) {
    Message message = signed_;
    change(message);
    EXPECT_NE(get_error(message).find("not of this content"), std::string::npos) << field << ": " << get_error(message);
  }
}

TEST_F(Signatures, AreValidOnlyForTheActorsKey) {
  Message forged = make_message();
  const SigningKey other = SigningKey::make();
  ASSERT_TRUE(sign(forged, other));
  EXPECT_NE(get_error(forged).find("is not its key"), std::string::npos);
  forged.signer = key_.public_key();
  EXPECT_NE(get_error(forged).find("not of this content"), std::string::npos);
  Message without = make_message();
  EXPECT_NE(get_error(without).find("is missing"), std::string::npos);
  signed_.algorithm = "none";
  EXPECT_NE(get_error(signed_).find("algorithm"), std::string::npos);
  EXPECT_FALSE(check_signature(signed_, {"", kNow})) << "an actor without a key cannot sign";
}

TEST_F(Signatures, ExpireAfterAQuarterOfAnHour) {
  EXPECT_EQ(get_error(signed_, kNow + kSignatureWindowS), "");
  EXPECT_EQ(get_error(signed_, kNow - kSignatureWindowS), "");
  EXPECT_NE(get_error(signed_, kNow + kSignatureWindowS + 1).find("ago"), std::string::npos);
  EXPECT_NE(get_error(signed_, kNow - kSignatureWindowS - 1).find("ahead"), std::string::npos);
  EXPECT_NE(get_error(signed_, 0).find("ahead"), std::string::npos);
}

TEST_F(Signatures, AreRefusedForAmbiguousContent) {
  Message message = make_message();
  message.message = "\xff";
  EXPECT_FALSE(sign(message, key_));
  message = make_message();
  message.created_at = 0;
  EXPECT_FALSE(sign(message, key_));
  message = make_message();
  message.target_context = 0;
  EXPECT_FALSE(sign(message, key_)) << "a message without sender or receiver is not signed";
}

TEST_F(Signatures, ReceiptIsNoMessageAndCannotBeChanged) {
  json receipt = {{"job", "job:12:2001"}, {"status", "ok"}, {"wall_us", 1200}, {"layers", {"seccomp"}}};
  ASSERT_TRUE(sign(receipt, "receipt", key_));
  EXPECT_TRUE(check_signature(receipt, "receipt", key_.public_key()));
  EXPECT_TRUE(check_signature(json::parse(receipt.dump()), "receipt", key_.public_key()));
  json changed = receipt;
  changed["status"] = "exit";
  EXPECT_FALSE(check_signature(changed, "receipt", key_.public_key()));
  changed = receipt;
  changed["more"] = 1;
  EXPECT_FALSE(check_signature(changed, "receipt", key_.public_key()));
  EXPECT_FALSE(check_signature(receipt, "receipt", SigningKey::make().public_key()));
  EXPECT_FALSE(check_signature(json::array(), "receipt", key_.public_key()));
  EXPECT_FALSE(check_signature(json{{"signature", 1}}, "receipt", key_.public_key()));
}

}  // namespace
}  // namespace mycojobs
