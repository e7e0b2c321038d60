// Checks that `mj:actor-keys`, the index from public keys to actors, agrees with the records of actors. Both are in
// database 0, outside of all contexts.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "inspect/verify/job_verify.h"
#include "store/store.h"

namespace mycojobs {

// Returns no findings if the caller has no right to read the actors.
Result<std::vector<Finding>> verify_actors(Store&);
Result<std::vector<std::string>> rebuild_actors(Store&, bool dry_run);

}  // namespace mycojobs
