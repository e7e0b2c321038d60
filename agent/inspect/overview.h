// The state of a context at one time: the counts of its indexes, its agents, and statistics of the jobs that changed in
// the last minutes. The time is bounded for any number of jobs.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/kept_usage.h"
#include "store/store.h"

namespace mycojobs {

struct Overview {
  Tally tally;
  StoredBytesUsage kept;
  std::vector<RunnerInfo> runners;
  // Statistics of the jobs that changed last, at most kOverviewChecks jobs.
  std::uint64_t looked_at = 0, since_ms = 0;            // number of jobs, and earliest time of their changes
  std::uint64_t picked_up = 0, p50_ms = 0, p99_ms = 0;  // started jobs; percentiles of their time in a queue
  std::map<std::string, std::uint64_t> failures;        // by detail: "timeout"
  std::map<std::string, std::uint64_t> waits;           // by detail: "dependencies"
};
inline constexpr std::uint64_t kOverviewSlotMs = 10'000;
inline constexpr std::uint32_t kOverviewSlots = 90, kOverviewChecks = 1000;

Result<Overview> overview(Store&, Id context);
nlohmann::json to_json(const Overview&);

}  // namespace mycojobs
