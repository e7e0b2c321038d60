// The WorkflowStore on Redis, or on the imitation of it (memory_server.h): scripts/workflows.lua.
#pragma once

#include <memory>

#include "mycojobs/workflows.h"
#include "store/link.h"

namespace mycojobs {

// WorkflowStore::commit() of a manifest, if no other manifest of the context came in force since `applies` was read:
// the field `count` of mj:world-applies, or empty. Error conflict: one did, and nothing was changed. The store must be
// one of make_redis_workflows(); error unsupported: it is another one.
Result<void> commit_manifest(WorkflowStore&, const WorldCommit&, const std::string& applies);

std::unique_ptr<WorkflowStore> make_redis_workflows(OpenLink, Observed = {});

}  // namespace mycojobs
