// One look at one flow, for verify_flows() and rebuild_flows(): its journal folded, and everything else compared with
// that.
#pragma once

#include <string>
#include <vector>

#include "inspect/verify.h"
#include "mycojobs/flows.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct FlowLook {
  std::vector<Finding> findings;
  bool moved = false;             // meanwhile: the findings say nothing
  bool known = false;             // its journal could be read: `mend` says what should be
  FlowMend mend;                  //
  std::vector<std::string> jobs;  // keys, in the order of the nodes
  std::vector<std::string>
      again;  // of these the flow must hear, or they must be queued: a commit dispatches them again
};

Result<FlowLook> look_at_run(FlowStore&, Store&, Id context, Id flow);

}  // namespace mycojobs
