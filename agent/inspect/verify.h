// Whether a store holds what reliability promises of every job: the invariants checker, over a live or a stopped store.
// Reads, changes nothing. What looks wrong is looked at again, each job in one atomic step and once more after a pause,
// so that jobs that move while it reads are no findings.
//
// Not seen: members of indexes that name neither a record nor a claim, a lease or a fact (the port does not list them;
// they are dropped when they are met); of jobs that wait for others, what does not look wrong at first sight (a rebuild
// looks at each of them as a whole).
#pragma once

#include <cstdint>
#include <vector>

#include "domain/invariants.h"
#include "inspect/verify_facts.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct VerifyReport {
  std::vector<Finding> findings;  // by subject, of one subject the cause first
  std::uint64_t jobs = 0, facts = 0, queues = 0;
};

// Errors of the store. Takes about 300 bytes a job and 8 a fact.
Result<VerifyReport> verify(Store&, Id context, const Progress&);

}  // namespace mycojobs
