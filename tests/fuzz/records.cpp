// Fuzz targets for records as hashes and as JSON, for sealed and signed data, and for policies.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "fuzz/targets.h"
#include "messaging/envelope.h"
#include "model/codec.h"
#include "model/job_validation.h"
#include "model/policy_json.h"
#include "security/ceilings.h"
#include "security/profiles.h"
#include "security/sender_check.h"
#include "security/signatures.h"
#include "text/cbor.h"
#include "text/json.h"

namespace mycojobs::fuzz {
namespace {

using nlohmann::json;

const SigningKey& own_key() {
  static const SigningKey key = SigningKey::make();
  return key;
}

Fields parse_fields(std::string_view text) {
  Fields fields;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::string_view name = line.substr(0, line.find('='));
    // The names in a hash are unique.
    const bool again = std::any_of(fields.begin(), fields.end(), [&](const auto& each) { return each.first == name; });
    if (!again) fields.emplace_back(name, line.substr(std::min(name.size() + 1, line.size())));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return fields;
}

// A record that was read and written must be read again with the same contents, as a hash and as JSON.
template <class R>
void check_round_trips(const R& record) {
  const Fields hash = encode(record);
  const DecodeResult<R> from_hash = decode<R>(hash);
  must(from_hash.ok(), "a hash that was written has problems: " + join(from_hash.problems));
  must(encode(from_hash.record) == hash, "a hash that was written reads otherwise");

  // The first conversion to JSON may change names written by other clients and bytes that are not UTF-8.
  const json once = to_json(record);
  const DecodeResult<R> from_json = decode_json<R>(once);
  const json twice = to_json(from_json.record);
  const DecodeResult<R> again = decode_json<R>(twice);
  must(again.ok(), "JSON that was written has problems: " + join(again.problems));
  must(to_json(again.record) == twice, "JSON that was written reads otherwise");
  must(parse_json(dump_json(twice)).has_value(), "JSON that was written is too deep to be read");
}

void check_signing(const Message& message) {
  Message own = message;
  const std::string hash = content_hash(message).value_or("");
  if (!sign(own, own_key())) return;
  const SignatureCheck against{own_key().public_key(), own.created_at, kSignatureWindowS};
  must(check_signature(own, against).has_value(), "what was signed does not check");
  const std::string signed_hash = content_hash(own).value_or("");
  must(!signed_hash.empty(), "what was signed has no hash");
  const Message stored = decode<Message>(encode(own)).record;
  must(content_hash(stored).value_or("") == signed_hash, "a message that was stored is another one");
  must(check_signature(stored, against).has_value(), "what was signed does not check when it was stored");
  if (!hash.empty() && own.signer == message.signer && own.algorithm == message.algorithm)
    must(hash == signed_hash, "a signature changes what is signed");
  own.message += '!';
  must(!check_signature(own, against).has_value(), "another text has the same signature");
}

void check_message(const Message& message) {
  check_round_trips(message);
  check_signing(message);
  (void)check_signature(message, {message.signer, message.created_at, kSignatureWindowS});
  Message own = message;
  const bool settled = fill_and_check_sender(own, {12, 1}).has_value();
  for (const Job& job : own.job) {
    (void)validate(job);
    if (settled) must(job.caller_id == 12 && job.context_id == 1, "a job of the message is another's");
  }
  if (settled && own.flow) must(own.flow->caller_id == 12 && own.flow->context_id == 1, "its flow is another's");
}

json altered(json sealed, const char* name, json value) {
  sealed[name] = std::move(value);
  return sealed;
}

}  // namespace

int fuzz_message_hash(std::string_view text) {
  const auto decoded = decode<Message>(parse_fields(text));
  check_message(decoded.record);
  return decoded.ok() ? 1 : 0;
}

int fuzz_message_json(std::string_view text) {
  const auto parsed = parse_json(text, 1U << 20);
  must(is_json(text) || !parsed, "JSON is taken that is none");
  if (!parsed) return 0;
  const auto decoded = decode_json<Message>(*parsed);
  check_message(decoded.record);
  return decoded.ok() ? 1 : 0;
}

int fuzz_job_hash(std::string_view text) {
  const auto decoded = decode<Job>(parse_fields(text));
  check_round_trips(decoded.record);
  const auto problems = validate(decoded.record);
  Job job = decoded.record;
  if (fill_and_check_sender(job, {12, 1})) must(job.caller_id == 12 && job.context_id == 1, "a job is another's");
  return decoded.ok() && problems.empty() ? 1 : 0;
}

int fuzz_envelope(std::string_view text) {
  const auto sealed = parse_json(text);
  if (!sealed) return 0;
  const auto envelope = parse_envelope(*sealed);
  (void)check_seal(*sealed, {envelope ? envelope->signer : "", envelope ? envelope->sent_s : 0, kSignatureWindowS});
  if (!envelope) return 0;
  const json& body = (*sealed)["body"];
  if (const auto name = body.find("of"); name != body.end()) {
    if (const auto of = parse_message_ref(*name)) {
      const auto again = parse_message_ref(to_json(*of));
      must(again && again->caller == of->caller && again->id == of->id && again->content == of->content,
           "the name of a message reads otherwise");
    }
  }
  const auto own = seal(*envelope, body, own_key());
  if (!own) return 1;  // too deep to be signed
  const SignatureCheck against{own_key().public_key(), envelope->sent_s, kSignatureWindowS};
  must(check_seal(*own, against).has_value(), "a seal of ours does not check");
  const auto travelled = parse_json(dump_json(*own));
  must(travelled && check_seal(*travelled, against), "a seal of ours does not check after its way");
  const auto read = parse_envelope(*travelled);
  must(read && read->kind == envelope->kind && read->context == envelope->context && read->sent_s == envelope->sent_s,
       "an envelope of ours reads otherwise");
  must(!check_seal(altered(*own, "context", envelope->context == 1 ? 2 : 1), against),
       "it is good for another context");
  return 1;
}

int fuzz_receipt(std::string_view text) {
  auto receipt = parse_json(text);
  if (!receipt) return 0;
  const std::string signer = receipt->is_object() && receipt->contains("signer") && (*receipt)["signer"].is_string()
                                 ? (*receipt)["signer"].get<std::string>()
                                 : "";
  (void)check_signature(*receipt, "receipt", signer);
  json own = *receipt;
  if (!sign(own, "receipt", own_key())) return 0;
  const auto stored = parse_json(dump_json(own));
  must(stored && check_signature(*stored, "receipt", own_key().public_key()),
       "a receipt that was stored does not check");
  must(!check_signature(*stored, "envelope", own_key().public_key()), "a receipt is good as something else");
  must(!check_signature(altered(own, "job", "another"), "receipt", own_key().public_key()) ||
           own["job"] == json("another"),
       "a receipt is good for another job");
  return 1;
}

int fuzz_policy(std::string_view text) {
  bool taken = false;
  for (const PolicyKind kind : {PolicyKind::request, PolicyKind::ceiling}) {
    const ParsedPolicy read = read_policy(text, "policy", kind);
    if (!read.ok()) continue;
    taken = true;
    if (kind == PolicyKind::ceiling) continue;
    const std::string written = write_policy(read.request);
    const ParsedPolicy again = read_policy(written, "policy");
    must(again.ok(), "a policy that was written is refused: " + join(again.problems) + " in " + written);
    must(again.request == read.request, "a policy that was written reads otherwise: " + written);
    const Ceiling ceiling{default_ceiling(), 1, {"/var/lib/mycojobs"}};
    for (const Profile& each : profiles()) {
      const GrantedPolicy weighed = apply_ceiling(each.policy, read.request, ceiling);
      must(weighed.problems.empty() == apply_ceiling_or_fail(each.policy, read.request, ceiling).has_value(),
           "a policy is refused and is not");
      for (const auto& row : policies::number_rows()) {
        const std::uint64_t got = row.get(weighed.policy), most = row.get(ceiling.max);
        const bool unlimited = row.can_be_unlimited && most == 0;
        must(unlimited || (got <= most && (got != 0 || !row.can_be_unlimited)), "a policy is above its ceiling");
      }
    }
  }
  return taken ? 1 : 0;
}

}  // namespace mycojobs::fuzz
