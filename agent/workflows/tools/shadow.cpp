#include "workflows/tools/shadow.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "workflows/tools/readable_values.h"

namespace mycojobs {
namespace {

using nlohmann::json;

class Shadow {
 public:
  Shadow(DeploymentState copy, const ManifestCatalog& catalog, const ShadowSettings& settings, const StepEngine& engine)
      : before_(std::move(copy)), deployment_(before_), catalog_(catalog), settings_(settings), engine_(engine) {}

  ShadowReport whole() {
    report_.obstacles = obstacles(deployment_);
    const auto* manifest = catalog_.find(settings_.manifest);
    if (manifest == nullptr) {
      report_.refused.push_back("unknown manifest " + settings_.manifest);
      return std::move(report_);
    }
    for (const auto& workflow : manifest->workflows) report_.allowed[workflow.name] = workflow.effects_emitted;
    // The simulation applies the manifest even if there are obstacles. Existing instances keep their code.
    deployment_.manifest = manifest->hash;
    settle();
    for (const auto& event : settings_.events) {
      take("event " + event.schema, event);
      settle();
    }
    compare();
    return std::move(report_);
  }

 private:
  // Applies one input. Returns the decision, or no value if the input was refused.
  std::optional<WorkflowDecision> take(const std::string& what, decltype(WorkflowInput::what) input) {
    Sample sample = settings_.sample;
    sample.now_ms += turn_;
    sample.entropy = derived_entropy(settings_.sample, turn_++);
    auto decision = decide(deployment_, catalog_, {sample, std::move(input)}, kAllInline);
    auto done = decision ? commit(deployment_, *decision) : Result<void>(tl::unexpected(decision.error()));
    if (done) return std::move(*decision);
    report_.refused.push_back(what + ": " + done.error().message);
    return std::nullopt;
  }
  // Takes steps and delivers receipts until nothing is left to do, or max_steps is reached.
  void settle() {
    while (!report_.cut && (step() || answer()))
      ;
  }
  bool step() {
    const auto next = next_instances(deployment_, 1, stuck_);
    if (next.empty()) return false;
    if (report_.steps >= settings_.max_steps) return report_.cut = true, false;
    const InstanceId& id = next.front();
    const auto request = request_of(deployment_, catalog_, id);
    if (!request) {
      report_.refused.push_back(shown(id) + ": " + request.error().message);
      return stuck_.insert(id), true;
    }
    ++report_.steps;
    const InstanceState& cell = *deployment_.cell(id);
    const auto* manifest = catalog_.find(cell.manifest);
    const MailId mail = cell.mail.front().id;
    const auto taken =
        take(shown(id), StepCompleted{id, mail, engine_(*manifest->workflow(id.workflow), *manifest, *request)});
    if (!taken) return stuck_.insert(id), true;
    report_.effects.insert(report_.effects.end(), taken->publish.begin(), taken->publish.end());
    return true;
  }
  // Delivers a receipt for the oldest effect of the simulation that has none.
  bool answer() {
    for (const auto& effect : report_.effects) {
      const std::string& intent = effect.pending.intent.hash;
      if (!deployment_.intents.contains(intent) || !answered_.insert(intent).second) continue;
      const auto payload = payload_of(effect);
      if (payload) return take("receipt of " + effect.pending.intent.effect, *payload), true;
    }
    return false;
  }
  std::optional<ReceiptArrived> payload_of(const EffectToPublish& effect) {
    ReceiptArrived receipt;
    receipt.intent = effect.pending.intent.hash;
    receipt.form = ValueForm::from_cbor;
    const std::string& name = effect.pending.intent.effect;
    if (const auto given = settings_.receipts.find(name); given != settings_.receipts.end()) {
      receipt.payload = given->second, receipt.form = ValueForm::from_json;
      return receipt;
    }
    if (!settings_.placeholders) return std::nullopt;
    const auto* manifest = catalog_.find(deployment_.cell(effect.cell)->manifest);
    auto value = manifest->schemas.placeholder(manifest->effect(name)->receipt);
    if (!value) return report_.refused.push_back(name + ": " + value.error().message), std::nullopt;
    receipt.payload = std::move(value->bytes);
    report_.made_up.insert(name);
    return receipt;
  }
  void compare() {
    std::set<InstanceId> all;
    for (const auto& [id, cell] : before_.cells) all.insert(id);
    for (const auto& [id, cell] : deployment_.cells) all.insert(id);
    for (const auto& id : all) {
      const InstanceState *was = before_.cell(id), *is = deployment_.cell(id);
      if (was != nullptr && is != nullptr && *was == *is) continue;
      ShadowState state{id, is == nullptr ? InstanceStatus::completed : is->status(), "", "", "", "", {}, {}};
      if (is != nullptr) state.failure = is->failure, state.message = is->message;
      if (was != nullptr && was->state) state.before = was->state->hash;
      if (is != nullptr && is->state) state.after = is->state->hash;
      const auto bytes = [](const InstanceState* cell) -> std::optional<std::string> {
        if (cell == nullptr || !cell->state || cell->state->spilled()) return std::nullopt;
        return cell->state->bytes;
      };
      state.was = bytes(was), state.is = bytes(is);
      report_.changed.push_back(std::move(state));
    }
    for (const auto& [intent, id] : deployment_.intents) {
      const InstanceState& cell = deployment_.cells.at(id);
      report_.pending.push_back({id, cell.workflow_hash(), cell.pending.at(intent)});
    }
  }

