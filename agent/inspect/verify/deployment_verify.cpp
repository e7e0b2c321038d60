#include "inspect/verify/deployment_verify.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "base/parse.h"
#include "base/sha256.h"
#include "model/codec.h"
#include "text/json.h"
#include "workflows/manifest/workflow_manifest.h"
#include "workflows/workflow_decider.h"
#include "workflows/workflow_snapshot.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint32_t kFactsPage = 1000, kMaxMailBatch = 1000;
constexpr std::size_t kMaxDeployments = 100000;
constexpr int kDeploymentChecks = 3;  // a finding must occur in all of them
constexpr int kDeploymentTries = 20;  // attempts to read a world that changes continuously
constexpr std::chrono::milliseconds kDeploymentPause{100};

// One read of one world. Moved: other clients have committed during the read, so that the result is invalid.
class DeploymentScan {
 public:
  DeploymentScan(WorkflowStore& deployments, Store& store, Id context, const std::string& deployment)
      : deployments_(&deployments), store_(&store) {
    inspection_.context = context;
    inspection_.deployment = deployment;
    inspection_.state.id = std::to_string(context) + '/' + deployment;
  }

  Result<void> run() {
    auto places = deployments_->places(inspection_.context, inspection_.deployment);
    if (!places && places.error().code != Code::invalid) return tl::unexpected<Error>(std::move(places).error());
    if (!places) return wrong("cannot be read: " + places.error().message);
    inspection_.places = *places;
    MJ_CHECK(read_snapshot());
    MJ_CHECK(read_journal());
    if (inspection_.journal.empty()) {
      MJ_CHECK(read_code());
      MJ_CHECK(read_effect_refs());
    }
    MJ_TRY(after, deployments_->places(inspection_.context, inspection_.deployment));
    moved = after.height != inspection_.places.height || after.mail != inspection_.places.mail;
    findings = judge(inspection_);
    return {};
  }

  bool moved = false;
  std::vector<DeploymentFinding> findings;
  std::uint64_t height() const { return inspection_.places.height; }

 private:
  Result<void> wrong(const std::string& text) {
    inspection_.journal = text;
    findings = judge(inspection_);
    return {};
  }
  // Returns the problem of a key that should hold a value; `unavailable` is an error.
  template <class T>
  static Result<std::string> trouble_of(const Result<T>& read) {
    if (!read && read.error().code == Code::unavailable) return tl::unexpected<Error>(read.error());
    return read ? std::string() : read.error().message;
  }

  Result<void> read_snapshot() {
    const DeploymentStoreState& places = inspection_.places;
    if (places.snapshot_height == 0) return {};
    if (places.snapshot_height > places.height)
      return inspection_.snapshot = "its snapshot is of later than now", Result<void>();
    auto read = mycojobs::read_snapshot(places.snapshot, [&](const std::string& hash) {
      return deployments_->blob(inspection_.context, inspection_.deployment, hash);
    });
    MJ_TRY(trouble, trouble_of(read));
    if (read)
      snapshot_ = std::move(read->deployment);
    else
      inspection_.snapshot = "its snapshot: " + trouble;
    return {};
  }

  Result<void> read_journal() {
    std::uint64_t after = 0;
    while (after < inspection_.places.height && inspection_.journal.empty()) {
      auto page = deployments_->read(inspection_.context, inspection_.deployment, after, kFactsPage);
      MJ_TRY(unread, trouble_of(page));
      if (!unread.empty()) return inspection_.journal = "cannot be read: " + unread, Result<void>();
      if (page->facts.empty()) {
        inspection_.journal = "the fact at height " + std::to_string(after + 1) + " is missing";
        return {};
      }
      for (const std::string& bytes : page->facts) {
        if (after >= inspection_.places.height || !fold_one(++after, bytes)) break;
      }
    }
    return {};
  }
  bool fold_one(std::uint64_t height, const std::string& bytes) {
    const std::string at = "height " + std::to_string(height);
    const auto fact = decode_workflow_fact(bytes);
    if (!fact) return inspection_.journal = at + " is not a valid fact: " + fact.error().message, false;
    if (const auto problem = fold(inspection_.state, *fact))
      return inspection_.journal = std::string(problem->rule) + ": " + problem->text, false;
    if (const auto* refused = std::get_if<ReceiptRefused>(&fact->what)) refused_.insert(refused->intent);
    if (snapshot_ && snapshot_->height == height && !(*snapshot_ == inspection_.state))
      inspection_.snapshot = "its snapshot differs from its journal at height " + std::to_string(height);
    return true;
  }

