// Operations on workflows: apply manifests, send events, answer approvals, read instances, replay their history.
// Results are JSON, the same for commands and RPC.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "artifacts/transfer/job_log_reader.h"
#include "service/request_params.h"
#include "service/service_caller.h"
#include "store/workflow_store.h"
#include "workflows/deployment/deployment.h"
#include "workflows/tools/workflow_history.h"

namespace mycojobs::service {

// Maximum number of manifests of one owner in a context. Operators may apply more.
inline constexpr std::size_t kMaxManifestsOfOwner = 100;

// The parts of a manifest in force that are needed to find the receiver of an event or the owner of a name.
struct ManifestInForce {
  std::string deployment, hash;
  Id owner = 0;
  std::vector<std::string> workflows;  // names of its workflows
  std::vector<std::string> events;     // names of the events in its subscriptions
};

// Cache of applied manifests, which never change under their hash, and of the manifests in force of each context.
// Evicts the least recently used manifest. Thread-safe.
class ManifestCache {
 public:
  using ManifestsInForce = std::shared_ptr<const std::vector<ManifestInForce>>;
  // max_age: after this time the manifests in force are read again, in case another client has changed the store.
  explicit ManifestCache(std::size_t max = 64, std::chrono::milliseconds max_age = std::chrono::seconds(5))
      : max_manifests_(max), max_age_(max_age) {}
  // Same as load_manifest().
  Result<AppliedManifest> get(WorkflowStore&, Id context, const std::string& deployment, const std::string& hash);
  // `apply_count` is the number of manifests that were applied in the context, as read from the store. Returns null if
  // nothing is cached for this number.
  ManifestsInForce find_manifests_in_force(Id context, const std::string& apply_count) const;
  void cache_manifests_in_force(Id context, const std::string& apply_count, ManifestsInForce);
  void drop_manifests_in_force(Id context);

 private:
  static constexpr std::size_t kMaxContexts = 64;
  struct CachedManifest {
    AppliedManifest applied;
    std::uint64_t last_used = 0;  // value of use_count_ at the last use
  };
  struct CachedManifestsInForce {
    std::string apply_count;
    ManifestsInForce manifests;
    std::chrono::steady_clock::time_point read_at;
  };
  mutable std::mutex mutex_;
  std::size_t max_manifests_;
  std::chrono::milliseconds max_age_;
  std::uint64_t use_count_ = 0;  // number of uses of cached manifests so far
  std::map<std::tuple<Id, std::string, std::string>, CachedManifest> manifests_;
  std::map<Id, CachedManifestsInForce> in_force_;
};

// The stores that the functions for workflows use. Not thread-safe.
struct WorkflowStores {
  Store& records;
  WorkflowStore& deployments;
  ManifestCache* manifests = nullptr;  // null: each manifest is read again
  JobLogReader* logs = nullptr;        // null: logs have the lines of the store only
};

// Checks whether the code of a manifest can run (workflows/engine/code_check.h). Error `invalid` describes the
// problems, with names and lines.
using CodeCheck = std::function<Result<void>(const WorkflowManifest&)>;
struct ApplyWorkflow {
  CodeFiles code;                  // module -> text
  std::optional<Id> owner;         // actor as which the effects run; empty: the caller
  CodeCheck check_code = nullptr;  // null: the code was checked before
};
struct AppliedWorkflow {
  std::string deployment, hash, replaced;  // replaced: hash of the previous manifest; empty: this is the first manifest
  bool repeated = false;                   // the manifest was in force already
  Id owner = 0;
};
nlohmann::json to_json(const AppliedWorkflow&);
// Applies a manifest. The deployment has the name of the manifest. Errors: `invalid` (all problems of the manifest,
// with paths), `conflict` (lists the running instances, intents in flight or waiting events that prevent the change,
// see rule 14 of docs/workflows/README.md; or a name belongs to another owner), `too_large` (the owner has
// kMaxManifestsOfOwner manifests).
Result<AppliedWorkflow> apply_workflow(const RequestContext&, const WorkflowStores&, const nlohmann::json& manifest,
                                       const ApplyWorkflow&);

struct SendEvent {
  // Full name or short name of an event. A short name is searched in the manifests of the caller, then in all
  // manifests. The event that a short name means can change when other actors apply manifests.
  std::string event;
  std::string value = {};                           // JSON
  std::string workflow = {};                        // name of a manifest; empty: the manifest that accepts the event
  std::optional<std::string> idempotency_key = {};  // scope: the actor; the same event with the same key is sent once
  std::string traceparent = {};                     // trace of the effects; empty: the trace of the caller
};
struct SentEvent {
  std::string deployment, event;
  std::string id;                    // unique in its deployment
  bool repeated = false;             // the event was sent before with the same key
  std::vector<std::string> targets;  // display names: acme/order@1[7]
};
nlohmann::json to_json(const SentEvent&);
// Checks an event against the manifest in force and enqueues it for a coordinator. Errors: `not_found` (no workflow
// accepts the event), `invalid` (names the field, or the workflows if several accept the event), `too_large` (names the
// instance whose inbox is full), `conflict` (the key was used for another event). After an error nothing is journaled.
Result<SentEvent> send_event(const RequestContext&, const WorkflowStores&, const SendEvent&);

// Reference of a user to an instance: its workflow, and its key as JSON or text.
struct InstanceReference {
  std::string workflow, key;
};
struct NamedInstance {
  std::string deployment;
  InstanceId cell;
};
// Resolves a reference to an instance, which need not exist now. Needs the right to read the workflow. Errors:
// `denied`, `not_found`, `invalid` (key).
Result<NamedInstance> find_instance(const RequestContext&, const WorkflowStores&, const InstanceReference&);

struct AnswerApproval {
  InstanceReference instance;
  std::string intent = {};  // prefix of the intent; empty: the only waiting approval
  bool approved = true;
  std::string comment = {};
};
// Enqueues an answer and returns the intent. If there are several answers, the first counts. Errors: `not_found` (no
// matching approval waits), `invalid` (several match: lists them), `denied` (the approval names other approvers).
Result<std::string> answer_approval(const RequestContext&, const WorkflowStores&, const AnswerApproval&);
// An approval that an instance waits for.
struct WaitingApproval {
  std::string workflow, key;  // key as JSON
  std::string intent, title;
  std::vector<Id> approvers;
  Id owner = 0;  // owner of the manifest in force
  std::uint64_t since_ms = 0, until_ms = 0;
};
// Cache of the waiting approvals of each deployment at a height of its journal, so that only later facts are read.
// Thread-safe.
class ApprovalCache {
 public:
  struct CachedApprovals {
    std::uint64_t height = 0;
    std::vector<WaitingApproval> waiting;
  };
  // Returns null if nothing is cached.
  std::shared_ptr<const CachedApprovals> get(Id context, const std::string& deployment) const;
  void put(Id context, const std::string& deployment, CachedApprovals);

