#include "api/artifacts/artifact_tickets.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/parse.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

constexpr std::size_t kMaxTicketBytes = 300;
constexpr std::string_view kAnonymous = "a", kOperator = "o", kToken = "t";
// A stored key outlives the tickets that are signed until it is stored again.
constexpr std::uint64_t kKeyLifetimeMs = 10 * kTicketLifetimeMs, kKeyRenewalMs = 3 * kTicketLifetimeMs;

// Returns the signed text: the claims, which are the ticket without its signature, and the file. It is JSON, so that
// parts of one field cannot move to another field.
std::string encode_signed_text(const std::string& claims, const TicketObject& object) {
  return dump_json({"mycojobs artifact ticket 2", claims, object.context, object.job_key, object.name, object.sha256});
}

}  // namespace

Result<void> ArtifactTickets::publish_key(TicketKeyStore& store, Id context) {
  const std::uint64_t now_ms = clock_.boot_ms();
  {
    const std::lock_guard lock(mutex_);
    const auto published = published_ms_.find(context);
    if (published != published_ms_.end() && now_ms < published->second + kKeyRenewalMs) return {};
  }
  MJ_CHECK(store.store_ticket_key(context, key_.public_key(), kKeyLifetimeMs));
  const std::lock_guard lock(mutex_);
  published_ms_[context] = now_ms;
  return {};
}

// Format: ACTOR.ROLE.UNTIL.KEY.SIGNATURE, with the expiry time in milliseconds since the Unix epoch, and the public key
// of the signature.
std::string ArtifactTickets::create(const RpcCaller& caller, const TicketObject& object) const {
  const std::string_view role = caller.anonymous ? kAnonymous : caller.operator_token ? kOperator : kToken;
  const std::string claims = std::to_string(caller.actor) + '.' + std::string(role) + '.' +
                             std::to_string(clock_.unix_ms() + kTicketLifetimeMs) + '.' + key_.public_key();
  return claims + '.' + key_.sign(encode_signed_text(claims, object));
}

Result<Ticket> ArtifactTickets::verify(const std::string& ticket, const TicketObject& object) const {
  const auto invalid = [] {
    return fail(Code::denied, "the ticket is not for this file, or was not created by this server");
  };
  const auto signature_dot = ticket.rfind('.');
  if (ticket.size() > kMaxTicketBytes || signature_dot == std::string::npos) return invalid();
  const std::string claims = ticket.substr(0, signature_dot);
  const auto role_dot = claims.find('.'), key_dot = claims.rfind('.');
  if (role_dot == std::string::npos || key_dot == role_dot) return invalid();
  const auto until_dot = claims.rfind('.', key_dot - 1);
  const std::string key = claims.substr(key_dot + 1);
  if (!is_public_key(key) || !verify_ed25519(key, encode_signed_text(claims, object), ticket.substr(signature_dot + 1)))
    return invalid();
  const std::string_view text(claims);
  const std::string_view role = text.substr(role_dot + 1, until_dot - role_dot - 1);
  std::uint64_t actor = 0, until_ms = 0;
  if (until_dot <= role_dot || (role != kAnonymous && role != kOperator && role != kToken) ||
      !parse_u64(text.substr(0, role_dot), actor) || actor > UINT32_MAX ||
      !parse_u64(text.substr(until_dot + 1, key_dot - until_dot - 1), until_ms))
    return invalid();
  if (clock_.unix_ms() >= until_ms) return fail(Code::denied, "the ticket has expired");
  return Ticket{RpcCaller{static_cast<Id>(actor), role == kAnonymous, role == kOperator}, object.context,
                key == key_.public_key() ? std::string() : key};
}

}  // namespace mycojobs::api
