// Keys that lead to flows: the catalogs, the list of schedules, the users of definitions; and the mark of a flow, made
// again from the keys that name the flow. For verify_flows() and rebuild_flows().
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "domain/invariants.h"
#include "mycojobs/flows.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct FlowIndexTrouble {
  Finding finding;
  bool is_loss = false;                    // the repair of the index does not restore the lost data
  std::string catalog = {};                // with `entry`: the name of its definition; empty: the catalog of all flows
  std::optional<CatalogEntry> entry = {};  // an entry to be dropped
  std::string schedule = {};               // a schedule to be mended
};
// all: flows that have a record, a mark or a journal. What moves while it is read has no finding.
Result<std::vector<FlowIndexTrouble>> look_at_flow_indexes(FlowStore&, Store&, Id context, const std::set<Id>& all);
Result<void> mend_flow_index(FlowStore&, Id context, const FlowIndexTrouble&);

struct LostMark {
  Fields words;                          // all but `state`
  bool listed = false, indexed = false;  // in the catalog of all flows, and in that of its name
};
// The mark of a flow without one. Nothing: no key but its record names the flow, so that another client wrote it.
Result<std::optional<LostMark>> lost_mark(FlowStore&, Store&, const FlowSight&, const Flow& record);

}  // namespace mycojobs
