#include "inspect/verify/deployment_verify.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "base/sha256.h"
#include "model/codec.h"
#include "store/keys.h"
#include "text/json.h"
#include "workflows/manifest/workflow_manifest.h"
#include "workflows/workflow_decider.h"
#include "workflows/workflow_snapshot.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::uint32_t kMaxFactsPerRead = 1000, kMaxInboxEntriesPerRead = 1000;
constexpr std::size_t kMaxDeployments = 100000;
constexpr int kDeploymentChecks = 3;     // number of reads in which a finding must occur
constexpr int kMaxDeploymentReads = 20;  // attempts to read a deployment that changes continuously
constexpr std::chrono::milliseconds kReadInterval{100};

// One read of a deployment, with its findings. The findings are not valid if the deployment has changed during the
// read.
class DeploymentScan {
 public:
  DeploymentScan(WorkflowStore& deployments, Store& store, Id context, const std::string& deployment)
      : deployments_(&deployments), store_(&store) {
    inspection_.context = context;
    inspection_.deployment = deployment;
    inspection_.state.id = std::to_string(context) + '/' + deployment;
  }

  Result<void> run() {
    auto store_state = deployments_->read_state(inspection_.context, inspection_.deployment);
    if (!store_state && store_state.error().code != Code::invalid)
      return tl::unexpected<Error>(std::move(store_state).error());
    if (!store_state) return set_journal_problem("cannot be read: " + store_state.error().message);
    inspection_.store_state = *store_state;
    MJ_CHECK(read_snapshot());
    MJ_CHECK(read_journal());
    if (inspection_.journal_problem.empty()) {
      MJ_CHECK(read_manifests_and_blobs());
      MJ_CHECK(read_effect_refs());
    }
    MJ_TRY(final_state, deployments_->read_state(inspection_.context, inspection_.deployment));
    has_changed = final_state.height != inspection_.store_state.height ||
                  final_state.inbox_entries != inspection_.store_state.inbox_entries;
    findings = check_invariants(inspection_);
    return {};
  }

  bool has_changed = false;
  std::vector<DeploymentFinding> findings;
  std::uint64_t height() const { return inspection_.store_state.height; }

 private:
  Result<void> set_journal_problem(const std::string& text) {
    inspection_.journal_problem = text;
    findings = check_invariants(inspection_);
    return {};
  }
  // Returns the error of a read as text, or an empty text. The error `unavailable` is returned as an error.
  template <class T>
  static Result<std::string> get_error_text(const Result<T>& result) {
    if (!result && result.error().code == Code::unavailable) return tl::unexpected<Error>(result.error());
    return result ? std::string() : result.error().message;
  }

  Result<ParsedSnapshot> read_whole_snapshot(const std::string& hash) {
    const auto read = [&](const std::vector<std::string>& hashes) {
      return deployments_->read_blobs(inspection_.context, inspection_.deployment, hashes);
    };
    MJ_TRY(bytes, deployments_->blob(inspection_.context, inspection_.deployment, hash));
    MJ_TRY(root, read_snapshot_root(hash, bytes));
    return mycojobs::read_snapshot(std::move(root), read);
  }
  Result<void> read_snapshot() {
    const DeploymentStoreState& store_state = inspection_.store_state;
    if (store_state.snapshot_height == 0) return {};
    if (store_state.snapshot_height > store_state.height)
      return inspection_.snapshot_problem = "its snapshot is of later than now", Result<void>();
    auto result = read_whole_snapshot(store_state.snapshot);
    MJ_TRY(problem, get_error_text(result));
    if (result)
      snapshot_ = std::move(result->deployment);
    else
      inspection_.snapshot_problem = "its snapshot: " + problem;
    return {};
  }

  Result<void> read_journal() {
    std::uint64_t height = 0;  // height of the latest fact that was read
    while (height < inspection_.store_state.height && inspection_.journal_problem.empty()) {
      auto page = deployments_->read(inspection_.context, inspection_.deployment, height, kMaxFactsPerRead);
      MJ_TRY(problem, get_error_text(page));
      if (!problem.empty()) return inspection_.journal_problem = "cannot be read: " + problem, Result<void>();
      if (page->facts.empty()) {
        inspection_.journal_problem = "the fact at height " + std::to_string(height + 1) + " is missing";
        return {};
      }
      for (const std::string& bytes : page->facts) {
        if (height >= inspection_.store_state.height || !fold_fact(++height, bytes)) break;
      }
    }
    return {};
  }
  // Adds a fact to the state. Returns false and records the problem if the fact is invalid.
  bool fold_fact(std::uint64_t height, const std::string& bytes) {
    const std::string location = "height " + std::to_string(height);
    const auto fact = decode_workflow_fact(bytes);
    if (!fact) return inspection_.journal_problem = location + " is not a valid fact: " + fact.error().message, false;
    if (const auto problem = fold(inspection_.state, *fact))
      return inspection_.journal_problem = std::string(problem->rule) + ": " + problem->text, false;
    if (const auto* refused = std::get_if<ReceiptRefused>(&fact->content)) refused_intents_.insert(refused->intent);
    if (snapshot_ && snapshot_->height == height && !(*snapshot_ == inspection_.state))
      inspection_.snapshot_problem = "its snapshot differs from its journal at height " + std::to_string(height);
    return true;
  }

