#include "inspect/deployment_invariants.h"

#include <algorithm>

#include "base/parse.h"
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
      add("deployment-journal",
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
      add("deployment-inbox", "the entry " + entry + " of its inbox is invalid: a coordinator drops it");
    return std::move(findings_);
  }

 private:
  void add(std::string_view rule, const std::string& text, std::vector<DeploymentFix> fixes = {}) {
    findings_.push_back(
        {make_finding(rule, inspection_.deployment, inspection_.deployment + ": " + text), std::move(fixes)});
  }

  void check_index() {
    const DeploymentStoreState& store_state = inspection_.store_state;
    if (!store_state.is_listed)
      add("deployment-index", "is missing in the index of deployments, so no coordinator processes it",
          {{DeploymentFixKind::add_to_list}, {DeploymentFixKind::make_due}});
    if (store_state.manifest != state_.manifest)
      add("deployment-index", "names another current manifest than its journal",
          {{DeploymentFixKind::set_manifest, state_.manifest, ""}});
    for (const std::string& name : store_state.full_instances) {
      const auto instance = std::find_if(state_.instances.begin(), state_.instances.end(),
                                         [&](const auto& row) { return store_name(row.first) == name; });
      if (instance == state_.instances.end() || instance->second.inbox.size() <= kMaxCellInboxEntries / 2)
        add("deployment-index",
            (instance == state_.instances.end() ? name : display_name(instance->first)) + " counts as full, and is not",
            {{DeploymentFixKind::clear_full, name, ""}});
    }
    if (!inspection_.snapshot_problem.empty())
      add("deployment-snapshot",
          inspection_.snapshot_problem + ": it cannot be used; without it the journal is read from its beginning",
          {{DeploymentFixKind::clear_snapshot}});
  }

  void check_code() {
    for (const auto& [hash, problem] : inspection_.manifest_problems)
      add("deployment-manifest",
          problem + ": `mycojobs workflow apply` of the same files brings it back, if it is in force");
    for (const auto& [hash, problem] : inspection_.blob_problems)
      add("deployment-blob", problem + ": its instance takes no step; restore it from a backup");
  }

  void check_effect_refs() {
    const std::string owner = std::to_string(inspection_.context) + ' ' + inspection_.deployment;
    for (const EffectRefInspection& each : inspection_.effect_refs) {
      const std::string description = display_name(each.instance) + " waits for " + each.effect_ref;
      const std::string kind = each.effect_ref.substr(0, each.effect_ref.find(':'));
      const DeploymentFix notice{DeploymentFixKind::add_end_notice, kind, each.effect_ref};
      if (kind != "job" && kind != "flow")
        add("deployment-effect", description + ", which belongs to no effect");
      else if (each.is_in_inbox)
        continue;
      else if (!each.exists)
        add("deployment-effect", description + ", which is missing: it was lost and is not started again", {notice});
      else if (each.has_ended && !each.receipt_refused)
        add("deployment-event-missing", description + ", which has ended, but the deployment has no event of the end",
            {notice});
      else if (!each.has_ended && each.effect_owner != owner)
        add("deployment-effect", description + ", whose record does not name its effect",
            {{DeploymentFixKind::watch_effect, "", each.effect_ref}});
      else if (!each.idempotency_key.empty() && each.idempotency_key != "intent " + each.intent)
        add("deployment-effect", description + ", which carries another intent");
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
    const std::uint64_t now = inspection_.store_state.now_ms;
    for (const auto& [intent, id] : state_.intents) {
      const InstanceState* instance = state_.find_instance(id);
      const auto pending = instance == nullptr ? nullptr : &instance->pending_intents.at(intent);
      if (pending == nullptr) continue;
      if (!pending->published) add_due_time(now, display_name(id) + " has requested an effect");
      if (const std::uint64_t time_ms = get_expiry_ms(*pending); pending->published && time_ms != 0)
        add_due_time(time_ms, display_name(id) + " waits for a time");
    }
    if (!state_.ready_instances.empty())
      add_due_time(now, count_with_noun(state_.ready_instances.size(), "instance") + " can take a step");
    if (inspection_.store_state.inbox_entries > 0) add_due_time(now, "its inbox has entries");
    if (due_ms == 0) return;
    const std::uint64_t indexed_due_ms = inspection_.store_state.due_ms,
                        max_due_ms = std::max(due_ms, now) + kMaxDueDelayMs;
    if (indexed_due_ms == 0 || indexed_due_ms > max_due_ms)
      add("deployment-due", reason + ", but it is missing in the index of due deployments",
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
