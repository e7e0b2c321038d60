// Verifies and rebuilds flows. Journals fold without anomalies, records equal their journals, the job of each node is
// in the state of the node, each node was applied once, active flows are in the index, and catalog and index agree.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "inspect/verify/job_verify.h"
#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs {

Result<std::vector<Finding>> verify_flows(FlowStore&, Store&, Id context);
struct FlowRebuildReport {
  std::vector<std::string> differences;  // a line per difference
  bool is_complete = true;               // false: some data cannot be repaired
};
// Rebuilds marks, records, indexes and checkpoints from the journals. dry_run: only reports. A planned job is cancelled
// only if its flow or message is known to have ended, never because a key is missing.
Result<FlowRebuildReport> rebuild_flows(FlowStore&, Store&, Id context, bool dry_run);

}  // namespace mycojobs
