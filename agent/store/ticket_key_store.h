// The public keys with which coordinators sign the tickets of links (api/artifacts/artifact_tickets.h), so that each
// coordinator of a context accepts the links of the others. Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

class TicketKeyStore {
 public:
  explicit TicketKeyStore(StoreConnection& connection) : connection_(connection) {}

  // Stores a public key, which expires after ttl_ms.
  Result<void> store_ticket_key(Id context, const std::string& public_key, std::uint64_t ttl_ms);
  // Returns whether the key is stored and has not expired.
  Result<bool> has_ticket_key(Id context, const std::string& public_key);

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
