#include "security/signatures.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "model/codec.h"
#include "text/cbor.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::string_view kMessageLine = "mycojobs message 1\n";
// Fields that others write after a message was signed, and the signature itself.
constexpr const char* kNotSigned[] = {"status",       "updated_at",       "logs",     "error",
                                      "transport_id", "transport_status", "signature"};

Message without_unknown(Message message) {
  message.unknown.clear();
  for (Job& job : message.job) job.unknown.clear();
  if (message.flow) message.flow->unknown.clear();
  return message;
}

Result<std::string> signed_bytes(const Message& message) {
  const Message known = without_unknown(message);
  // In JSON, bytes that are not text would be replaced, so such fields are rejected.
  for (const auto& [name, value] : encode(known)) {
    if (!is_utf8(value)) return fail(Code::invalid, name + ": is not UTF-8, and cannot be signed");
  }
  json content = to_json(known);
  for (const char* name : kNotSigned) content.erase(name);
  MJ_TRY(bytes, encode_cbor(content));
  return std::string(kMessageLine) + bytes;
}

Result<std::string> signed_bytes(json object, std::string_view kind) {
  if (!object.is_object()) return fail(Code::invalid, std::string(kind) + ": is not an object");
  object.erase("signature");
  MJ_TRY(bytes, encode_cbor(object));
  return "mycojobs " + std::string(kind) + " 1\n" + bytes;
}

struct SignedFields {
  std::string algorithm, signer, signature;
};
Result<void> check(const SignedFields& by, const std::string& pubkey, const Result<std::string>& bytes) {
  if (by.signature.empty()) return fail(Code::denied, "signature: is missing");
  if (by.algorithm != kEd25519) {
    return fail(Code::denied,
                "algorithm: " + excerpt(by.algorithm) + " is not known; " + std::string(kEd25519) + " is");
  }
  if (!is_public_key(pubkey))
    return fail(Code::denied,
                "signer: no key is recorded for the signer; set it with mycojobs actor update ID --key KEY (of a "
                "runner: runner update ID --pubkey KEY)");
  if (by.signer != pubkey)
    return fail(Code::denied, "signer: " + excerpt(by.signer, 80) + " is not its key, " + pubkey);
  if (!bytes) return fail(Code::denied, bytes.error().message);
  if (!verify_ed25519(pubkey, *bytes, by.signature))
    return fail(Code::denied, "signature: is not of this content by this key");
  return {};
}

std::string text_of(const json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

Result<void> sign(Message& message, const SigningKey& key) {
  if (message.created_at == 0) return fail(Code::invalid, "created_at: is missing; the signed text must contain it");
  if (message.target_context == 0 && message.target_address.empty())
    return fail(Code::invalid,
                "target_context: is missing, and so is target_address; the signed text must contain one of them");
  message.algorithm = kEd25519;
  message.signer = key.public_key();
  MJ_TRY(bytes, signed_bytes(message));
  message.signature = key.sign(bytes);
  return {};
}

Result<void> check_signature(const Message& message, const SignatureCheck& against) {
  MJ_CHECK(check({message.algorithm, message.signer, message.signature}, against.pubkey, signed_bytes(message)));
  return check_moment("created_at", message.created_at, against);
}

Result<void> check_moment(const char* field, std::uint64_t moment_s, const SignatureCheck& against) {
  const std::uint64_t apart = std::max(moment_s, against.now_s) - std::min(moment_s, against.now_s);
  if (apart <= against.window_s) return {};
  return fail(Code::denied, std::string(field) + ": " + std::to_string(apart) + " s " +
                                (moment_s < against.now_s ? "ago" : "ahead of the clock here") + "; at most " +
                                std::to_string(against.window_s) + ": sign it again, or correct the clocks");
}

Result<std::string> content_hash(const Message& message) {
  MJ_TRY(bytes, signed_bytes(message));
  return sha256_hex(bytes);
}

void LogHash::add(const Log& line) {
  if (line.stream == LogStream::system) return;
  // The length before each line makes the encoding unambiguous.
  hash_.update(std::string(to_string(line.stream)) + ' ' + std::to_string(line.text.size()) + '\n');
  hash_.update(line.text);
  ++lines_;
}

std::string result_hash(const TextMap& result, const std::vector<std::string>& result_json) {
  Sha256 hash;
  const auto add = [&hash](std::string_view kind, std::string_view text) {
    hash.update(std::string(kind) + ' ' + std::to_string(text.size()) + '\n');
    hash.update(text);
  };
  for (const auto& [name, value] : result) {
    const bool json = std::find(result_json.begin(), result_json.end(), name) != result_json.end();
    add("name", name);
    add(json ? "json" : "text", value);
  }
  return hash.hex();
}

Result<void> sign(json& object, std::string_view kind, const SigningKey& key) {
  if (!object.is_object()) return fail(Code::invalid, std::string(kind) + ": is not an object");
  object["algorithm"] = kEd25519;
  object["signer"] = key.public_key();
  MJ_TRY(bytes, signed_bytes(object, kind));
  object["signature"] = key.sign(bytes);
  return {};
}

Result<void> check_signature(const json& object, std::string_view kind, const std::string& pubkey) {
  return check({text_of(object, "algorithm"), text_of(object, "signer"), text_of(object, "signature")}, pubkey,
               signed_bytes(object, kind));
}

}  // namespace mycojobs
