// The WorkflowStore on Redis, or on the imitation of it (memory_server.h): scripts/workflows.lua.
#pragma once

#include <memory>

#include "mycojobs/workflows.h"
#include "store/link.h"

namespace mycojobs {

std::unique_ptr<WorkflowStore> make_redis_workflows(OpenLink, Observed = {});

}  // namespace mycojobs
