// Simulates a new manifest on a copy of a deployment, with placeholders for receipts. The report describes only the
// steps that were executed, up to a limit, not the branches of the code that were not executed. No side effects.
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
  std::vector<EventArrived> events;  // inputs of the simulation, in order
  // Payloads of ok receipts, as JSON, by effect. Effects without an entry stay pending, unless `placeholders` is set.
  std::map<std::string, std::string> receipts;
  bool placeholders = true;  // deliver minimal payloads that match the receipt schemas
  Sample sample;             // sample of the first input; each following input is one millisecond later
  std::uint64_t max_steps = 1'000;
};
// An instance that the simulation has changed.
struct ShadowState {
  InstanceId instance;
  InstanceStatus status = InstanceStatus::running;
  std::string failure, message;
  std::string old_hash, new_hash;  // hashes of the state; empty if the state is null or there is no instance
  std::optional<std::string> old_state, new_state;  // states in CBOR; no value if null, spilled, or without an instance
};
struct ShadowReport {
  std::vector<ApplyObstacle> obstacles;          // reasons why the manifest cannot be applied now
  std::vector<EffectToPublish> effects;          // requested effects, in order
  std::vector<EffectToPublish> pending_effects;  // effects without a receipt at the end
  std::vector<ShadowState> changed_instances;
  std::map<std::string, std::vector<std::string>> allowed_effects;  // effects_emitted, by workflow
  std::set<std::string> placeholder_effects;                        // effects with a placeholder as receipt
  std::vector<std::string> refused_inputs;                          // refused events and receipts, with the reason
  std::uint64_t steps = 0;                                          // number of executed steps
  bool is_truncated = false;                                        // max_steps was reached
};
// Returns the report in the JSON form for programs.
nlohmann::json to_json(const ShadowReport&);
ShadowReport simulate(DeploymentState copy, const ManifestCatalog&, const ShadowSettings&, const StepEngine&);

}  // namespace mycojobs
