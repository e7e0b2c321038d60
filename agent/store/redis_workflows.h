// The WorkflowStore on Redis (scripts/workflows.lua). Contracts, errors and thread-safety: mycojobs/workflows.h.
#pragma once

#include <memory>

#include "mycojobs/workflows.h"
#include "store/link.h"

namespace mycojobs {

// WorkflowStore::commit() of a manifest, on the condition that no other manifest of the context was applied after the
// caller read `applies`: the field `count` of mj:world-applies, or empty. Errors: conflict: another manifest was
// applied, and nothing was changed; unsupported: the store was not created by make_redis_workflows().
Result<void> commit_manifest(WorkflowStore&, const DeploymentCommit&, const std::string& applies);

std::unique_ptr<WorkflowStore> make_redis_workflows(OpenLink, StoreInstrumentation = {});

}  // namespace mycojobs
