// The indexes of objects: whether they say what the objects say, and how they are derived again. Over a live store,
// too: what looks wrong is looked at again, so that an object that is written meanwhile is no finding.
#pragma once

#include <string>
#include <vector>

#include "inspect/verify.h"
#include "mycojobs/objects.h"

namespace mycojobs {

Result<std::vector<Finding>> verify_objects(ObjectStore&, Id context);
// One line for each difference; unless dry_run, the kinds with one get new indexes.
Result<std::vector<std::string>> rebuild_objects(ObjectStore&, Id context, bool dry_run);

}  // namespace mycojobs