  Result<void> read_code() {
    std::set<std::string> run{inspection_.state.manifest};
    for (const auto& [id, cell] : inspection_.state.cells) {
      run.insert(cell.manifest);
      if (cell.state && cell.state->spilled()) MJ_CHECK(read_blob(id, *cell.state));
    }
    run.erase("");
    for (const std::string& hash : run) MJ_CHECK(read_manifest_of(hash));
    return {};
  }
  Result<void> read_blob(const InstanceId& id, const StateRef& state) {
    const auto bytes = deployments_->blob(inspection_.context, inspection_.deployment, state.hash);
    MJ_TRY(gone, trouble_of(bytes));
    if (gone.empty() && sha256_hex(*bytes) == state.hash) return {};
    inspection_.blobs[state.hash] =
        "the state of " + shown(id) + ": " +
        (gone.empty() ? "the blob " + state.hash + " does not have the content of its hash" : gone);
    return {};
  }
  Result<void> read_manifest_of(const std::string& hash) {
    const auto text = deployments_->manifest(inspection_.context, inspection_.deployment, hash);
    MJ_TRY(gone, trouble_of(text));
    std::string why = gone;
    if (gone.empty()) {
      const auto stored = parse_json(*text);
      const bool whole = stored && stored->is_object() && stored->contains("manifest");
      CodeFiles code;
      const json files = whole ? stored->value("code", json::object()) : json::object();
      for (const auto& [module, source] : files.items())
        if (source.is_string()) code.emplace(module, source.get<std::string>());
      const ParsedManifest read = whole ? read_manifest(stored->at("manifest"), std::move(code)) : ParsedManifest();
      if (!read.manifest) why = "manifest " + hash + " cannot be read";
      if (read.manifest && read.manifest->hash != hash) why = "manifest " + hash + " is stored with other content";
    }
    if (!why.empty()) inspection_.manifests[hash] = why;
    return {};
  }

  // Reads all pages, since a single read has a size limit and would hide the rest.
  Result<std::vector<InboxEntry>> read_mail() {
    std::vector<InboxEntry> all;
    for (std::string after; all.size() <= kMaxDeploymentMail;) {
      MJ_TRY(page,
             deployments_->mail(inspection_.context, inspection_.deployment, kMaxMailBatch, kMaxMailBytes, after));
      if (page.empty()) break;
      after = page.back().id;
      for (InboxEntry& mail : page) {
        mail.fields.erase(std::remove_if(mail.fields.begin(), mail.fields.end(),
                                         [](const auto& field) { return field.first != "key"; }),
                          mail.fields.end());
        all.push_back(std::move(mail));
      }
    }
    return all;
  }
  Result<void> read_effect_refs() {
    std::set<std::string> arrived;
    MJ_TRY(waiting, read_mail());
    static constexpr std::array<std::string_view, 5> kKinds{"event", "job", "flow", "answer", "remove"};
    for (const InboxEntry& mail : waiting) {
      if (mail.kind == "job" || mail.kind == "flow") arrived.insert(std::string(field_of(mail.fields, "key")));
      if (std::find(kKinds.begin(), kKinds.end(), mail.kind) == kKinds.end()) inspection_.odd_mail.push_back(mail.id);
    }
    for (const auto& [intent, id] : inspection_.state.intents) {
      const PendingIntent& pending = inspection_.state.cell(id)->pending.at(intent);
      const bool by_time = pending.effect_ref == kTimerEffectRef || pending.effect_ref == kApprovalEffectRef;
      if (!pending.published || by_time) continue;
      EffectRefInspection each{id, intent, pending.effect_ref};
      each.has_arrived = arrived.contains(pending.effect_ref);
      each.is_refused = refused_.contains(intent);
      MJ_CHECK(read_record(each));
      inspection_.effect_refs.push_back(std::move(each));
    }
    return {};
  }
  Result<void> read_record(EffectRefInspection& effect_ref) {
    if (effect_ref.effect_ref.find(':') == std::string::npos) return {};
    static constexpr std::array<std::string_view, 3> kAsked{"status", "effect_of", "idempotency_key"};
    const auto record = store_->load_fields(inspection_.context, effect_ref.effect_ref, kAsked);
    MJ_TRY(gone, trouble_of(record));
    if (!gone.empty() || record->empty()) return {};
    effect_ref.is_there = true;
    const std::string_view status = field_of(*record, "status");
    effect_ref.has_ended = status == "finished" || status == "error";
    effect_ref.effect_of = field_of(*record, "effect_of");
    if (effect_ref.effect_ref.starts_with("job:")) effect_ref.key = field_of(*record, "idempotency_key");
    return {};
  }

