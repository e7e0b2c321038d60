#include "inspect/deployment_invariants.h"

#include <algorithm>

#include "base/parse.h"
#include "text/plural.h"
#include "workflows/workflow_decider.h"

namespace mycojobs {
namespace {

using DeploymentFixKind = DeploymentFix::Kind;

constexpr std::uint64_t kDeploymentLateMs = 10000;  // a world with a postponed instance is processed again after 5 s

class DeploymentChecker {
 public:
  explicit DeploymentChecker(const DeploymentInspection& inspection)
      : inspection_(inspection), state_(inspection.state) {}

  std::vector<DeploymentFinding> run() {
    if (!inspection_.journal.empty()) {
      add("world-journal", inspection_.journal +
                               ": it cannot be repaired; restore the keys of the deployment from a backup, or export "
                               "the readable part and apply it under another name");
      return std::move(findings_);
    }
    check_index();
    check_code();
    check_effect_refs();
    check_due();
    for (const std::string& entry : inspection_.odd_mail)
      add("world-mail", "the entry " + entry + " of its inbox is invalid: a coordinator drops it");
    return std::move(findings_);
  }

 private:
  void add(std::string_view rule, const std::string& text, std::vector<DeploymentFix> fixes = {}) {
    findings_.push_back(
        {finding(rule, inspection_.deployment, inspection_.deployment + ": " + text), std::move(fixes)});
  }

  void check_index() {
    const DeploymentStoreState& places = inspection_.places;
    if (!places.listed)
      add("world-index", "is missing in the index of deployments, so no coordinator processes it",
          {{DeploymentFixKind::list}, {DeploymentFixKind::due}});
    if (places.manifest != state_.manifest)
      add("world-index", "names another current manifest than its journal",
          {{DeploymentFixKind::head, state_.manifest, ""}});
    for (const std::string& name : places.full) {
      const auto cell = std::find_if(state_.cells.begin(), state_.cells.end(),
                                     [&](const auto& row) { return store_name(row.first) == name; });
      if (cell == state_.cells.end() || cell->second.mail.size() <= kMaxCellMail / 2)
        add("world-index", (cell == state_.cells.end() ? name : shown(cell->first)) + " counts as full, and is not",
            {{DeploymentFixKind::open, name, ""}});
    }
    if (!inspection_.snapshot.empty())
      add("world-snapshot",
          inspection_.snapshot + ": it cannot be used; without it the journal is read from its beginning",
          {{DeploymentFixKind::snapshot}});
  }

  void check_code() {
    for (const auto& [hash, why] : inspection_.manifests)
      add("world-manifest", why + ": `mycojobs workflow apply` of the same files brings it back, if it is in force");
    for (const auto& [hash, why] : inspection_.blobs)
      add("world-blob", why + ": its instance takes no step; restore it from a backup");
  }

  void check_effect_refs() {
    const std::string own = std::to_string(inspection_.context) + ' ' + inspection_.deployment;
    for (const EffectRefInspection& each : inspection_.effect_refs) {
      const std::string what = shown(each.cell) + " waits for " + each.effect_ref;
      const std::string kind = each.effect_ref.substr(0, each.effect_ref.find(':'));
      const DeploymentFix notice{DeploymentFixKind::notice, kind, each.effect_ref};
      if (kind != "job" && kind != "flow")
        add("world-effect", what + ", which belongs to no effect");
      else if (each.has_arrived)
        continue;
      else if (!each.is_there)
        add("world-effect", what + ", which is missing: it was lost and is not started again", {notice});
      else if (each.has_ended && !each.is_refused)
        add("world-unheard", what + ", which has ended, but the deployment has no event of the end", {notice});
      else if (!each.has_ended && each.effect_of != own)
        add("world-effect", what + ", whose record does not name its effect",
            {{DeploymentFixKind::mark, "", each.effect_ref}});
      else if (!each.key.empty() && each.key != "intent " + each.intent)
        add("world-effect", what + ", which carries another intent");
    }
  }

  // Checks the time at which the world is processed next. 0: only when new input arrives.
  void check_due() {
    std::uint64_t wanted = 0;
    std::string why;
    const auto want = [&](std::uint64_t at, const std::string& text) {
      if (wanted != 0 && wanted <= at) return;
      wanted = at;
      why = text;
    };
    const std::uint64_t now = inspection_.places.now_ms;
    for (const auto& [intent, id] : state_.intents) {
      const InstanceState* cell = state_.cell(id);
      const auto pending = cell == nullptr ? nullptr : &cell->pending.at(intent);
      if (pending == nullptr) continue;
      if (!pending->published) want(now, shown(id) + " has requested an effect");
      if (const std::uint64_t at = expired_receipts(*pending); pending->published && at != 0)
        want(at, shown(id) + " waits for a time");
    }
    if (!state_.ready.empty()) want(now, count_with_noun(state_.ready.size(), "instance") + " can take a step");
    if (inspection_.places.mail > 0) want(now, "its inbox has entries");
    if (wanted == 0) return;
    const std::uint64_t due = inspection_.places.due_ms, latest = std::max(wanted, now) + kDeploymentLateMs;
    if (due == 0 || due > latest)
      add("world-due", why + ", but it is missing in the index of due deployments", {{DeploymentFixKind::due}});
  }

  const DeploymentInspection& inspection_;
  const DeploymentState& state_;
  std::vector<DeploymentFinding> findings_;
};

}  // namespace

std::vector<DeploymentFinding> judge(const DeploymentInspection& inspection) {
  return DeploymentChecker(inspection).run();
}

}  // namespace mycojobs
