// What verify and rebuild know of flows: journals fold without anomalies, records equal what journals say, every node's
// job is where its node says, each node was applied once, active flows are in the index, catalog and index agree.
#pragma once

#include <string>
#include <vector>

#include "inspect/verify.h"
#include "mycojobs/flows.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

Result<std::vector<Finding>> verify_flows(FlowStore&, Store&, Id context);
// Makes records, indexes and checkpoints again from the journals; a line for each difference. dry_run: only tells.
Result<std::vector<std::string>> rebuild_flows(FlowStore&, Store&, Id context, bool dry_run);

}  // namespace mycojobs
