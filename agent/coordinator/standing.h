// How an actor stands to a flow that it wants to move: asked by commands and RPC before anything else of the flow is
// told.
#pragma once

#include "coordinator/progress.h"
#include "domain/rights.h"

namespace mycojobs {

struct FlowStanding {
  bool admin = false;   // of the context, as its record says
  bool steers = false;  // false: it is here because a step names it as approver
};
// maker: of the flow; 0: there is none. answers: approve and reject are also for those whom a step names. Error denied:
// the same whether the flow is there or not, but to those who may steer all flows.
Result<FlowStanding> flow_standing(FlowStore&, RunCache&, const Place&, Id actor, Id flow, Id maker, bool answers);

}  // namespace mycojobs