 private:
  static constexpr std::size_t kMaxDeployments = 1000;
  mutable std::mutex mutex_;
  std::map<std::pair<Id, std::string>, std::shared_ptr<const CachedApprovals>> approvals_;
};
// Returns at most `max` waiting approvals of all owners; the caller must check the rights to read them. A deployment is
// loaded only if its approvals have changed since the cached height; without a cache, every deployment is loaded.
Result<std::vector<WaitingApproval>> list_waiting_approvals(WorkflowStore&, Id context, std::size_t max,
                                                            ApprovalCache* = nullptr);
// Deletes a failed instance. Error `conflict`: the instance has not failed.
Result<void> remove_instance(const RequestContext&, const WorkflowStores&, const InstanceReference&);
// Requests the cancellation of an instance. A coordinator ends the instance and its running effects; the instance fails
// as `cancelled`. Errors: `conflict` (the instance has ended), `invalid`.
Result<void> cancel_instance(const RequestContext&, const WorkflowStores&, const InstanceReference&,
                             const std::string& reason);

// Returns one row for each workflow.
Result<nlohmann::json> list_workflows(const RequestContext&, const WorkflowStores&);
struct ListInstances {
  std::string workflow;
  std::string status = {};    // running, waiting, completed, failed; empty: any
  std::uint64_t limit = 100;  // REQUIRES: 1 to 10000
  std::string after = {};     // `cursor` of the last row of the preceding page; empty: the first page
};
ListInstances parse_list_instances(const RequestParams&);
Result<nlohmann::json> list_instances(const RequestContext&, const WorkflowStores&, const ListInstances&);
Result<nlohmann::json> show_instance(const RequestContext&, const WorkflowStores&, const InstanceReference&);
inline constexpr std::uint64_t kTimelineFacts = 300;
struct TimelineRequest {
  std::uint64_t limit = kTimelineFacts;  // REQUIRES: 1 to 1000
  std::uint64_t before = 0;              // only facts before this height; 0: the latest facts
};
TimelineRequest parse_timeline_request(const RequestParams&);
// Returns the latest facts of an instance within the request, oldest first. For earlier facts, pass the height of the
// first one as `before`. Error `not_found`: the instance has no facts.
Result<nlohmann::json> read_instance_timeline(const RequestContext&, const WorkflowStores&, const InstanceReference&,
                                              const TimelineRequest& = {});
// Explains the state of an instance: [{cause, reason, evidence, next}]. leader: the location of the coordinator that
// leads the context; empty if no coordinator leads it.
Result<nlohmann::json> explain_instance(const RequestContext&, const WorkflowStores&, const InstanceReference&,
                                        const std::string& leader);
// Returns at most `limit` facts of the deployment after a height: {world, height, facts: [...]}. REQUIRES: limit is 1
// to 1000.
Result<nlohmann::json> read_facts(const RequestContext&, const WorkflowStores&, const std::string& workflow,
                                  std::uint64_t after, std::uint64_t limit);
// Returns the whole journal with manifests and blobs.
Result<WorkflowHistory> read_workflow_history(const RequestContext&, const WorkflowStores&,
                                              const std::string& workflow);

struct ReplayResult {
  std::string deployment;
  std::uint64_t entries = 0, steps = 0;
  std::optional<OutputMismatchFound> mismatch;  // the first difference; its instance was set to failed
};
// Replays the journal from the first fact and runs every step in the engine again. Errors: the errors of the engine;
// `invalid`: a fact does not fit the state.
Result<ReplayResult> verify_workflow(const RequestContext&, const WorkflowStores&, const std::string& workflow,
                                     const StepRunner&);

}  // namespace mycojobs::service
