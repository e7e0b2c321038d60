// Storage of deployments of workflows. A deployment is identified by a context and a manifest name. It consists of an
// ordered journal of facts (workflows/workflow_facts.h), which is authoritative, and of blobs, manifests and an inbox.
// A store does not interpret these bytes (workflows/workflow_decider.h does).
//
// A deployment changes only in commits that name the height that the caller has read. An incoming event or the end of
// an effect stays in the inbox until a commit removes it in the same step that appends the resulting facts.
//
// Thread-safety: a WorkflowStore is used by one thread. Errors: as in store/store.h; every call may be repeated, but
// a repeated post() without a key may add a second entry to the inbox. Times are of the store's own clock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

class ContextLinks;

inline constexpr std::uint64_t kMaxInboxEntries = 100000;       // entries in the inbox of one deployment
inline constexpr std::uint64_t kMaxInboxReadBytes = 16U << 20;  // bytes of one read, unless a single entry is larger
inline constexpr std::uint64_t kMaxCellInboxEntries = 10000;  // entries for one instance; further senders are rejected

// State of a deployment, as returned by WorkflowStore::read().
struct DeploymentReadResult {
  std::uint64_t height = 0;           // height of the latest fact, or 0 if there is no fact
  std::vector<std::string> facts;     // facts after the requested height, up to the requested number and 8 MiB
  std::uint64_t snapshot_height = 0;  // height of the latest snapshot, or 0 if there is no snapshot
  std::string snapshot;               // hash of the snapshot's blob
  std::string manifest;               // hash of the manifest in force, or empty if no manifest was applied
};
// An entry in the inbox of a deployment.
struct InboxEntry {
  std::string id;    // id of the entry
  std::string kind;  // event, job, flow, answer, remove, cancel
  // event: schema, value (JSON), source, to (comma-separated PostTarget::instance); job, flow: key; answer: intent,
  // payload; remove, cancel: workflow, key (hex), by, reason.
  Fields fields;
};
// A commit is one atomic step.
struct DeploymentCommit {
  Id context = 0;
  std::string deployment;
  std::uint64_t base_height = 0;                           // height that the commit is based on
  std::vector<std::string> facts;                          // at base + 1, base + 2, ...
  std::vector<std::pair<std::string, std::string>> blobs;  // hash, bytes
  std::vector<std::string> processed_entries;              // ids of processed inbox entries
  std::string snapshot;                                    // hash of the blob of a snapshot, taken at the last fact
  std::string manifest;                                    // hash of the manifest that is in force from now on
  bool requires_empty_inbox = false;                       // commit only if the inbox is empty
  std::optional<std::vector<std::string>> full_instances;  // instances that accept no more events; nullopt keeps them
  std::uint64_t due_ms = 0;                                // time of the next evaluation; 0 means at the next event
  // Heights of the facts of each instance, separated by spaces, by name of the instance (as in full_instances).
  std::vector<std::pair<std::string, std::string>> changes;
};
// Facts after the latest snapshot, with all facts of one instance up to read_height. Result of
// WorkflowStore::read_instance_facts().
struct InstanceFacts {
  std::uint64_t height = 0, snapshot_height = 0;             // as in DeploymentReadResult
  std::string snapshot;                                      // as in DeploymentReadResult
  std::uint64_t read_height = 0;                             // less than `height` if more facts must be read
  std::vector<std::pair<std::uint64_t, std::string>> facts;  // height, fact
};

// A receiver of a posted event.
struct PostTarget {
  std::string instance;      // as in DeploymentCommit::full_instances
  std::string display_name;  // name in messages for users
};
// Conditions of a post.
struct PostRules {
  std::string manifest = {};             // hash of the manifest that validated the event; empty permits any
  std::vector<PostTarget> targets = {};  // receivers; the post is rejected if one of them is full
  // Idempotency key and hash of the content. The same key and content are posted once. A key is remembered for
  // kDeploymentKeyRetentionMs, at most kMaxDeploymentKeys per deployment.
  std::string key = {}, content_hash = {};
};
inline constexpr std::uint64_t kDeploymentKeyRetentionMs = std::uint64_t{7} * 24 * 3600 * 1000;
inline constexpr std::uint64_t kMaxDeploymentKeys = 100000;
// Result of WorkflowStore::post().
struct PostResult {
  std::string id;         // id of the inbox entry, never reused within a deployment
  bool repeated = false;  // posted before with the same key
};