  WorkflowStore* deployments_;
  Store* store_;
  DeploymentInspection inspection_;
  std::optional<DeploymentState> snapshot_;
  std::set<std::string> refused_;
};

Result<DeploymentScan> still_frame(WorkflowStore& deployments, Store& store, Id context,
                                   const std::string& deployment) {
  for (int attempt = 0;; ++attempt) {
    DeploymentScan look(deployments, store, context, deployment);
    MJ_CHECK(look.run());
    if (!look.moved || attempt == kDeploymentTries) return look;
    std::this_thread::sleep_for(kDeploymentPause);
  }
}

// Repeats the read, so that data that changes during the read gives no finding.
Result<DeploymentScan> lasting_frame(WorkflowStore& deployments, Store& store, Id context,
                                     const std::string& deployment) {
  MJ_TRY(look, still_frame(deployments, store, context, deployment));
  for (int again = 1; again < kDeploymentChecks && !look.findings.empty(); ++again) {
    std::this_thread::sleep_for(kDeploymentPause);
    MJ_TRY(next, still_frame(deployments, store, context, deployment));
    std::erase_if(next.findings, [&](const DeploymentFinding& each) {
      return std::none_of(look.findings.begin(), look.findings.end(), [&](const DeploymentFinding& other) {
        return other.rule == each.rule && other.text == each.text;
      });
    });
    look = std::move(next);
  }
  return look;
}

// Returns the worlds that are listed and the worlds that have a journal.
Result<std::set<std::string>> deployments_of(WorkflowStore& deployments, Store& store, Id context) {
  constexpr std::string_view kJournals = "mj:world:";
  MJ_TRY(listed, deployments.list_deployments(context));
  std::set<std::string> all(listed.begin(), listed.end());
  MJ_TRY(keys, store.keys(context, kJournals, kMaxDeployments));
  for (const std::string& key : keys) all.insert(key.substr(kJournals.size()));
  return all;
}

Result<void> rebuild_deployment(WorkflowStore& deployments, Store& store, Id context, const std::string& deployment,
                                bool dry_run, std::vector<std::string>& differences) {
  for (int attempt = 0; attempt < kDeploymentTries; ++attempt) {
    MJ_TRY(look, lasting_frame(deployments, store, context, deployment));
    std::vector<std::string> lines;
    std::vector<DeploymentFix> fixes;
    for (const DeploymentFinding& each : look.findings) {
      if (!each.violation) continue;
      lines.push_back(each.text + (each.fixes.empty() ? " (cannot be repaired)" : ""));
      fixes.insert(fixes.end(), each.fixes.begin(), each.fixes.end());
    }
    Result<bool> done = true;
    if (!dry_run && !fixes.empty()) done = deployments.repair(context, deployment, look.height(), fixes);
    if (!done) return fail(std::move(done).error(), deployment);
    if (!*done) continue;
    std::move(lines.begin(), lines.end(), std::back_inserter(differences));
    return {};
  }
  return {};
}

}  // namespace

Result<std::vector<Finding>> verify_deployments(WorkflowStore& deployments, Store& store, Id context) {
  std::vector<Finding> findings;
  MJ_TRY(all, deployments_of(deployments, store, context));
  for (const std::string& deployment : all) {
    MJ_TRY(look, lasting_frame(deployments, store, context, deployment));
    std::move(look.findings.begin(), look.findings.end(), std::back_inserter(findings));
  }
  return findings;
}

Result<std::vector<std::string>> rebuild_deployments(WorkflowStore& deployments, Store& store, Id context,
                                                     bool dry_run) {
  std::vector<std::string> differences;
  MJ_TRY(all, deployments_of(deployments, store, context));
  for (const std::string& deployment : all)
    MJ_CHECK(rebuild_deployment(deployments, store, context, deployment, dry_run, differences));
  return differences;
}

}  // namespace mycojobs
