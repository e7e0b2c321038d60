// Tickets for downloads by links. A browser that follows a link sends no token, so the link contains a ticket. A ticket
// grants the rights of the caller that requested the link, for one file of one job and for one minute.
//
// Tickets are signed with a random key of this process. They need no stored state, and are valid neither on another
// server nor after a restart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "api/rpc/json_rpc.h"
#include "base/clock.h"
#include "base/result.h"
#include "model/records.h"

namespace mycojobs::api {

inline constexpr std::uint64_t kTicketLifetimeMs = 60000;

// Identifies the file for which a ticket is valid.
struct TicketObject {
  Id context = 0;
  std::string job_key, name, sha256;
};

// Creates and verifies tickets. Thread-safe.
class ArtifactTickets {
 public:
  // REQUIRES: the clock outlives this object.
  explicit ArtifactTickets(const Clock& clock);
  // Returns a ticket that contains the caller's actor and role in plain text.
  std::string create(const RpcCaller&, const TicketObject&) const;
  // Returns the caller for which the ticket was created. Error denied: the ticket is for another file, has expired, or
  // was not created by this process.
  Result<RpcCaller> verify(const std::string& ticket, const TicketObject&) const;

 private:
  // Returns the signature of the claims, which are the ticket without its signature, for a file.
  std::string compute_mac(const std::string& claims, const TicketObject&) const;
  const Clock& clock_;
  const std::string signing_key_;
};

}  // namespace mycojobs::api
