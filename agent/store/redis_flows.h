// Flows on Redis: each call one server-side script (scripts/flow*.lua). Contracts: mycojobs/flows.h.
#pragma once

#include <memory>

#include "mycojobs/flows.h"
#include "store/redis_store.h"

namespace mycojobs {

Result<std::unique_ptr<FlowStore>> make_redis_flows(OpenLink, Observed = {});

// flow:<id>, which another client has written, is in the making from now on: put_jobs() and put_flow() follow. false:
// it was made by create(). Again: nothing changes. Error not_found; unsupported: a store of another kind.
Result<bool> adopt_flow_record(FlowStore&, Id context, Id flow, Id caller);

// What is published for those who wait (Waiter hints; a hint may be lost, the store decides):
inline constexpr const char* kFlowDueTopic = "mj:flows:due";      // "<context> <flow>": it is due now
inline constexpr const char* kFlowMovedTopic = "mj:flows:moved";  // "<context> <flow> <revision>": a commit

}  // namespace mycojobs
