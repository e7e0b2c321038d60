// What one supervisor sends another, signed by the coordinator that sends it. Pure; any thread.
//
//   kind     body                                                    who may send it
//   message  {message: a signed message}                             anybody: the actor's signature counts
//   answer   {of, status, error?, jobs, flow?}                       the supervisor that the message was sent to
//   logs     {of, job, lines}                                        the same
//   cancel   {of}                                                    the supervisor that has sent the message
//   file     {of, by?, sha256, bytes, offset, data}                  with `by`, the actor's key: the supervisor that
//                                                                    sends the message; else as answer
//
// `of` names a message as its sender does: {caller, id, content}, content as content_hash() (signatures.h).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/ed25519.h"
#include "domain/signatures.h"
#include "mycojobs/result.h"

namespace mycojobs {

enum class EnvelopeKind { message, answer, logs, cancel, file };
std::string_view word(EnvelopeKind);

struct Envelope {
  EnvelopeKind kind = EnvelopeKind::message;
  Id context = 0;            // that it is for
  std::uint64_t sent_s = 0;  // Unix time
  std::string signer;        // public key of the coordinator that has sealed it
};

// As it travels: with algorithm, signer and signature.
Result<nlohmann::json> seal(const Envelope&, const nlohmann::json& body, const SigningKey&);
// Its form alone; its `body` is an object then. Error invalid: names the field.
Result<Envelope> read_envelope(const nlohmann::json& sealed);
// Error denied: another key than against.pubkey, another content, sent_s further than the window from the clock here.
Result<void> check_seal(const nlohmann::json& sealed, const SignatureCheck& against);

// Which message an answer, lines or a request to cancel are of, as its sender names it.
struct MessageName {
  Id caller = 0, id = 0;
  std::string content;  // content_hash()
};
nlohmann::json to_json(const MessageName&);
Result<MessageName> read_message_name(const nlohmann::json&);

}  // namespace mycojobs
