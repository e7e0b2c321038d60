// One look at one flow, for verify_flows() and rebuild_flows(): all that domain/flow_invariants.h judges by is read,
// and judged.
#pragma once

#include <string>
#include <vector>

#include "domain/flow_invariants.h"
#include "mycojobs/flows.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct FlowLook {
  std::vector<FlowFinding> findings;
  bool moved = false;             // meanwhile: the findings say nothing
  bool known = false;             // its journal, mark and definition could be read: the findings have their fixes
  std::uint64_t revision = 0;     //
  std::string state;              // of its mark
  std::vector<std::string> jobs;  // keys, in the order of the nodes
};

Result<FlowLook> look_at_run(FlowStore&, Store&, Id context, Id flow);

}  // namespace mycojobs
