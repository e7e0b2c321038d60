// Verifies and rebuilds deployments of workflows, as flow_verify.h does for flows. Works on a live store. A mismatch is
// read again after a pause, so that data that changes during the read gives no finding.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "inspect/deployment_invariants.h"
#include "inspect/verify/job_verify.h"
#include "store/store.h"
#include "store/workflow_store.h"

namespace mycojobs {

Result<std::vector<Finding>> verify_deployments(WorkflowStore&, Store&, Id context);
// Repairs the data that can be derived from the journals and returns one line for each difference. dry_run: only
// reports.
Result<std::vector<std::string>> rebuild_deployments(WorkflowStore&, Store&, Id context, bool dry_run);

}  // namespace mycojobs
