// Simulates a new manifest on a copy of the world, with placeholders for receipts. The report covers only the steps up
// to the limit; it says nothing about branches that did not run. Pure. Source: seed 003, 3.8.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "workflows/workflow_decider.h"

namespace mycojobs {

struct ShadowSettings {
  std::string manifest;              // hash of a manifest in the catalog
  std::vector<EventArrived> events;  // sent one after another
  // effect -> payload of an ok receipt, as JSON. Effects without an entry stay pending, unless placeholders are on.
  std::map<std::string, std::string> receipts;
  bool placeholders = true;  // use a minimal payload of the effect's receipt schema
  Sample sample;             // sample of the first event; each later event is a millisecond later
  std::uint64_t max_steps = 1'000;
};
struct ShadowState {
  InstanceId cell;
  InstanceStatus status = InstanceStatus::running;
  std::string failure, message, before, after;  // before, after: hashes of the state; empty: null or no instance
  std::optional<std::string> was, is;           // the states in CBOR; no value: null, no instance, or spilled
};
struct ShadowReport {
  std::vector<ApplyObstacle> obstacles;                     // reasons why an apply would be refused now
  std::vector<EffectToPublish> effects;                     // requested effects, in order
  std::vector<EffectToPublish> pending;                     // effects without a receipt at the end
  std::vector<ShadowState> changed;                         // instances that differ from the copied world
  std::map<std::string, std::vector<std::string>> allowed;  // workflow -> effects_emitted
  std::set<std::string> made_up;                            // effects whose receipt is a placeholder
  std::vector<std::string> refused;                         // refused events and receipts, with the reason
  std::uint64_t steps = 0;
  bool cut = false;  // max_steps was reached
};
// Returns the report for programs, with JSON values and full names.
nlohmann::json to_json(const ShadowReport&);
ShadowReport simulate(DeploymentState copy, const ManifestCatalog&, const ShadowSettings&, const StepEngine&);

}  // namespace mycojobs
