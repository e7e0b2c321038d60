// How a context is, in one look: what its indexes count, its agents, and what the jobs tell to which something happened
// in the last minutes. Its time is bounded, however many jobs there are.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "mycojobs/result.h"
#include "mycojobs/store.h"
#include "store/kept_usage.h"

namespace mycojobs {

struct Overview {
  Tally tally;
  KeptUsage kept;
  std::vector<RunnerInfo> runners;
  // Of the jobs that were looked at: those to which something happened last, at most kOverviewLooks.
  std::uint64_t looked_at = 0, since_ms = 0;            // how many, and to the earliest of them when
  std::uint64_t picked_up = 0, p50_ms = 0, p99_ms = 0;  // of those that began: how long they had been in a queue
  std::map<std::string, std::uint64_t> failures;        // by detail: "timeout"
  std::map<std::string, std::uint64_t> waits;           // by detail: "dependencies"
};
inline constexpr std::uint64_t kOverviewSlotMs = 10'000;
inline constexpr std::uint32_t kOverviewSlots = 90, kOverviewLooks = 1000;

Result<Overview> overview(Store&, Id context);
nlohmann::json to_json(const Overview&);

}  // namespace mycojobs
