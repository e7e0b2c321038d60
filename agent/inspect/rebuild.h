// `verify` with its fixes: makes claims, places and indexes again what the dispatch journals say.
// What is wrong, and what mends it, say the rules of domain/invariants.h; the store does it in one step if the job
// has not moved since it was looked at. Works on a live store. Twice is as good as once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspect/verify.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct RebuildReport {
  std::vector<std::string> differences;  // one line each, as verify has it
  std::uint64_t jobs = 0;
};

// dry_run: reports and changes nothing. Errors of the store; what was mended before one stays so.
Result<RebuildReport> rebuild(Store&, Id context, bool dry_run, const Progress&);

}  // namespace mycojobs
