// `verify` with repairs: rebuilds claims, queue entries and indexes of jobs from the dispatch journals. The rules of
// inspect/invariants.h define the problems and their repairs. The store applies a repair in one step if the job has not
// changed since it was read. Works on a live store. Idempotent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "inspect/verify/job_verify.h"
#include "store/store.h"

namespace mycojobs {

struct RebuildReport {
  std::vector<std::string> differences;  // a line per difference, as in verify
  std::uint64_t jobs = 0;
};

// dry_run: reports and changes nothing. Errors: those of the store; repairs before an error remain.
Result<RebuildReport> rebuild(Store&, Id context, bool dry_run, const ProgressCallback&);

}  // namespace mycojobs
