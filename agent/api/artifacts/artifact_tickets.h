// Tickets for downloads and uploads by links. A browser that follows a link sends no token, so the link contains a
// ticket. A ticket grants the rights of the caller that requested the link, for one file of one job and for one minute.
//
// Each process signs its tickets with a random key, and stores the public half in the context
// (store/ticket_key_store.h) before it issues a ticket. So every coordinator of the context accepts the ticket, and no
// reader of the store can create one. A ticket needs no stored state of its own.
//
//   verify() --own key--> the caller
//           \--other key--> Ticket::signer_key, which the server looks up in the store before it accepts the caller
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "api/rpc/json_rpc.h"
#include "base/clock.h"
#include "base/ed25519.h"
#include "base/result.h"
#include "model/records.h"
#include "store/ticket_key_store.h"

namespace mycojobs::api {

inline constexpr std::uint64_t kTicketLifetimeMs = 60000;

// Identifies the file for which a ticket is valid.
struct TicketObject {
  Id context = 0;
  std::string job_key, name, sha256;
};

// A ticket with a valid signature.
struct Ticket {
  RpcCaller caller;        // for which the ticket was created
  Id context = 0;          // of the file
  std::string signer_key;  // public key of another process; empty: the ticket was created by this process
};

// Creates and verifies tickets. Thread-safe.
class ArtifactTickets {
 public:
  // REQUIRES: the clock outlives this object.
  explicit ArtifactTickets(const Clock& clock) : clock_(clock) {}
  // Stores the public key in the context if it is not stored for long enough. Without it, only this process accepts the
  // tickets. Errors: those of the store.
  Result<void> publish_key(TicketKeyStore&, Id context);
  // Returns a ticket that contains the caller's actor and role in plain text.
  std::string create(const RpcCaller&, const TicketObject&) const;
  // Error denied: the ticket is for another file, has expired, or its signature is wrong. REQUIRES: the caller of this
  // function accepts a ticket with a signer_key only if the store has the key.
  Result<Ticket> verify(const std::string& ticket, const TicketObject&) const;

 private:
  const Clock& clock_;
  const SigningKey key_ = SigningKey::make();
  std::mutex mutex_;
  std::map<Id, std::uint64_t> published_ms_;  // time of the latest publish_key() by context; guarded by mutex_
};

}  // namespace mycojobs::api
