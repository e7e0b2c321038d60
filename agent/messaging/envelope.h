// Envelopes: data that one supervisor sends to another, signed by the sending coordinator. Pure and thread-safe.
//
//   kind     body                                                    permitted sender
//   message  {message: a signed message}                             any supervisor, since an actor signs the message
//   answer   {of, status, error?, jobs, flow?}                       the supervisor that the message was sent to
//   logs     {of, job, lines}                                        as answer
//   cancel   {of}                                                    the supervisor that has sent the message
//   file     {of, by?, sha256, bytes, offset, data}                  with `by`, the actor's key: the supervisor that
//                                                                    sends the message; otherwise as answer
//
// `of` identifies a message by the ids of its sender: {caller, id, content}, where content is content_hash()
// (security/signatures.h).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/ed25519.h"
#include "base/result.h"
#include "security/signatures.h"

namespace mycojobs {

enum class EnvelopeKind { message, answer, logs, cancel, file };
std::string_view to_string(EnvelopeKind);

struct Envelope {
  EnvelopeKind kind = EnvelopeKind::message;
  Id context = 0;            // context of the recipient
  std::uint64_t sent_s = 0;  // Unix time in seconds
  std::string signer;        // public key of the coordinator that sealed the envelope
};

// Signs an envelope. Returns its transmitted form, with algorithm, signer and signature.
Result<nlohmann::json> seal(const Envelope&, const nlohmann::json& body, const SigningKey&);
// Checks the format only. If there is no error, `body` is an object. Error invalid: names the field.
Result<Envelope> parse_envelope(const nlohmann::json& sealed);
// Error denied: the key is not expected.pubkey, the signature does not match the content, or sent_s is outside of the
// window around the local clock.
Result<void> check_seal(const nlohmann::json& sealed, const SignatureCheck& expected);

// Identifies the message that an answer, log lines, a file or a cancel request refers to, by the ids that the sender of
// the message uses.
struct MessageRef {
  Id caller = 0, id = 0;
  std::string content;  // content_hash()
};
nlohmann::json to_json(const MessageRef&);
Result<MessageRef> parse_message_ref(const nlohmann::json&);

}  // namespace mycojobs
