// The FlowStore on Redis. Changes are made by the scripts in scripts/flow*.lua. Contracts, errors and thread-safety:
// store/flow_store.h.
#pragma once

#include <memory>

#include "store/flow_store.h"
#include "store/redis/redis_store.h"

namespace mycojobs {

Result<std::unique_ptr<FlowStore>> make_redis_flows(OpenLink, StoreInstrumentation = {});

// Starts the creation of a flow from the record flow:<id>, which another client has written. The caller continues with
// put_jobs() and put_flow(). Idempotent until put_flow(). Returns false if the flow exists already, by create() or as a
// completed adoption. Errors: not_found; unsupported (the store was not created by make_redis_flows()).
Result<bool> adopt_flow_record(FlowStore&, Id context, Id flow, Id caller);

}  // namespace mycojobs