  Result<void> read_manifests_and_blobs() {
    std::set<std::string> hashes{inspection_.state.manifest};
    for (const auto& [id, instance] : inspection_.state.instances) {
      hashes.insert(instance.manifest);
      if (instance.state && instance.state->is_spilled()) MJ_CHECK(read_blob(id, *instance.state));
    }
    hashes.erase("");
    for (const std::string& hash : hashes) MJ_CHECK(check_manifest(hash));
    return {};
  }
  Result<void> read_blob(const InstanceId& id, const StateRef& state) {
    const auto bytes = deployments_->blob(inspection_.context, inspection_.deployment, state.hash);
    MJ_TRY(problem, get_error_text(bytes));
    if (problem.empty() && sha256_hex(*bytes) == state.hash) return {};
    inspection_.blob_problems[state.hash] =
        "the state of " + display_name(id) + ": " +
        (problem.empty() ? "the blob " + state.hash + " does not have the content of its hash" : problem);
    return {};
  }
  Result<void> check_manifest(const std::string& hash) {
    const auto text = deployments_->manifest(inspection_.context, inspection_.deployment, hash);
    MJ_TRY(problem, get_error_text(text));
    std::string manifest_problem = problem;
    if (problem.empty()) {
      const auto stored = parse_json(*text);
      const bool is_valid = stored && stored->is_object() && stored->contains("manifest");
      CodeFiles code;
      const json files = is_valid ? stored->value("code", json::object()) : json::object();
      for (const auto& [module, source] : files.items())
        if (source.is_string()) code.emplace(module, source.get<std::string>());
      const ParsedManifest result =
          is_valid ? read_manifest(stored->at("manifest"), std::move(code)) : ParsedManifest();
      if (!result.manifest) manifest_problem = "manifest " + hash + " cannot be read";
      if (result.manifest && result.manifest->hash != hash)
        manifest_problem = "manifest " + hash + " is stored with other content";
    }
    if (!manifest_problem.empty()) inspection_.manifest_problems[hash] = manifest_problem;
    return {};
  }

  // Reads all pages, because a single read has a size limit. Drops all fields of the entries except `key`, to save
  // memory.
  Result<std::vector<InboxEntry>> read_inbox_entries() {
    std::vector<InboxEntry> entries;
    for (std::string after; entries.size() <= kMaxInboxEntries;) {
      MJ_TRY(page, deployments_->read_inbox(inspection_.context, inspection_.deployment, kMaxInboxEntriesPerRead,
                                            kMaxInboxReadBytes, after));
      if (page.empty()) break;
      after = page.back().id;
      for (InboxEntry& entry : page) {
        entry.fields.erase(std::remove_if(entry.fields.begin(), entry.fields.end(),
                                          [](const auto& field) { return field.first != "key"; }),
                           entry.fields.end());
        entries.push_back(std::move(entry));
      }
    }
    return entries;
  }
  Result<void> read_effect_refs() {
    std::set<std::string> ended_effect_refs;
    MJ_TRY(entries, read_inbox_entries());
    static constexpr std::array<std::string_view, 5> kKinds{"event", "job", "flow", "answer", "remove"};
    for (const InboxEntry& entry : entries) {
      if (entry.kind == "job" || entry.kind == "flow")
        ended_effect_refs.insert(std::string(field_of(entry.fields, "key")));
      if (std::find(kKinds.begin(), kKinds.end(), entry.kind) == kKinds.end())
        inspection_.invalid_inbox_entries.push_back(entry.id);
    }
    for (const auto& [intent, id] : inspection_.state.intents) {
      const PendingIntent& pending = inspection_.state.find_instance(id)->pending_intents.at(intent);
      const bool has_no_record = pending.effect_ref == kTimerEffectRef || pending.effect_ref == kApprovalEffectRef;
      if (!pending.published || has_no_record) continue;
      EffectRefInspection effect{id, intent, pending.effect_ref};
      effect.is_in_inbox = ended_effect_refs.contains(pending.effect_ref);
      effect.receipt_refused = refused_intents_.contains(intent);
      MJ_CHECK(read_record(effect));
      inspection_.effect_refs.push_back(std::move(effect));
    }
    return {};
  }
  Result<void> read_record(EffectRefInspection& effect_ref) {
    if (effect_ref.effect_ref.find(':') == std::string::npos) return {};
    static constexpr std::array<std::string_view, 3> kFields{"status", "effect_of", "idempotency_key"};
    const auto record = store_->load_fields(inspection_.context, effect_ref.effect_ref, kFields);
    MJ_TRY(problem, get_error_text(record));
    if (!problem.empty() || record->empty()) return {};
    effect_ref.exists = true;
    const std::string_view status = field_of(*record, "status");
    effect_ref.has_ended = status == kJobStatusFinished || status == kJobStatusError;
    effect_ref.effect_owner = field_of(*record, "effect_of");
    if (effect_ref.effect_ref.starts_with("job:")) effect_ref.idempotency_key = field_of(*record, "idempotency_key");
    return {};
  }

