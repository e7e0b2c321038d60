// Flows on Redis: each call one server-side script (scripts/flow_*.lua). Contracts: mycojobs/flows.h.
#pragma once

#include <memory>

#include "mycojobs/flows.h"
#include "store/redis_store.h"

namespace mycojobs {

Result<std::unique_ptr<FlowStore>> make_redis_flows(OpenLink);

// What is published for those who wait (Waiter hints; a hint may be lost, the store decides):
inline constexpr const char* kFlowDueTopic = "mj:flows:due";      // "<context> <flow>": it is due now
inline constexpr const char* kFlowMovedTopic = "mj:flows:moved";  // "<context> <flow> <revision>": a commit

}  // namespace mycojobs
