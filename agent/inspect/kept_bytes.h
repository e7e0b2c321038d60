// The counters of what jobs keep in Redis (mj:kept, scripts/lib/kept.lua), compared with what the claims of the jobs
// say. For verify() and rebuild().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "domain/invariants.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct KeptTrouble {
  Finding finding;
  std::string field;             // of mj:kept: a caller, or "all"
  bool is_over = false;          // the counter has more than the claims
  std::uint64_t difference = 0;  // in bytes
};
// Counters that differ from the claims by the same number of bytes in two looks, so that jobs that come and go between
// the looks are no trouble. While jobs change the counters nothing is found. pause: waits between the looks.
Result<std::vector<KeptTrouble>> look_at_kept_bytes(Store&, Id context, const std::function<void()>& pause);
// Changes the counter by the difference, whatever was added to it since.
Result<void> mend_kept_bytes(Store&, Id context, const KeptTrouble&);

}  // namespace mycojobs