  WorkflowStore* deployments_;
  Store* store_;
  DeploymentInspection inspection_;
  std::optional<DeploymentState> snapshot_;
  std::set<std::string> refused_intents_;
};

// Repeats the read while the deployment changes during it.
Result<DeploymentScan> scan_stable_deployment(WorkflowStore& deployments, Store& store, Id context,
                                              const std::string& deployment) {
  for (int attempt = 0;; ++attempt) {
    DeploymentScan scan(deployments, store, context, deployment);
    MJ_CHECK(scan.run());
    if (!scan.has_changed || attempt == kMaxDeploymentReads) return scan;
    std::this_thread::sleep_for(kReadInterval);
  }
}

// Returns the findings that all reads have in common, so that data that is being changed gives no finding.
Result<DeploymentScan> scan_persistent_deployment_findings(WorkflowStore& deployments, Store& store, Id context,
                                                           const std::string& deployment) {
  MJ_TRY(scan, scan_stable_deployment(deployments, store, context, deployment));
  for (int attempt = 1; attempt < kDeploymentChecks && !scan.findings.empty(); ++attempt) {
    std::this_thread::sleep_for(kReadInterval);
    MJ_TRY(next_scan, scan_stable_deployment(deployments, store, context, deployment));
    std::erase_if(next_scan.findings, [&](const DeploymentFinding& finding) {
      return std::none_of(scan.findings.begin(), scan.findings.end(), [&](const DeploymentFinding& earlier) {
        return earlier.rule == finding.rule && earlier.text == finding.text;
      });
    });
    scan = std::move(next_scan);
  }
  return scan;
}

// Returns the deployments that are listed or have a journal.
Result<std::set<std::string>> list_all_deployments(WorkflowStore& deployments, Store& store, Id context) {
  constexpr std::string_view kJournalPrefix = kDeploymentJournalKey;
  MJ_TRY(listed, deployments.list_deployments(context));
  std::set<std::string> names(listed.begin(), listed.end());
  MJ_TRY(keys, store.keys(context, kJournalPrefix, kMaxDeployments));
  for (const std::string& key : keys) names.insert(key.substr(kJournalPrefix.size()));
  return names;
}

Result<void> rebuild_deployment(WorkflowStore& deployments, Store& store, Id context, const std::string& deployment,
                                bool dry_run, std::vector<std::string>& differences) {
  for (int attempt = 0; attempt < kMaxDeploymentReads; ++attempt) {
    MJ_TRY(scan, scan_persistent_deployment_findings(deployments, store, context, deployment));
    std::vector<std::string> lines;
    std::vector<DeploymentFix> fixes;
    for (const DeploymentFinding& finding : scan.findings) {
      if (!finding.violation) continue;
      lines.push_back(finding.text + (finding.fixes.empty() ? " (cannot be repaired)" : ""));
      fixes.insert(fixes.end(), finding.fixes.begin(), finding.fixes.end());
    }
    Result<bool> repaired = true;
    if (!dry_run && !fixes.empty()) repaired = deployments.repair(context, deployment, scan.height(), fixes);
    if (!repaired) return fail(std::move(repaired).error(), deployment);
    if (!*repaired) continue;
    std::move(lines.begin(), lines.end(), std::back_inserter(differences));
    return {};
  }
  return {};
}

}  // namespace

Result<std::vector<Finding>> verify_deployments(WorkflowStore& deployments, Store& store, Id context) {
  std::vector<Finding> findings;
  MJ_TRY(names, list_all_deployments(deployments, store, context));
  for (const std::string& deployment : names) {
    MJ_TRY(scan, scan_persistent_deployment_findings(deployments, store, context, deployment));
    std::move(scan.findings.begin(), scan.findings.end(), std::back_inserter(findings));
  }
  return findings;
}

Result<std::vector<std::string>> rebuild_deployments(WorkflowStore& deployments, Store& store, Id context,
                                                     bool dry_run) {
  std::vector<std::string> differences;
  MJ_TRY(names, list_all_deployments(deployments, store, context));
  for (const std::string& deployment : names)
    MJ_CHECK(rebuild_deployment(deployments, store, context, deployment, dry_run, differences));
  return differences;
}

}  // namespace mycojobs
