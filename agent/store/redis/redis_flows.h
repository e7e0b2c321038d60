// The FlowStore on Redis. Changes are made by the scripts in scripts/flow*.lua. Contracts, errors and thread-safety:
// store/flow_store.h.
#pragma once

#include <memory>

#include "store/flow_store.h"
#include "store/redis/redis_link.h"

namespace mycojobs {

std::unique_ptr<FlowStore> make_redis_flows(OpenLink, StoreInstrumentation = {});

}  // namespace mycojobs
