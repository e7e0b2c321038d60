// Verifies and repairs the indexes of flows for verify_flows() and rebuild_flows(): the catalogs, the list of
// schedules, and the lists of the schedules that use a definition. Also derives the mark of a flow, which is the key
// with its state, from its record and the keys that name the flow.
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
  bool has_lost_data = false;  // data was lost that a repair of the index does not restore
  std::string catalog = {};    // catalog of `entry`: the name of its definition; empty: the catalog of all flows
  std::optional<CatalogEntry> entry = {};  // the entry to be removed; no value: the problem is not about an entry
  std::string schedule = {};               // the schedule to be repaired; empty: the problem is not about a schedule
};
// flow_ids: flows that have a record, a mark or a journal. Data that changes during the read gives no finding.
Result<std::vector<FlowIndexProblem>> find_flow_index_problems(FlowStore&, Store&, Id context,
                                                               const std::set<Id>& flow_ids);
Result<void> repair_flow_index(FlowStore&, Id context, const FlowIndexProblem&);

struct DerivedFlowMark {
  Fields fields;                 // all fields of the mark except `state`
  bool in_catalog = false;       // the catalog of all flows contains the flow
  bool in_name_catalog = false;  // the catalog of its name contains the flow, or the flow has no name
};
// Returns the mark that a flow without a mark should have. Returns no value if nothing but the record names the flow:
// another client wrote this record.
Result<std::optional<DerivedFlowMark>> derive_flow_mark(FlowStore&, Store&, const FlowInspection&, const Flow& record);

}  // namespace mycojobs
