#include "inspect/deployment_invariants.h"

#include <algorithm>

#include "text/plural.h"
#include "workflows/workflow_decider.h"

namespace mycojobs {
namespace {

using DeploymentFixKind = DeploymentFix::Kind;

// A coordinator processes a deployment with a postponed instance again after 5 s, so its due time may be this late.
constexpr std::uint64_t kMaxDueDelayMs = 10000;

class DeploymentChecker {
 public:
  explicit DeploymentChecker(const DeploymentInspection& inspection)
      : inspection_(inspection), state_(inspection.state) {}

  std::vector<DeploymentFinding> run() {
    if (!inspection_.journal_problem.empty()) {
      add_finding("deployment-journal",
                  inspection_.journal_problem +
                      ": it cannot be repaired; restore the keys of the deployment from a backup, or export "
                      "the readable part and apply it under another name");
      return std::move(findings_);
    }
    check_index();
    check_code();
    check_effect_refs();
    check_due();
    for (const std::string& entry : inspection_.invalid_inbox_entries)
      add_finding("deployment-inbox", "the entry " + entry + " of its inbox is invalid: a coordinator drops it");
    return std::move(findings_);
  }

 private:
  void add_finding(std::string_view rule, const std::string& text, std::vector<DeploymentFix> fixes = {}) {
    findings_.push_back(
        {make_finding(rule, inspection_.deployment, inspection_.deployment + ": " + text), std::move(fixes)});
  }

  void check_index() {
    const DeploymentStoreState& store_state = inspection_.store_state;
    if (!store_state.is_listed)
      add_finding("deployment-index", "is missing in the index of deployments, so no coordinator processes it",
                  {{DeploymentFixKind::add_to_list}, {DeploymentFixKind::make_due}});
    if (store_state.manifest != state_.manifest)
      add_finding("deployment-index", "names another current manifest than its journal",
                  {{DeploymentFixKind::set_manifest, state_.manifest, ""}});
    for (const std::string& name : store_state.full_instances) {
      const auto instance = std::find_if(state_.instances.begin(), state_.instances.end(),
                                         [&](const auto& row) { return store_name(row.first) == name; });
      if (instance == state_.instances.end() || instance->second.inbox.size() <= kMaxCellInboxEntries / 2)
        add_finding(
            "deployment-index",
            (instance == state_.instances.end() ? name : display_name(instance->first)) + " counts as full, and is not",
            {{DeploymentFixKind::clear_full, name, ""}});
    }
    if (!inspection_.snapshot_problem.empty())
      add_finding(
          "deployment-snapshot",
          inspection_.snapshot_problem + ": it cannot be used; without it the journal is read from its beginning",
          {{DeploymentFixKind::clear_snapshot}});
  }

  void check_code() {
    for (const auto& [hash, problem] : inspection_.manifest_problems)
      add_finding("deployment-manifest",
                  problem + ": `mycojobs workflow apply` of the same files brings it back, if it is in force");
    for (const auto& [hash, problem] : inspection_.blob_problems)
      add_finding("deployment-blob", problem + ": its instance takes no step; restore it from a backup");
  }

  void check_effect_refs() {
    const std::string owner = std::to_string(inspection_.context) + ' ' + inspection_.deployment;
    for (const EffectRefInspection& effect : inspection_.effect_refs) {
      const std::string description = display_name(effect.instance) + " waits for " + effect.effect_ref;
      const std::string kind = effect.effect_ref.substr(0, effect.effect_ref.find(':'));
      const DeploymentFix notice{DeploymentFixKind::add_end_notice, kind, effect.effect_ref};
      if (kind != "job" && kind != "flow")
        add_finding("deployment-effect", description + ", which belongs to no effect");
      else if (effect.is_in_inbox)
        continue;
      else if (!effect.exists)
        add_finding("deployment-effect", description + ", which is missing: it was lost and is not started again",
                    {notice});
      else if (effect.has_ended && !effect.receipt_refused)
        add_finding("deployment-event-missing",
                    description + ", which has ended, but the deployment has no event of the end", {notice});
      else if (!effect.has_ended && effect.effect_owner != owner)
        add_finding("deployment-effect", description + ", whose record does not name its effect",
                    {{DeploymentFixKind::watch_effect, "", effect.effect_ref}});
      else if (!effect.idempotency_key.empty() && effect.idempotency_key != "intent " + effect.intent)
        add_finding("deployment-effect", description + ", which carries another intent");
    }
  }

  // Checks that the deployment is due when its pending work needs to be processed.
  void check_due() {
    std::uint64_t due_ms = 0;
    std::string reason;
    const auto add_due_time = [&](std::uint64_t time_ms, const std::string& text) {
      if (due_ms != 0 && due_ms <= time_ms) return;
      due_ms = time_ms;
      reason = text;
    };
    const std::uint64_t now_ms = inspection_.store_state.now_ms;
    for (const auto& [intent, id] : state_.intents) {
      const InstanceState* instance = state_.find_instance(id);
      const auto pending = instance == nullptr ? nullptr : &instance->pending_intents.at(intent);
      if (pending == nullptr) continue;
      if (!pending->published) add_due_time(now_ms, display_name(id) + " has requested an effect");
      if (const std::uint64_t time_ms = get_expiry_ms(*pending); pending->published && time_ms != 0)
        add_due_time(time_ms, display_name(id) + " waits for a time");
    }
    if (!state_.ready_instances.empty())
      add_due_time(now_ms, count_with_noun(state_.ready_instances.size(), "instance") + " can take a step");
    if (inspection_.store_state.inbox_entries > 0) add_due_time(now_ms, "its inbox has entries");
    if (due_ms == 0) return;
    const std::uint64_t indexed_due_ms = inspection_.store_state.due_ms,
                        max_due_ms = std::max(due_ms, now_ms) + kMaxDueDelayMs;
    if (indexed_due_ms == 0 || indexed_due_ms > max_due_ms)
      add_finding("deployment-due", reason + ", but it is missing in the index of due deployments",
                  {{DeploymentFixKind::make_due}});
  }

  const DeploymentInspection& inspection_;
  const DeploymentState& state_;
  std::vector<DeploymentFinding> findings_;
};

}  // namespace

std::vector<DeploymentFinding> check_invariants(const DeploymentInspection& inspection) {
  return DeploymentChecker(inspection).run();
}

}  // namespace mycojobs
