// What must be true of one world of workflows: its journal, its snapshot, its blobs and manifests, its indexes, its
// inbox and what carries its effects, compared with one another. Each rule that is broken is a finding, with what would
// mend it: `verify` shows the findings, a rebuild has the fixes done. Pure. The journal decides.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "domain/invariants.h"
#include "domain/workflow_state.h"
#include "mycojobs/workflows.h"

namespace mycojobs {

// The job or flow that carries an effect which waits.
struct CarrierSight {
  CellId cell;
  std::string intent, carrier;
  bool is_there = false;  // its record
  bool has_ended = false;
  bool has_arrived = false;              // its end waits in the inbox
  bool is_refused = false;               // a receipt of it was refused: it waits for people
  std::string effect_of = {}, key = {};  // of its record: whose effect it is, its idempotency key
};

struct WorldSight {
  Id context = 0;
  std::string world;
  WorldPlaces places;
  WorldState state;     // as the facts make it, from the first one on
  std::string journal;  // what is wrong with it: nothing else is judged then
  std::string snapshot;
  std::map<std::string, std::string> manifests;  // hash: what is wrong with it
  std::map<std::string, std::string> blobs;      // the same, of states that lie there
  std::vector<CarrierSight> carriers;
  std::vector<std::string> odd_mail;  // entries of the inbox that no coordinator takes for anything
};

struct WorldFinding : Finding {
  std::vector<WorldFix> fixes;  // none: nothing that we may do mends it
};
std::vector<WorldFinding> judge(const WorldSight&);

}  // namespace mycojobs
