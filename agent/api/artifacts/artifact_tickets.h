// Tickets for downloads by links. A browser that follows a link sends no token, so the link has a ticket, which stands
// for the caller that requested the link, for one file of one job and for a minute.
//
// A ticket is signed with a key of this process: no state is stored, and other servers and earlier processes do not
// accept it. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "api/rpc/json_rpc.h"
#include "base/clock.h"
#include "base/result.h"
#include "model/records.h"

namespace mycojobs::api {

inline constexpr std::uint64_t kTicketValidMs = 60000;

// The file for which a ticket is valid.
struct TicketObject {
  Id context = 0;
  std::string job_key, name, sha256;
};

class ArtifactTickets {
 public:
  explicit ArtifactTickets(const Clock& clock);
  std::string create(const RpcCaller&, const TicketObject&) const;
  // Returns the caller that requested the ticket. Error denied: the ticket is for another file, has expired, or was not
  // created by this process.
  Result<RpcCaller> check(const std::string& ticket, const TicketObject&) const;

 private:
  std::string compute_mac(const std::string& claims, const TicketObject&) const;
  const Clock& clock_;
  const std::string key_;
};

}  // namespace mycojobs::api
