#include "workflows/tools/shadow.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "workflows/tools/manifest_diff.h"
#include "workflows/tools/readable_values.h"

namespace mycojobs {
namespace {

using nlohmann::json;

class Simulation {
 public:
  Simulation(DeploymentState copy, const ManifestCatalog& catalog, const ShadowSettings& settings,
             const StepEngine& engine)
      : before_(std::move(copy)), deployment_(before_), catalog_(catalog), settings_(settings), engine_(engine) {}

  ShadowReport run() {
    report_.obstacles = find_apply_obstacles(deployment_);
    const auto* manifest = catalog_.find(settings_.manifest);
    if (manifest == nullptr) {
      report_.refused_inputs.push_back("unknown manifest " + settings_.manifest);
      return std::move(report_);
    }
    for (const auto& workflow : manifest->workflows) report_.allowed_effects[workflow.name] = workflow.effects_emitted;
    // The simulation applies the manifest even if there are obstacles. Existing instances keep their code.
    deployment_.manifest = manifest->hash;
    run_until_idle();
    for (const auto& event : settings_.events) {
      apply_input("event " + event.schema, event);
      run_until_idle();
    }
    collect_changes();
    return std::move(report_);
  }

 private:
  // Applies one input. Returns the decision, or no value if the input was refused.
  std::optional<WorkflowDecision> apply_input(const std::string& label, decltype(WorkflowInput::content) input) {
    Sample sample = settings_.sample;
    sample.now_ms += input_count_;
    sample.entropy = derive_entropy(settings_.sample, input_count_++);
    auto decision = decide(deployment_, catalog_, {sample, std::move(input)}, kAllInline);
    auto committed = decision ? commit(deployment_, *decision) : Result<void>(tl::unexpected(decision.error()));
    if (committed) return std::move(*decision);
    report_.refused_inputs.push_back(label + ": " + committed.error().message);
    return std::nullopt;
  }
  // Runs steps and delivers receipts until the deployment is idle or max_steps is reached.
  void run_until_idle() {
    while (!report_.is_truncated && (run_step() || deliver_receipt()))
      ;
  }
  bool run_step() {
    const auto ready_instances = next_instances(deployment_, 1, blocked_instances_);
    if (ready_instances.empty()) return false;
    if (report_.steps >= settings_.max_steps) return report_.is_truncated = true, false;
    const InstanceId& id = ready_instances.front();
    const auto request = build_step_request(deployment_, catalog_, id);
    if (!request) {
      report_.refused_inputs.push_back(display_name(id) + ": " + request.error().message);
      return blocked_instances_.insert(id), true;
    }
    ++report_.steps;
    const InstanceState& instance = *deployment_.find_instance(id);
    const auto* manifest = catalog_.find(instance.manifest);
    const InboxEventId event_id = instance.inbox.front().id;
    const auto decision = apply_input(
        display_name(id), StepCompleted{id, event_id, engine_(*manifest->workflow(id.workflow), *manifest, *request)});
    if (!decision) return blocked_instances_.insert(id), true;
    report_.effects.insert(report_.effects.end(), decision->effects_to_publish.begin(),
                           decision->effects_to_publish.end());
    return true;
  }
  // Delivers a receipt for the oldest effect of the simulation without a receipt. Returns false if there is no such
  // effect.
  bool deliver_receipt() {
    for (const auto& effect : report_.effects) {
      const std::string& intent = effect.pending_intent.intent.hash;
      if (!deployment_.intents.contains(intent) || !answered_intents_.insert(intent).second) continue;
      const auto payload = build_receipt(effect);
      if (payload) return apply_input("receipt of " + effect.pending_intent.intent.effect, *payload), true;
    }
    return false;
  }
  std::optional<ReceiptArrived> build_receipt(const EffectToPublish& effect) {
    ReceiptArrived receipt;
    receipt.intent = effect.pending_intent.intent.hash;
    receipt.form = ValueForm::from_cbor;
    const std::string& name = effect.pending_intent.intent.effect;
    if (const auto entry = settings_.receipts.find(name); entry != settings_.receipts.end()) {
      receipt.payload = entry->second, receipt.form = ValueForm::from_json;
      return receipt;
    }
    if (!settings_.placeholders) return std::nullopt;
    const auto* manifest = catalog_.find(deployment_.find_instance(effect.instance)->manifest);
    auto value = manifest->schemas.placeholder(manifest->effect(name)->receipt);
    if (!value) return report_.refused_inputs.push_back(name + ": " + value.error().message), std::nullopt;
    receipt.payload = std::move(value->bytes);
    report_.placeholder_effects.insert(name);
    return receipt;
  }
  void collect_changes() {
    std::set<InstanceId> ids;
    for (const auto& [id, instance] : before_.instances) ids.insert(id);
    for (const auto& [id, instance] : deployment_.instances) ids.insert(id);
    for (const auto& id : ids) {
      const InstanceState *old_instance = before_.find_instance(id), *new_instance = deployment_.find_instance(id);
      if (old_instance != nullptr && new_instance != nullptr && *old_instance == *new_instance) continue;
      ShadowState state{
          id, new_instance == nullptr ? InstanceStatus::completed : new_instance->status(), "", "", "", "", {}, {}};
      if (new_instance != nullptr) state.failure = new_instance->failure, state.message = new_instance->message;
      if (old_instance != nullptr && old_instance->state) state.old_hash = old_instance->state->hash;
      if (new_instance != nullptr && new_instance->state) state.new_hash = new_instance->state->hash;
      const auto get_inline_state = [](const InstanceState* instance) -> std::optional<std::string> {
        if (instance == nullptr || !instance->state || instance->state->is_spilled()) return std::nullopt;
        return instance->state->bytes;
      };
      state.old_state = get_inline_state(old_instance), state.new_state = get_inline_state(new_instance);
      report_.changed_instances.push_back(std::move(state));
    }
    for (const auto& [intent, id] : deployment_.intents) {
      const InstanceState& instance = deployment_.instances.at(id);
      report_.pending_effects.push_back({id, instance.workflow_hash(), instance.pending_intents.at(intent)});
    }
  }

