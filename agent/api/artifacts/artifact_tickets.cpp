#include "api/artifacts/artifact_tickets.h"

#include <sodium.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "base/parse.h"
#include "base/random.h"
#include "base/sha256.h"
#include "text/json.h"

namespace mycojobs::api {
namespace {

constexpr std::size_t kKeyBytes = 32, kMaxTicketBytes = 200;
constexpr std::string_view kAnonymous = "a", kOperator = "o", kToken = "t";

}  // namespace

ArtifactTickets::ArtifactTickets(const Clock& clock) : clock_(clock), signing_key_(random_bytes(kKeyBytes)) {}

// The signed text is JSON, so that parts of one field cannot move to another field.
std::string ArtifactTickets::compute_mac(const std::string& claims, const TicketObject& object) const {
  const nlohmann::json fields = {
      "mycojobs artifact ticket 1", claims, object.context, object.job_key, object.name, object.sha256};
  return to_hex(hmac_sha256(signing_key_, dump_json(fields)));
}

// Format: ACTOR.ROLE.UNTIL.MAC, with the expiry time in milliseconds since boot.
std::string ArtifactTickets::create(const RpcCaller& caller, const TicketObject& object) const {
  const std::string_view role = caller.anonymous ? kAnonymous : caller.operator_token ? kOperator : kToken;
  const std::string claims = std::to_string(caller.actor) + '.' + std::string(role) + '.' +
                             std::to_string(clock_.boot_ms() + kTicketLifetimeMs);
  return claims + '.' + compute_mac(claims, object);
}

Result<RpcCaller> ArtifactTickets::verify(const std::string& ticket, const TicketObject& object) const {
  const auto invalid = [] {
    return fail(Code::denied, "the ticket is not for this file, or was not created by this server");
  };
  const auto mac_dot = ticket.rfind('.');
  if (ticket.size() > kMaxTicketBytes || mac_dot == std::string::npos) return invalid();
  const std::string claims = ticket.substr(0, mac_dot), received_mac = ticket.substr(mac_dot + 1),
                    expected_mac = compute_mac(claims, object);
  if (received_mac.size() != expected_mac.size() ||
      ::sodium_memcmp(received_mac.data(), expected_mac.data(), expected_mac.size()) != 0)
    return invalid();
  const auto role_dot = claims.find('.'), until_dot = claims.rfind('.');
  const std::string role = claims.substr(role_dot + 1, until_dot - role_dot - 1);
  std::uint64_t actor = 0, until_ms = 0;
  if (!parse_u64(std::string_view(claims).substr(0, role_dot), actor) ||
      !parse_u64(std::string_view(claims).substr(until_dot + 1), until_ms))
    return invalid();
  if (clock_.boot_ms() >= until_ms) return fail(Code::denied, "the ticket has expired");
  return RpcCaller{static_cast<Id>(actor), role == kAnonymous, role == kOperator};
}

}  // namespace mycojobs::api