// State of a deployment outside its journal, read in one step.
struct DeploymentStoreState {
  std::uint64_t height = 0, snapshot_height = 0, inbox_entries = 0, now_ms = 0;
  std::string snapshot, manifest;           // as in DeploymentReadResult
  bool is_listed = false;                   // in the list of deployments of the context
  std::uint64_t due_ms = 0;                 // time of the next evaluation, or 0 if no evaluation is scheduled
  std::vector<std::string> full_instances;  // as in DeploymentCommit
};
// Periodic query of a coordinator, which detects lost notifications.
struct DeploymentPoll {
  std::string deployment;
  std::vector<std::string> effect_refs;  // keys of jobs and flows that the deployment waits for
};
// Result of WorkflowStore::poll() for one deployment.
struct DeploymentPollResult {
  std::uint64_t inbox_entries = 0, now_ms = 0;
  std::uint64_t due_ms = 0;                // time of the next evaluation, or 0 if no evaluation is scheduled
  std::vector<std::string> ended_effects;  // effect_refs that have ended or no longer exist
};
// One repair step of a deployment. The steps are done atomically if the deployment has not changed since the
// inspection.
struct DeploymentFix {
  enum class Kind {
    add_to_list,     // adds the deployment to the list of deployments
    make_due,        // makes the deployment due now
    set_manifest,    // value: hash of the manifest in force
    clear_snapshot,  // records that there is no snapshot
    clear_full,      // value: an instance that is not full
    add_end_notice,  // value: job or flow; effect_ref: key of a job or flow that has ended or no longer exists
    watch_effect     // effect_ref: key of a job or flow whose end the deployment must be notified of
  };
  Kind kind = Kind::make_due;
  std::string value = {}, effect_ref = {};
  bool operator==(const DeploymentFix&) const = default;
};

class WorkflowStore {
 public:
  explicit WorkflowStore(std::unique_ptr<ContextLinks>);
  ~WorkflowStore();

  Result<std::vector<std::string>> list_deployments(Id context);  // by name
  // Adds the deployment to the list of deployments. Error conflict: the hash exists with other content.
  Result<void> put_manifest(Id context, const std::string& deployment, const std::string& hash,
                            const std::string& text);
  Result<std::string> manifest(Id context, const std::string& deployment, const std::string& hash);  // not_found
  Result<DeploymentReadResult> read(Id context, const std::string& deployment, std::uint64_t after, std::uint32_t max);
  // Returns the facts of these heights, in their order: up to 8 MiB, but at least one. A missing fact is empty.
  Result<std::vector<std::string>> read_facts(Id context, const std::string& deployment,
                                              const std::vector<std::uint64_t>& heights);
  // Reads the facts of an instance (named as in DeploymentCommit::full_instances) after the latest snapshot and after a
  // height, and facts that may concern it: up to 1000 facts and 8 MiB.
  Result<InstanceFacts> read_instance_facts(Id context, const std::string& deployment, const std::string& instance,
                                            std::uint64_t after = 0);
  Result<std::string> blob(Id context, const std::string& deployment, const std::string& hash);  // not_found
  // Returns the blobs in the order of their hashes. Error not_found: one of them does not exist.
  Result<std::vector<std::string>> read_blobs(Id context, const std::string& deployment,
                                              const std::vector<std::string>& hashes);
  Result<std::vector<std::string>> blobs(Id context, const std::string& deployment);  // hashes of all blobs
  // Error conflict: the deployment has another height than base_height; nothing was removed.
  Result<void> drop_blobs(Id context, const std::string& deployment, std::uint64_t base_height,
                          const std::vector<std::string>& hashes);
  // Writes the blobs before the facts. Error conflict: the deployment has another height, or requires_empty_inbox is
  // set and the inbox is not empty; read again.
  Result<void> commit(const DeploymentCommit&);
  // As commit(), for a commit with a manifest. expected_applies: value of the field `count` of mj:deployment-applies,
  // or empty, as read before the manifest was checked. Error conflict: another manifest of the context was applied
  // since then, and nothing was changed.
  Result<void> commit_manifest(const DeploymentCommit&, const std::string& expected_applies);
  // Adds an entry to the inbox of a deployment and makes the deployment due. Errors: not_found (no such deployment);
  // conflict (another manifest is in force, or the key was used for other content); too_large (kMaxInboxEntries entries
  // wait for the deployment, or an instance is full; the message names it).
  Result<PostResult> post(Id context, const std::string& deployment, const std::string& kind, const Fields&,
                          const PostRules& = {});
  // Returns the oldest entries of the inbox, after the entry `after` if it is not empty: at most `max`, and no more
  // after max_bytes are reached.
  Result<std::vector<InboxEntry>> read_inbox(Id context, const std::string& deployment, std::uint32_t max,
                                             std::uint64_t max_bytes = kMaxInboxReadBytes,
                                             const std::string& after = "");
  // Returns deployments that are due, and the time until the next deployment is due in ms (0 if there is none).
  Result<std::pair<std::vector<std::string>, std::uint64_t>> due_deployments(Id context, std::uint32_t max);
  // Processes all queries in one round trip. Results have the order of the queries.
  Result<std::vector<DeploymentPollResult>> poll(Id context, const std::vector<DeploymentPoll>&);
  Result<std::uint64_t> now_ms();
  // Error invalid: a key of the deployment has another type; the message names it.
  Result<DeploymentStoreState> read_state(Id context, const std::string& deployment);
  // Returns false and changes nothing if the deployment has another height.
  Result<bool> repair(Id context, const std::string& deployment, std::uint64_t height,
                      const std::vector<DeploymentFix>&);

 private:
  Result<std::string> read_hash_field(Id context, const std::string& key, const std::string& hash,
                                      const std::string& kind);

  std::unique_ptr<ContextLinks> links_;
};

}  // namespace mycojobs
