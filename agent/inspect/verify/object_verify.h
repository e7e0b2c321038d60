// Verifies and rebuilds the indexes of objects. Works on a live store: a mismatch is read again, so that an object that
// is written during the read gives no finding.
#pragma once

#include <string>
#include <vector>

#include "inspect/verify/job_verify.h"
#include "store/objects/object_store.h"

namespace mycojobs {

Result<std::vector<Finding>> verify_objects(ObjectStore&, Id context);
// Returns one line for each difference. Unless dry_run is set, rebuilds the indexes of the kinds with a difference.
Result<std::vector<std::string>> rebuild_objects(ObjectStore&, Id context, bool dry_run);

}  // namespace mycojobs
