// A shadow: a new manifest on a copy of the world, with placeholders for receipts. Says what was seen up to its
// horizon, and nothing of branches that did not run. Pure. Source: seed 003, 3.8.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "domain/workflow_decide.h"

namespace mycojobs {

struct ShadowSettings {
  std::string manifest;              // hash, in the catalog
  std::vector<EventArrived> events;  // sent one after the other
  // effect -> payload of an ok receipt, as JSON; an effect that is not named stays pending, unless placeholders are on
  std::map<std::string, std::string> receipts;
  bool placeholders = true;  // the least payload that fits the effect's schema
  Sample sample;             // of the first event; each later one is a millisecond later
  std::uint64_t max_steps = 1'000;
};
struct ShadowState {
  CellId cell;
  InstanceStatus status = InstanceStatus::running;
  std::string failure, message, before, after;  // before, after: hashes of the state; empty: null or not there
  std::optional<std::string> was, is;           // the states themselves, in CBOR; nothing: null, not there, or spilled
};
struct ShadowReport {
  std::vector<ApplyObstacle> obstacles;                     // an apply would be refused now
  std::vector<EffectToPublish> effects;                     // asked for, in order
  std::vector<EffectToPublish> pending;                     // without a receipt at the end
  std::vector<ShadowState> changed;                         // instances that differ from the copied world
  std::map<std::string, std::vector<std::string>> allowed;  // workflow -> effects_emitted
  std::set<std::string> made_up;                            // effects whose receipt is a placeholder
  std::vector<std::string> refused;                         // events and receipts that were, and why
  std::uint64_t steps = 0;
  bool cut = false;  // max_steps ended it
};
// For programs: names and values as JSON has them.
nlohmann::json to_json(const ShadowReport&);
ShadowReport simulate(WorldState copy, const ManifestCatalog&, const ShadowSettings&, const WorkflowEngine&);

}  // namespace mycojobs