  static constexpr WorkflowRules kAllInline{.inline_state_bytes = 64U << 20};  // the simulation has no blob store
  const DeploymentState before_;
  DeploymentState deployment_;
  const ManifestCatalog& catalog_;
  const ShadowSettings& settings_;
  const StepEngine& engine_;
  ShadowReport report_;
  std::set<InstanceId> stuck_;
  std::set<std::string> answered_;
  std::uint64_t turn_ = 0;
};

json effect_json(const EffectToPublish& effect) {
  const Intent& intent = effect.pending.intent;
  json out{{"effect", intent.effect},
           {"instance", shown(effect.cell)},
           {"params", readable_cbor(intent.params)},
           {"intent", intent.hash}};
  if (!intent.issuer_ref.empty()) out["ref"] = intent.issuer_ref;
  return out;
}

}  // namespace

json to_json(const ShadowReport& report) {
  json out{{"steps", report.steps},
           {"cut", report.cut},
           {"refused", report.refused},
           {"allowed", report.allowed},
           {"made_up", report.made_up}};
  for (const char* list : {"obstacles", "effects", "pending", "changed"}) out[list] = json::array();
  for (const auto& each : report.obstacles)
    out["obstacles"].push_back(
        {{"instance", shown(each.cell)}, {"mail", each.mail}, {"in_flight", each.pending}, {"queued", each.queued}});
  for (const auto& each : report.effects) out["effects"].push_back(effect_json(each));
  for (const auto& each : report.pending) out["pending"].push_back(effect_json(each));
  for (const auto& each : report.changed) {
    json row{{"instance", shown(each.cell)}, {"status", to_string(each.status)}};
    row["before"] = each.was ? readable_cbor(*each.was) : json(nullptr);
    row["after"] = each.is ? readable_cbor(*each.is) : json(nullptr);
    row["before_hash"] = each.before, row["after_hash"] = each.after;
    if (!each.failure.empty()) row.update({{"failure", each.failure}, {"message", each.message}});
    out["changed"].push_back(std::move(row));
  }
  return out;
}

ShadowReport simulate(DeploymentState copy, const ManifestCatalog& catalog, const ShadowSettings& settings,
                      const StepEngine& engine) {
  return Shadow(std::move(copy), catalog, settings, engine).whole();
}

}  // namespace mycojobs
