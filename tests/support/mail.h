// Messages that another host signs and seals for this host.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/clock.h"
#include "base/ed25519.h"
#include "messaging/envelope.h"
#include "model/codec.h"
#include "security/signatures.h"

namespace mycojobs::test {

// A message of caller 12 in context 7 to the local supervisor with the key `target_key`.
inline Message make_signed_message(Id id, Id target, const std::string& target_key, const Clock& clock,
                                   const SigningKey& key) {
  Message message;
  message.id = id;
  message.caller_id = 12;
  message.context_id = 7;
  message.message = "hello";
  message.message_type = MessageType::mail;
  message.target_context = target;
  message.target_address = "http://here:1";
  message.target_key = target_key;
  message.created_at = static_cast<std::uint32_t>(clock.unix_ms() / 1000);
  EXPECT_TRUE(sign(message, key));
  return message;
}

// Returns the sealed envelope of the message, as the supervisor with the key `peer` sends it.
inline nlohmann::json seal_message(const Message& message, Id context, const Clock& clock, const SigningKey& peer) {
  return seal({EnvelopeKind::message, context, clock.unix_ms() / 1000, ""}, {{"message", to_json(message)}}, peer)
      .value();
}

}  // namespace mycojobs::test
