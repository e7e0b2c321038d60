// The WorkflowStore on Redis (store/scripts/workflows.lua). Contracts, errors and thread-safety:
// store/workflow_store.h.
#pragma once

#include <memory>

#include "store/redis/redis_link.h"
#include "store/workflow_store.h"

namespace mycojobs {

// WorkflowStore::commit() of a manifest, on the condition that no other manifest of the context was applied after the
// caller read `applies`: the field `count` of mj:world-applies, or empty. Errors: conflict: another manifest was
// applied, and nothing was changed; unsupported: the store was not created by make_redis_workflows().
Result<void> commit_manifest(WorkflowStore&, const DeploymentCommit&, const std::string& applies);

std::unique_ptr<WorkflowStore> make_redis_workflows(OpenLink, StoreInstrumentation = {});

}  // namespace mycojobs
