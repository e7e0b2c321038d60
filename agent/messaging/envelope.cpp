#include "messaging/envelope.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/log.h"  // unity builds: LogFormat::json must not follow `using nlohmann::json` (-Wshadow)
#include "base/parse.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::string_view kSignatureType = "envelope";
constexpr auto kKindNames = std::to_array<std::string_view>({"message", "answer", "logs", "cancel", "file"});
constexpr auto kEnvelopeFields =
    std::to_array<std::string_view>({"kind", "context", "sent", "body", "algorithm", "signer", "signature"});

Result<const json*> find_field(const json& object, const std::string& name, json::value_t type) {
  const auto position = object.find(name);
  if (position == object.end()) return fail(Code::invalid, name + ": is missing");
  const bool is_number = type == json::value_t::number_unsigned;
  if (is_number ? !position->is_number_unsigned() : position->type() != type)
    return fail(Code::invalid, name + ": is not of type " + (is_number ? "whole number" : json(type).type_name()));
  return &*position;
}

Result<std::string> parse_text_field(const json& object, const std::string& name) {
  MJ_TRY(value, find_field(object, name, json::value_t::string));
  return value->get<std::string>();
}

Result<std::uint64_t> parse_number_field(const json& object, const std::string& name, std::uint64_t max) {
  MJ_TRY(value, find_field(object, name, json::value_t::number_unsigned));
  const auto number = value->get<std::uint64_t>();
  if (number == 0 || number > max) return fail(Code::invalid, name + ": is not between 1 and " + std::to_string(max));
  return number;
}

}  // namespace

std::string_view to_string(EnvelopeKind kind) { return kKindNames.at(static_cast<std::size_t>(kind)); }

Result<json> seal(const Envelope& envelope, const json& body, const SigningKey& key) {
  json sealed{
      {"kind", to_string(envelope.kind)}, {"context", envelope.context}, {"sent", envelope.sent_s}, {"body", body}};
  MJ_CHECK(sign(sealed, kSignatureType, key));
  return sealed;
}

Result<Envelope> parse_envelope(const json& sealed) {
  if (!sealed.is_object()) return fail(Code::invalid, "envelope: is not of type object");
  for (const auto& [name, value] : sealed.items()) {
    if (std::find(kEnvelopeFields.begin(), kEnvelopeFields.end(), name) == kEnvelopeFields.end())
      return fail(Code::invalid, "envelope: " + excerpt(name) + " is not a known field");
  }
  Envelope envelope;
  MJ_TRY(kind, parse_text_field(sealed, "kind"));
  const auto* position = std::find(kKindNames.begin(), kKindNames.end(), kind);
  if (position == kKindNames.end())
    return fail(Code::invalid,
                "kind: " + excerpt(kind) + " is not a known kind; the kinds are message, answer, logs, cancel, file");
  envelope.kind = static_cast<EnvelopeKind>(position - kKindNames.begin());
  MJ_TRY(context, parse_number_field(sealed, "context", UINT32_MAX));
  envelope.context = static_cast<Id>(context);
  MJ_TRY(sent, parse_number_field(sealed, "sent", UINT32_MAX));
  envelope.sent_s = sent;
  MJ_TRY(signer, parse_text_field(sealed, "signer"));
  if (!is_public_key(signer)) return fail(Code::invalid, "signer: is not an ed25519 public key");
  envelope.signer = std::move(signer);
  MJ_CHECK(find_field(sealed, "body", json::value_t::object));
  return envelope;
}

Result<void> check_seal(const json& sealed, const SignatureCheck& expected) {
  MJ_CHECK(check_signature(sealed, kSignatureType, expected.pubkey));
  MJ_TRY(sent, parse_number_field(sealed, "sent", UINT32_MAX));
  return check_time_window("sent", sent, expected);
}

json to_json(const MessageRef& ref) { return {{"caller", ref.caller}, {"id", ref.id}, {"content", ref.content}}; }

Result<MessageRef> parse_message_ref(const json& object) {
  if (!object.is_object()) return fail(Code::invalid, "of: is not of type object");
  MessageRef ref;
  MJ_TRY(caller, parse_number_field(object, "caller", UINT32_MAX));
  ref.caller = static_cast<Id>(caller);
  MJ_TRY(id, parse_number_field(object, "id", UINT32_MAX));
  ref.id = static_cast<Id>(id);
  MJ_TRY(content, parse_text_field(object, "content"));
  if (!is_hex(content, 64)) return fail(Code::invalid, "content: is not of type hash of a message");
  ref.content = std::move(content);
  return ref;
}

}  // namespace mycojobs
