// Whether `mj:actor-keys` and the records of actors agree: whose signature is whose. Database 0, beside all contexts.
#pragma once

#include <string>
#include <vector>

#include "inspect/verify.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

// Nothing where the caller may not read the actors.
Result<std::vector<Finding>> verify_actors(Store&);
Result<std::vector<std::string>> rebuild_actors(Store&, bool dry_run);

}  // namespace mycojobs
