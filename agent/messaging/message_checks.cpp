#include "messaging/message_checks.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "messaging/message_codec.h"
#include "model/codec.h"
#include "net/mycelium_address.h"
#include "text/split.h"
#include "text/utf8.h"

namespace mycojobs {

using nlohmann::json;

Result<Message> parse_signed_message(const json& body, Id context) {
  if (!body.contains("message") || !body["message"].is_object()) return fail(Code::invalid, "message: is missing");
  auto decoded = decode_json<Message>(body["message"]);
  if (!decoded.ok()) return fail(Code::invalid, "message: " + join(decoded.problems));
  Message& message = decoded.record;
  message.unknown.clear();  // unknown fields are not part of the signature
  for (Job& job : message.job) job.unknown.clear();
  if (message.flow) message.flow->unknown.clear();
  if (message.id == 0 || message.caller_id == 0 || message.context_id == 0)
    return fail(Code::invalid, "message: id, caller_id or context_id is missing");
  if (message.job.size() > kMaxMessageJobs)
    return fail(Code::too_large,
                "job: a message carries at most " + std::to_string(kMaxMessageJobs) + " jobs; send a flow for more");
  if (message.target_context != context)
    return fail(Code::denied, "target_context: the message is signed for context " +
                                  std::to_string(message.target_context) + ", not for " + std::to_string(context));
  return std::move(message);
}

Result<void> check_message(const Message& message, const Actor& signer, std::uint64_t now_s) {
  if (message.timeout > kMaxMessageTimeoutS)
    return fail(Code::invalid, "timeout: " + std::to_string(message.timeout) +
                                   " s is more than the limit for a message, " + std::to_string(kMaxMessageTimeoutS));
  SignatureCheck check{signer.pubkey, now_s, kSignatureWindowS};
  check.window_s = std::max(check.window_s, message.timeout);
  MJ_CHECK(check_signature(message, check));
  check.window_s = kSignatureWindowS;
  return message.created_at > now_s ? check_time_window("created_at", message.created_at, check) : Result<void>();
}

Result<void> check_target(const Message& message, const std::string& envelope_signer, const std::string& own_key) {
  if (!message.target_address.empty()) {
    if (message.target_key == own_key) return {};
    return fail(Code::denied, "target_key: it is signed for the coordinator " + excerpt(message.target_key, 80) +
                                  " at " + excerpt(message.target_address, 120) + ", and this one is " + own_key +
                                  ": correct the runner record at the sender and sign the message again");
  }
  if (envelope_signer == own_key) return {};
  return fail(Code::denied, "target_address: is missing, so the message is signed for a context on the sender's host");
}

Result<void> check_node(const std::string& address, const std::string& node, bool allows_other_transport) {
  const auto mycelium = parse_mycelium(address);
  if (!mycelium || mycelium->key.empty() || mycelium->key == node || (node.empty() && allows_other_transport))
    return {};
  return fail(Code::denied, "node: the message was received " +
                                (node.empty() ? "not over Mycelium" : "from the node " + node) +
                                ", but the record on this host names the node " + mycelium->key);
}

std::optional<Refusal> find_send_refusal(Id actor, const AclContext& acl_context) {
  return find_refusal(actor, Action::create, acl_context, {.name = "messages"});
}

}  // namespace mycojobs
