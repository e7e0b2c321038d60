// Registration of runners. Errors and thread-safety: store/store.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class StoreConnection;

// Process that holds a runner id.
struct RunnerHolder {
  std::string instance;       // random, new at every start
  std::string host, boot_id;  // boot_id also distinguishes pid namespaces
  std::int64_t pid = 0;
};

// A runner's record and the state of its registration.
struct RunnerInfo {
  Runner runner;
  RunnerHolder holder;                  // empty if the id is not held
  std::uint64_t hold_remaining_ms = 0;  // remaining time of the hold, by the store's clock; 0 if it has expired
  std::uint32_t live_claim_count = 0;
};

// Result of RunnerStore::silent_runners().
struct SilentRunners {
  struct Entry {
    Id id = 0;
    RunnerHolder holder;  // without boot_id
  };
  std::vector<Entry> entries;
  std::uint64_t live_count = 0;  // number of runners with a hold that has not expired
};

// Registration of runners.
class RunnerStore {
 public:
  explicit RunnerStore(StoreConnection& connection) : connection_(connection) {}

  // Returns all runners, sorted by id. A record that another client wrote is included after at most ten minutes, since
  // all keys are scanned once in ten minutes.
  Result<std::vector<RunnerInfo>> runners(Id context);
  // Finds runners with an expired hold and another detail than `lost_detail`. One round trip.
  Result<SilentRunners> silent_runners(Id context, std::string_view lost_detail);
  // Holds runner:<id> for ttl_ms and writes its record; topic and local are written only if they are missing. Error
  // conflict: an instance other than `replaces` holds it (`held_by`), or the record has another public key (`held_by`
  // is empty).
  Result<void> hold_runner(Id context, const Runner&, const RunnerHolder& self, std::uint32_t ttl_ms,
                           const std::string& replaces, RunnerHolder& held_by);
  Result<void> release_runner(Id context, Id runner, const RunnerHolder& self);

 private:
  StoreConnection& connection_;
};

}  // namespace mycojobs
