// What must be true of one flow: its journal, its mark, its indexes, its checkpoint, its record and the jobs of its
// nodes, compared with one another. Each rule that is broken is a finding, with what would mend it: `verify` shows the
// findings, a rebuild has the fixes done.
//
// Pure. The journal decides; what it holds is folded here.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "domain/flow_plan.h"
#include "domain/flow_state.h"
#include "domain/invariants.h"
#include "mycojobs/flows.h"

namespace mycojobs {

struct FlowSight {
  Id context = 0, flow = 0;
  FlowPlaces places;
  std::optional<Fields> record;  // as it stands; nothing: there is none
  std::vector<RunFact> facts;
  std::vector<std::string> anomalies;  // of reading them
  std::uint64_t revision = 0;          // up to which they were read
  // Of one that is whole; none of this while it is being created.
  std::optional<FlowPlan> plan;
  std::string checkpoint;  // empty: there is none
  std::uint64_t checkpoint_at = 0;
  bool checkpoint_moved = false;  // while it was read: nothing is said of it
  std::vector<FlowJobView> jobs;  // in the order of the nodes
  std::set<std::string> heard;    // jobs whose ends wait in its events, read after `jobs`
  bool all_events = true;         // there are no more
};

struct FlowFinding : Finding {
  std::vector<FlowFix> fixes;  // none: nothing that we may do mends it
};
// A mark there is; see inspect/flow_look.h for flows that cannot be judged.
std::vector<FlowFinding> judge(const FlowSight&);

// "flow-job: flow:7 has ...": of what cannot be judged, too.
FlowFinding flow_finding(std::string_view rule, Id flow, const std::string& text, std::vector<FlowFix> fixes = {});
// "" or " (and 3 more)".
std::string and_more(std::size_t count);

}  // namespace mycojobs
