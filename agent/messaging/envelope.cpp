#include "messaging/envelope.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/parse.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::string_view kSealed = "envelope";
constexpr auto kKinds = std::to_array<std::string_view>({"message", "answer", "logs", "cancel", "file"});
constexpr auto kFields =
    std::to_array<std::string_view>({"kind", "context", "sent", "body", "algorithm", "signer", "signature"});

Result<const json*> field(const json& object, const std::string& name, json::value_t type) {
  const auto found = object.find(name);
  if (found == object.end()) return fail(Code::invalid, name + ": is missing");
  const bool number = type == json::value_t::number_unsigned;
  if (number ? !found->is_number_unsigned() : found->type() != type)
    return fail(Code::invalid, name + ": is not of type " + (number ? "whole number" : json(type).type_name()));
  return &*found;
}

Result<std::string> text_field(const json& object, const std::string& name) {
  MJ_TRY(found, field(object, name, json::value_t::string));
  return found->get<std::string>();
}

Result<std::uint64_t> number_field(const json& object, const std::string& name, std::uint64_t max) {
  MJ_TRY(found, field(object, name, json::value_t::number_unsigned));
  const auto number = found->get<std::uint64_t>();
  if (number == 0 || number > max) return fail(Code::invalid, name + ": is not between 1 and " + std::to_string(max));
  return number;
}

}  // namespace

std::string_view to_string(EnvelopeKind kind) { return kKinds.at(static_cast<std::size_t>(kind)); }

Result<json> seal(const Envelope& envelope, const json& body, const SigningKey& key) {
  json sealed{
      {"kind", to_string(envelope.kind)}, {"context", envelope.context}, {"sent", envelope.sent_s}, {"body", body}};
  MJ_CHECK(sign(sealed, kSealed, key));
  return sealed;
}

Result<Envelope> read_envelope(const json& sealed) {
  if (!sealed.is_object()) return fail(Code::invalid, "envelope: is not of type object");
  for (const auto& [name, value] : sealed.items()) {
    if (std::find(kFields.begin(), kFields.end(), name) == kFields.end())
      return fail(Code::invalid, "envelope: " + excerpt(name) + " is not a known field");
  }
  Envelope envelope;
  MJ_TRY(kind, text_field(sealed, "kind"));
  const auto* found = std::find(kKinds.begin(), kKinds.end(), kind);
  if (found == kKinds.end())
    return fail(Code::invalid,
                "kind: " + excerpt(kind) + " is not a known kind; the kinds are message, answer, logs, cancel, file");
  envelope.kind = static_cast<EnvelopeKind>(found - kKinds.begin());
  MJ_TRY(context, number_field(sealed, "context", UINT32_MAX));
  envelope.context = static_cast<Id>(context);
  MJ_TRY(sent, number_field(sealed, "sent", UINT32_MAX));
  envelope.sent_s = sent;
  MJ_TRY(signer, text_field(sealed, "signer"));
  if (!is_public_key(signer)) return fail(Code::invalid, "signer: is not an ed25519 public key");
  envelope.signer = std::move(signer);
  MJ_CHECK(field(sealed, "body", json::value_t::object));
  return envelope;
}

Result<void> check_seal(const json& sealed, const SignatureCheck& against) {
  MJ_CHECK(check_signature(sealed, kSealed, against.pubkey));
  MJ_TRY(sent, number_field(sealed, "sent", UINT32_MAX));
  return check_moment("sent", sent, against);
}

json to_json(const MessageName& name) { return {{"caller", name.caller}, {"id", name.id}, {"content", name.content}}; }

Result<MessageName> read_message_name(const json& object) {
  if (!object.is_object()) return fail(Code::invalid, "of: is not of type object");
  MessageName name;
  MJ_TRY(caller, number_field(object, "caller", UINT32_MAX));
  name.caller = static_cast<Id>(caller);
  MJ_TRY(id, number_field(object, "id", UINT32_MAX));
  name.id = static_cast<Id>(id);
  MJ_TRY(content, text_field(object, "content"));
  if (!is_hex(content, 64)) return fail(Code::invalid, "content: is not of type hash of a message");
  name.content = std::move(content);
  return name;
}

}  // namespace mycojobs
