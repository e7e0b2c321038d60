// Workflows: applying manifests, sending events, answering approvals, looking at instances, replaying their history.
// What is shown is JSON, the same for commands and RPC.
#pragma once

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

#include "coordinator/world.h"
#include "domain/workflow_history.h"
#include "mycojobs/workflows.h"
#include "service/caller.h"

namespace mycojobs::service {

// Manifests in force, read once: they never change under their hash. Who was asked for last goes last. Any thread.
class ManifestCache {
 public:
  explicit ManifestCache(std::size_t most = 64) : most_(most) {}
  // As stored_manifest().
  Result<AppliedManifest> get(WorkflowStore&, Id context, const std::string& world, const std::string& hash);

 private:
  struct Kept {
    AppliedManifest applied;
    std::uint64_t asked = 0;
  };
  std::mutex mutex_;
  std::size_t most_;
  std::uint64_t turn_ = 0;
  std::map<std::tuple<Id, std::string, std::string>, Kept> kept_;
};

// What a workflow's functions work on; of one thread.
struct WorldStores {
  Store& records;
  WorkflowStore& worlds;
  ManifestCache* manifests = nullptr;  // none: each is read again
};

// Whether its code can be run (workflow/code_look.h). Error invalid: what is wrong with it, with names and lines.
using CodeCheck = std::function<Result<void>(const WorkflowManifest&)>;
struct ApplyWorkflow {
  CodeFiles code;                  // module -> text
  std::optional<Id> owner;         // as whom its effects run; nothing: who asks
  CodeCheck check_code = nullptr;  // null: it was looked at
};
struct AppliedWorkflow {
  std::string world, hash, replaced;  // replaced: hash of the one before; empty: the first
  bool repeated = false;              // it was in force already
  Id owner = 0;
};
// The world is called as the manifest. Errors: invalid (all that is wrong with it, with paths), conflict (14: instances
// run, or intents are in flight, or events wait: lists them; nothing was changed).
Result<AppliedWorkflow> apply_workflow(const Caller&, const WorldStores&, const nlohmann::json& manifest,
                                       const ApplyWorkflow&);

struct SendEvent {
  std::string event;                                // a name, or a short one that says which
  std::string value = {};                           // JSON
  std::string workflow = {};                        // a manifest; empty: the one that takes it
  std::optional<std::string> idempotency_key = {};  // of its actor: the same event with it again is sent once
  std::string traceparent = {};                     // in which trace its effects stand; empty: that of who asks
};
struct SentEvent {
  std::string world, event;
  std::string id;                    // never given twice in its world
  bool repeated = false;             // it was sent before with the same key
  std::vector<std::string> targets;  // for people: acme/order@1[7]
};
// Checked by the manifest in force, and handed over to a coordinator. Errors: not_found (no workflow takes it), invalid
// (names the field, or the workflows if several take it), too_large (names the instance that is full), conflict (the
// key was used for another event). Nothing is journaled then.
Result<SentEvent> send_event(const Caller&, const WorldStores&, const SendEvent&);

// An instance, as people name it: its workflow, and its key as JSON or text.
struct Instance {
  std::string workflow, key;
};
// The same, found. For who may read its workflow; it need not be there now. Errors: denied, not_found, invalid (key).
struct NamedInstance {
  std::string world;
  CellId cell;
};
Result<NamedInstance> find_instance(const Caller&, const WorldStores&, const Instance&);

struct AnswerApproval {
  Instance of;
  std::string intent = {};  // as it begins; empty: the one that waits
  bool approved = true;
  std::string comment = {};
};
// The answer is on its way; who was faster counts. Answers the intent. Errors: not_found (nothing of it waits for an
// approval), invalid (several do: lists them), denied (it names others).
Result<std::string> answer_approval(const Caller&, const WorldStores&, const AnswerApproval&);
// What instances wait for somebody's word for, at most so many: of everybody; who may see it is for the caller to
// judge.
struct WaitingApproval {
  std::string workflow, key;  // its key as JSON
  std::string intent, title;
  std::vector<Id> approvers;
  Id owner = 0;  // of the manifest in force
  std::uint64_t since_ms = 0, until_ms = 0;
};
// Those of each world as they were at a height, so that only what has happened since is read. Any thread.
class ApprovalCache {
 public:
  struct Known {
    std::uint64_t height = 0;
    std::vector<WaitingApproval> waiting;
  };
  std::shared_ptr<const Known> get(Id context, const std::string& world) const;  // null: nothing is known
  void put(Id context, const std::string& world, Known);

 private:
  static constexpr std::size_t kMostWorlds = 1000;
  mutable std::mutex mutex_;
  std::map<std::pair<Id, std::string>, std::shared_ptr<const Known>> known_;
};
// A world is loaded where its approvals have changed since the cache knew them; without a cache always.
Result<std::vector<WaitingApproval>> waiting_approvals(WorkflowStore&, Id context, std::size_t most,
                                                       ApprovalCache* = nullptr);
// Of an instance that has failed; it is deleted. Error conflict: it has not failed.
Result<void> remove_instance(const Caller&, const WorldStores&, const Instance&);
// A coordinator ends it, and what runs for it; it fails as `cancelled`. Errors: conflict (it has ended), invalid.
Result<void> cancel_instance(const Caller&, const WorldStores&, const Instance&, const std::string& reason);

Result<nlohmann::json> list_workflows(const Caller&, const WorldStores&);  // a row each
struct ListCells {
  std::string workflow;
  std::string status = {};    // running, waiting, completed, failed; empty: any
  std::uint64_t limit = 100;  // 1 to 10000
};
Result<nlohmann::json> list_cells(const Caller&, const WorldStores&, const ListCells&);
Result<nlohmann::json> show_instance(const Caller&, const WorldStores&, const Instance&);
inline constexpr std::uint64_t kTimelineFacts = 300;
struct TimelineRequest {
  std::uint64_t limit = kTimelineFacts;  // 1 to 1000
  std::uint64_t before = 0;              // only facts before this height; 0: the latest
};
// What has happened to an instance, oldest first: of what is asked for the latest facts. Earlier ones are before the
// height of the first. Error not_found: nothing ever.
Result<nlohmann::json> instance_timeline(const Caller&, const WorldStores&, const Instance&,
                                         const TimelineRequest& = {});
// Why an instance is where it is: [{cause, reason, evidence, next}]. leader: where a coordinator leads; empty: none.
Result<nlohmann::json> explain_instance(const Caller&, const WorldStores&, const Instance&, const std::string& leader);
// The world's facts after a height, at most `limit` (1 to 1000): {world, height, facts: [...]}.
Result<nlohmann::json> read_facts(const Caller&, const WorldStores&, const std::string& workflow, std::uint64_t after,
                                  std::uint64_t limit);
// The whole journal, with manifests and blobs.
Result<WorkflowHistory> workflow_history(const Caller&, const WorldStores&, const std::string& workflow);

struct ReplayedWorld {
  std::string world;
  std::uint64_t entries = 0, steps = 0;
  std::optional<OutputDiffers> differs;  // the first; its instance has failed now
};
// From the first fact on, every step by the engine again. Errors: the engine's; invalid: a fact that does not fit.
Result<ReplayedWorld> verify_workflow(const Caller&, const WorldStores&, const std::string& workflow, const StepTaker&);

}  // namespace mycojobs::service
