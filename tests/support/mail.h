// Messages of another host, addressed to this one.
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
inline Message signed_mail(Id id, Id target, const std::string& target_key, const Clock& clock, const SigningKey& by) {
  Message out;
  out.id = id;
  out.caller_id = 12;
  out.context_id = 7;
  out.message = "hello";
  out.message_type = MessageType::mail;
  out.target_context = target;
  out.target_address = "http://here:1";
  out.target_key = target_key;
  out.created_at = static_cast<std::uint32_t>(clock.unix_ms() / 1000);
  EXPECT_TRUE(sign(out, by));
  return out;
}

inline nlohmann::json sealed(const Message& message, Id context, const Clock& clock, const SigningKey& peer) {
  return seal({EnvelopeKind::message, context, clock.unix_ms() / 1000, ""}, {{"message", to_json(message)}}, peer)
      .value();
}

}  // namespace mycojobs::test