  static constexpr WorkflowRules kAllInline{.inline_state_bytes = 64U << 20};  // the simulation has no blob store
  const DeploymentState before_;
  DeploymentState deployment_;
  const ManifestCatalog& catalog_;
  const ShadowSettings& settings_;
  const StepEngine& engine_;
  ShadowReport report_;
  std::set<InstanceId> blocked_instances_;
  std::set<std::string> answered_intents_;
  std::uint64_t input_count_ = 0;
};

json effect_to_json(const EffectToPublish& effect) {
  const Intent& intent = effect.pending_intent.intent;
  json out{{"effect", intent.effect},
           {"instance", display_name(effect.instance)},
           {"params", cbor_to_readable_json(intent.params)},
           {"intent", intent.hash}};
  if (!intent.issuer_ref.empty()) out["ref"] = intent.issuer_ref;
  return out;
}

}  // namespace

json to_json(const ShadowReport& report) {
  json out{{"obstacles", to_json(report.obstacles)},
           {"steps", report.steps},
           {"cut", report.is_truncated},
           {"refused", report.refused_inputs},
           {"allowed", report.allowed_effects},
           {"made_up", report.placeholder_effects}};
  for (const char* list : {"effects", "pending", "changed"}) out[list] = json::array();
  for (const auto& effect : report.effects) out["effects"].push_back(effect_to_json(effect));
  for (const auto& effect : report.pending_effects) out["pending"].push_back(effect_to_json(effect));
  for (const auto& change : report.changed_instances) {
    json row{{"instance", display_name(change.instance)}, {"status", to_string(change.status)}};
    row["before"] = change.old_state ? cbor_to_readable_json(*change.old_state) : json(nullptr);
    row["after"] = change.new_state ? cbor_to_readable_json(*change.new_state) : json(nullptr);
    row["before_hash"] = change.old_hash, row["after_hash"] = change.new_hash;
    if (!change.failure.empty()) row.update({{"failure", change.failure}, {"message", change.message}});
    out["changed"].push_back(std::move(row));
  }
  return out;
}

ShadowReport simulate(DeploymentState copy, const ManifestCatalog& catalog, const ShadowSettings& settings,
                      const StepEngine& engine) {
  return Simulation(std::move(copy), catalog, settings, engine).run();
}

}  // namespace mycojobs
