// Whether the worlds of workflows hold what is promised of them: verify and rebuild, as flow_verify.h of flows. Reads a
// live store; what looks wrong is looked at again after a pause, so that what moves while it is read is no finding.
#pragma once

#include <string>
#include <vector>

#include "domain/world_invariants.h"
#include "inspect/verify.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"
#include "mycojobs/workflows.h"

namespace mycojobs {

Result<std::vector<Finding>> verify_worlds(WorkflowStore&, Store&, Id context);
// Puts right what the journals can put right; a line for each difference. dry_run: only tells.
Result<std::vector<std::string>> rebuild_worlds(WorkflowStore&, Store&, Id context, bool dry_run);

}  // namespace mycojobs
