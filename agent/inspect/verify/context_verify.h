// Runs all checks of `verify` for a context, for commands and RPC: jobs and messages, objects, flows, workflows. Actors
// belong to no context; see verify_actors().
#pragma once

#include "inspect/verify/job_verify.h"
#include "store/flow_store.h"
#include "store/objects/object_store.h"
#include "store/workflow_store.h"

namespace mycojobs {

struct VerifiedStores {
  Store& records;
  ObjectStore& objects;
  FlowStore& flows;
  WorkflowStore& deployments;
};

// Errors: those of the stores.
Result<VerifyReport> verify_context(const VerifiedStores&, Id context, const ProgressCallback&);

}  // namespace mycojobs
