// The invariants of one world of workflows: its journal, snapshot, blobs, manifests, indexes, inbox and the carriers of
// its effects are compared with one another. Each violated rule is a finding with the fixes that repair it: `verify`
// shows the findings, and a rebuild applies the fixes. Pure. The journal decides.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "inspect/invariants.h"
#include "store/workflow_store.h"
#include "workflows/workflow_state.h"

namespace mycojobs {

// The job or flow that carries a pending effect.
struct EffectRefInspection {
  InstanceId cell;
  std::string intent, effect_ref;
  bool is_there = false;  // the record exists
  bool has_ended = false;
  bool has_arrived = false;              // the end is in the inbox
  bool is_refused = false;               // a receipt from it was refused, so an operator must act
  std::string effect_of = {}, key = {};  // from its record: the effect's world and the idempotency key
};

struct DeploymentInspection {
  Id context = 0;
  std::string deployment;
  DeploymentStoreState places;
  DeploymentState state;  // folded from all facts
  std::string journal;    // problem of the journal; if not empty, nothing else is checked
  std::string snapshot;
  std::map<std::string, std::string> manifests;  // hash -> problem
  std::map<std::string, std::string> blobs;      // hash -> problem, for blobs of states
  std::vector<EffectRefInspection> effect_refs;
  std::vector<std::string> odd_mail;  // entries of the inbox that are not valid
};

struct DeploymentFinding : Finding {
  std::vector<DeploymentFix> fixes;  // empty: no automatic repair
};
std::vector<DeploymentFinding> judge(const DeploymentInspection&);

}  // namespace mycojobs
