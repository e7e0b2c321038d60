// Leases of claims, and time-driven work. Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/records.h"
#include "model/retention.h"

namespace mycojobs {

class StoreConnection;

// Lease of a live claim.
struct Lease {
  std::string job_key;
  std::uint64_t until_ms = 0;
  std::uint64_t lease_ms = 0;  // duration that the owner has chosen
};

// Time-driven work, done by any client: see LeaseStore::tick().
struct TickRequest {
  std::uint32_t missing_wait_ms = 2000;  // maximum wait of an entry for its record
  Retention retention = {};
  std::uint64_t retention_count = 0;  // maximum number of ended jobs; 0 means no limit
  std::uint32_t max_entries = 100;    // limit for each kind of work, since a running script blocks other clients
};
// Numbers of processed entries, by kind.
struct TickReply {
  std::uint32_t queued = 0;            // delayed jobs and retries that were queued
  std::uint32_t woken_dependents = 0;  // dependents of ended jobs that were too many for one step
  std::uint32_t missing_records = 0;   // entries whose record has appeared (queued) or not (dead letters)
  std::uint32_t timed_out = 0;         // jobs that exceeded their queue_timeout_ms and were ended
  std::uint32_t retired = 0;           // ended jobs past retention, deleted with their record, log and facts
  bool has_more = false;               // max_entries was reached: call again soon
  std::uint64_t next_due_ms = 0;       // time until the next delayed job or queue deadline is due; 0 if there is none
  std::uint64_t lease_count = 0;
  std::uint64_t prerequisite_count = 0;  // jobs that wait for prerequisites
};

// Result of LeaseStore::find_timed_work() for one context.
struct TimedWork {
  bool is_due = false;  // work is due, or it is unknown whether it is: the context needs a tick
  bool has_leases = false;
  // Time since a tick of any agent has searched the lists of plain clients; nullopt if none has.
  std::optional<std::uint64_t> last_search_ms;
};

// Expiry of leases and time-driven work.
class LeaseStore {
 public:
  explicit LeaseStore(StoreConnection& connection) : connection_(connection) {}

  // Returns live claims and the ends of their leases.
  Result<std::vector<Lease>> leases(Id context);
  // Makes the job claimable again if its lease still ends at until_ms and has expired, or ends further in the future
  // than a lease is long (the server's clock went back). REQUIRES: the caller has observed no renewal for a whole
  // lease. Returns false if neither holds.
  Result<bool> expire(Id context, const Lease&);
  // Expires all live claims of an instance of a runner at once. REQUIRES: no process of the instance is left.
  Result<std::vector<std::string>> expire_instance(Id context, Id runner, const std::string& instance);
  Result<TickReply> tick(Id context, const TickRequest&);
  // Finds work that is due within within_ms, in those of `contexts` that are on the server of `context`. The call needs
  // one round trip and costs a fraction of a tick.
  Result<std::map<Id, TimedWork>> find_timed_work(Id context, const std::vector<Id>& contexts, std::uint64_t within_ms);

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
