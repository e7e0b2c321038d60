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
struct FlowRebuildReport {
  std::vector<std::string> differences;  // a line for each
  bool is_complete = true;               // false: something is left that nothing mends
};
// Makes marks, records, indexes and checkpoints again from the journals. dry_run: only tells. A planned job is
// cancelled only if its flow or message is known to have ended, never since a key is missing.
Result<FlowRebuildReport> rebuild_flows(FlowStore&, Store&, Id context, bool dry_run);

}  // namespace mycojobs
