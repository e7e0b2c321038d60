// The invariants of one deployment: its journal, snapshot, blobs, manifests, indexes, inbox and the jobs and flows that
// perform its effects are compared with one another. Each violated rule is a finding with the fixes that repair it:
// `verify` shows the findings, and a rebuild applies the fixes. No side effects. The journal is authoritative.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "inspect/invariants.h"
#include "store/workflow_store.h"
#include "workflows/workflow_state.h"

namespace mycojobs {

// The job or flow that performs a pending effect.
struct EffectRefInspection {
  InstanceId instance;
  std::string intent, effect_ref;
  bool exists = false;  // the record of the job or flow exists
  bool has_ended = false;
  bool is_in_inbox = false;      // the inbox has the event of the end
  bool receipt_refused = false;  // a receipt of the job or flow was refused, so an operator must act
  // From the record: the context and deployment of the effect, and the idempotency key.
  std::string effect_owner = {}, idempotency_key = {};
};

// All data of a deployment. A problem is a text, which is empty if there is no problem.
struct DeploymentInspection {
  Id context = 0;
  std::string deployment;
  DeploymentStoreState store_state;
  DeploymentState state;        // folded from all facts
  std::string journal_problem;  // with a problem, nothing else is checked
  std::string snapshot_problem;
  std::map<std::string, std::string> manifest_problems;  // by hash
  std::map<std::string, std::string> blob_problems;      // by hash, for the blobs of instance states
  std::vector<EffectRefInspection> effect_refs;
  std::vector<std::string> invalid_inbox_entries;
};

struct DeploymentFinding : Finding {
  std::vector<DeploymentFix> fixes;  // empty: no automatic repair
};
std::vector<DeploymentFinding> check_invariants(const DeploymentInspection&);

}  // namespace mycojobs
