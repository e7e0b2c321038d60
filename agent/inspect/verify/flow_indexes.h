// Verifies and rebuilds the keys that lead to flows: the catalogs, the list of schedules, the users of definitions, and
// the mark of a flow, from the keys that name the flow. For verify_flows() and rebuild_flows().
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "inspect/invariants.h"
#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs {

struct FlowIndexProblem {
  Finding finding;
  bool is_loss = false;      // the repair of the index does not restore the lost data
  std::string catalog = {};  // catalog of `entry`: the name of its definition; empty: the catalog of all flows
  std::optional<CatalogEntry> entry = {};  // an entry to be removed
  std::string schedule = {};               // a schedule to be repaired
};
// all: flows that have a record, a mark or a journal. Data that changes during the read gives no finding.
Result<std::vector<FlowIndexProblem>> find_flow_index_problems(FlowStore&, Store&, Id context, const std::set<Id>& all);
Result<void> repair_flow_index(FlowStore&, Id context, const FlowIndexProblem&);

struct MissingFlowState {
  Fields words;                          // all fields except `state`
  bool listed = false, indexed = false;  // in the catalog of all flows, and in the catalog of its name
};
// Returns the mark of a flow without one. No value: only the record names the flow, so that another client wrote it.
Result<std::optional<MissingFlowState>> derive_flow_state(FlowStore&, Store&, const FlowInspection&,
                                                          const Flow& record);

}  // namespace mycojobs
