// Verifies and rebuilds the idempotency keys of jobs. The index mj:idempotency:<caller> maps a key to its job, and the
// claim of the job names the key. For verify() and rebuild().
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "inspect/invariants.h"
#include "store/store.h"

namespace mycojobs {

struct JobKeyProblem {
  Finding finding;
  std::string index_key;  // Redis key of the index: "mj:idempotency:12"
  std::string idempotency_key, job_key;
};
// Returns the claims without a key in the index. A key that maps to another job is not reported.
Result<std::vector<JobKeyProblem>> find_job_key_problems(Store&, Id context);
Result<void> repair_job_key(Store&, Id context, const JobKeyProblem&);

}  // namespace mycojobs
