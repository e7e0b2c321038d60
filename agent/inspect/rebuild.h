// Derives claims, places and indexes again from the dispatch journals (dispatch rule 22) and reports each difference.
// Works on a live store: a job that moves meanwhile is read again. Twice is as good as once.
//
// The journals decide. Where they are not whole (a fact that the job's claim lists is gone, one does not fit) the claim
// is kept, since a fact that cannot be read may have been the job's end; the job's places are made so then. A job
// without facts is another client's: its record alone says where it belongs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "inspect/verify_facts.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct RebuildReport {
  std::vector<std::string> differences;  // one line each
  std::uint64_t jobs = 0;
};

// dry_run: reports and changes nothing. Errors of the store; what was mended before one stays so.
Result<RebuildReport> rebuild(Store&, Id context, bool dry_run, const Progress&);

}  // namespace mycojobs
