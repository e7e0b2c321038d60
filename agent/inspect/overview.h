// The state of a context at one time: the counts of its indexes, its agents, and statistics of the jobs that changed in
// the last minutes. The time is bounded for any number of jobs.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/store.h"
#include "store/stored_usage.h"

namespace mycojobs {

struct Overview {
  Tally tally;
  StoredBytesUsage stored_bytes;
  std::vector<RunnerInfo> runners;
  // Statistics of the jobs that changed last, at most kMaxOverviewJobs jobs.
  std::uint64_t rows_read = 0, since_ms = 0;      // number of these jobs, and earliest time of their changes
  std::uint64_t started_jobs = 0;                 // number of these jobs that have started
  std::uint64_t p50_ms = 0, p99_ms = 0;           // percentiles of the time that they waited for their start
  std::map<std::string, std::uint64_t> failures;  // by detail: "timeout"
  std::map<std::string, std::uint64_t> waits;     // by detail: "dependencies"
};
// The tally counts ended jobs in kOverviewSlots time slots of kOverviewSlotMs each.
inline constexpr std::uint64_t kOverviewSlotMs = 10'000;
inline constexpr std::uint32_t kOverviewSlots = 90, kMaxOverviewJobs = 1000;

// Errors: those of the store.
Result<Overview> read_overview(Store&, Id context);
nlohmann::json to_json(const Overview&);

}  // namespace mycojobs
