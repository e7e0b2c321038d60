#include "security/signatures.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "model/codec.h"
#include "text/cbor.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::string_view kMessagePrefix = "mycojobs message 1\n";
// Fields that are written after the message was signed, and the signature itself.
constexpr const char* kUnsignedFields[] = {"status",       "updated_at",       "logs",     "error",
                                           "transport_id", "transport_status", "signature"};

Message remove_unknown_fields(Message message) {
  message.unknown.clear();
  for (Job& job : message.job) job.unknown.clear();
  if (message.flow) message.flow->unknown.clear();
  return message;
}

Result<std::string> encode_signed_content(const Message& message) {
  const Message message_fields = remove_unknown_fields(message);
  // In JSON, bytes that are not text would be replaced, so such fields are rejected.
  for (const auto& [name, value] : encode(message_fields)) {
    if (!is_utf8(value)) return fail(Code::invalid, name + ": is not UTF-8, and cannot be signed");
  }
  json content = to_json(message_fields);
  for (const char* name : kUnsignedFields) content.erase(name);
  MJ_TRY(bytes, encode_cbor(content));
  return std::string(kMessagePrefix) + bytes;
}

Result<std::string> encode_signed_content(json object, std::string_view kind) {
  if (!object.is_object()) return fail(Code::invalid, std::string(kind) + ": is not an object");
  object.erase("signature");
  MJ_TRY(bytes, encode_cbor(object));
  return "mycojobs " + std::string(kind) + " 1\n" + bytes;
}

struct SignedFields {
  std::string algorithm, signer, signature;
};
Result<void> check_signed_fields(const SignedFields& fields, const std::string& pubkey,
                                 const Result<std::string>& bytes) {
  if (fields.signature.empty()) return fail(Code::denied, "signature: is missing");
  if (fields.algorithm != kEd25519) {
    return fail(Code::denied,
                "algorithm: " + excerpt(fields.algorithm) + " is not known; " + std::string(kEd25519) + " is");
  }
  if (!is_public_key(pubkey))
    return fail(Code::denied,
                "signer: no key is recorded for the signer; set it with mycojobs actor update ID --key KEY (of a "
                "runner: runner update ID --pubkey KEY)");
  if (fields.signer != pubkey)
    return fail(Code::denied, "signer: " + excerpt(fields.signer, 80) + " is not its key, " + pubkey);
  if (!bytes) return fail(Code::denied, bytes.error().message);
  if (!verify_ed25519(pubkey, *bytes, fields.signature))
    return fail(Code::denied, "signature: is not of this content by this key");
  return {};
}

}  // namespace

Result<void> sign(Message& message, const SigningKey& key) {
  if (message.created_at == 0) return fail(Code::invalid, "created_at: is missing; the signed text must contain it");
  if (message.target_context == 0 && message.target_address.empty())
    return fail(Code::invalid,
                "target_context: is missing, and so is target_address; the signed text must contain one of them");
  message.algorithm = kEd25519;
  message.signer = key.public_key();
  MJ_TRY(bytes, encode_signed_content(message));
  message.signature = key.sign(bytes);
  return {};
}

Result<void> check_signature(const Message& message, const SignatureCheck& check) {
  MJ_CHECK(check_signed_fields({message.algorithm, message.signer, message.signature}, check.pubkey,
                               encode_signed_content(message)));
  return check_time_window("created_at", message.created_at, check);
}

Result<void> check_time_window(const char* field, std::uint64_t time_s, const SignatureCheck& check) {
  const std::uint64_t difference_s = std::max(time_s, check.now_s) - std::min(time_s, check.now_s);
  if (difference_s <= check.window_s) return {};
  return fail(Code::denied, std::string(field) + ": " + std::to_string(difference_s) + " s " +
                                (time_s < check.now_s ? "ago" : "ahead of the clock here") + "; at most " +
                                std::to_string(check.window_s) + ": sign it again, or correct the clocks");
}

Result<std::string> content_hash(const Message& message) {
  MJ_TRY(bytes, encode_signed_content(message));
  return sha256_hex(bytes);
}

void LogHash::add(const Log& line) {
  if (line.stream == LogStream::system) return;
  // The length before each line makes the encoding unambiguous.
  hash_.update(std::string(to_string(line.stream)) + ' ' + std::to_string(line.text.size()) + '\n');
  hash_.update(line.text);
  ++lines_;
}

std::string compute_result_hash(const TextMap& result, const std::vector<std::string>& result_json) {
  Sha256 hash;
  const auto add = [&hash](std::string_view kind, std::string_view text) {
    hash.update(std::string(kind) + ' ' + std::to_string(text.size()) + '\n');
    hash.update(text);
  };
  for (const auto& [name, value] : result) {
    const bool is_json = std::find(result_json.begin(), result_json.end(), name) != result_json.end();
    add("name", name);
    add(is_json ? "json" : "text", value);
  }
  return hash.hex();
}

Result<void> sign(json& object, std::string_view kind, const SigningKey& key) {
  if (!object.is_object()) return fail(Code::invalid, std::string(kind) + ": is not an object");
  object["algorithm"] = kEd25519;
  object["signer"] = key.public_key();
  MJ_TRY(bytes, encode_signed_content(object, kind));
  object["signature"] = key.sign(bytes);
  return {};
}

Result<void> check_signature(const json& object, std::string_view kind, const std::string& pubkey) {
  return check_signed_fields(
      {text_field(object, "algorithm"), text_field(object, "signer"), text_field(object, "signature")}, pubkey,
      encode_signed_content(object, kind));
}

}  // namespace mycojobs
