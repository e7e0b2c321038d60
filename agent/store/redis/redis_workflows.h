// The WorkflowStore on Redis (store/scripts/workflows.lua). Contracts, errors and thread-safety:
// store/workflow_store.h.
#pragma once

#include <memory>

#include "store/redis/redis_link.h"
#include "store/workflow_store.h"

namespace mycojobs {

// As WorkflowStore::commit(), for a commit with a manifest. expected_applies: value of the field `count` of
// mj:deployment-applies, or empty, as read before the manifest was checked. Errors: conflict: another manifest of the
// context was applied since then, and nothing was changed; unsupported: the store was not created by
// make_redis_workflows().
Result<void> commit_manifest(WorkflowStore&, const DeploymentCommit&, const std::string& expected_applies);

std::unique_ptr<WorkflowStore> make_redis_workflows(OpenLink, StoreInstrumentation = {});

}  // namespace mycojobs
