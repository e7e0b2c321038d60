// Work of the coordinator for the workflows of a context that it leads, in rounds:
//
//   inbox --> decide events and receipts --> run steps in the engine --> commit --> publish effects
//
// Effects are published only after the step that requested them was committed (invariant 10). After a crash in between,
// the next leader finds them in DeploymentIndex::unpublished_intents(). Publishing twice has no further effect, since
// the intent is the idempotency key of the job or flow that performs the effect. After a conflict with the commit of
// another process, the deployment is dropped and loaded again.
//
// An effect runs in the name of the owner (AppliedManifest). The permissions of the owner and the limits of its jobs
// apply. A deployment or instance is retried after a pause when its work fails, and does not delay the others.
//
// Not thread-safe. Steps run in a thread pool (step_pool.h), and the engine uses processes of its own. A commit waits
// for its steps for a short time only. The result of a slower step is part of a later commit.
//
// A snapshot is taken in several rounds. Each of them spends a few ms on it, and the deployment does nothing else until
// the snapshot is stored.
//
// A round serves the owners round-robin, one deployment of each (owner_turns.h). It spends at most
// DeploymentLimits::owner_ms on the deployments of an owner, plus the time of the current commit. The remaining
// deployments wait for the next round.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "flows/flow_run.h"
#include "jobs/job_limits.h"
#include "security/rights.h"
#include "store/flow_store.h"
#include "store/store.h"
#include "store/workflow_store.h"
#include "telemetry/metrics.h"
#include "workflows/deployment/deployment.h"
#include "workflows/deployment/deployment_inbox.h"
#include "workflows/deployment/deployment_traces.h"
#include "workflows/deployment/owner_turns.h"
#include "workflows/deployment/step_pool.h"

namespace mycojobs {

struct DeploymentLimits {
  std::uint64_t snapshot_every = 5000;                   // facts between snapshots
  std::size_t max_inbox_entries = 200, max_steps = 128;  // for one commit
  StepShares shares = {};                                // distribution of the threads for steps
  // Time that a commit waits for running steps. A round waits at most twice as long for each owner.
  std::uint64_t step_wait_ms = 8;
  std::uint64_t owner_ms = 50;  // time of a round for the deployments of an owner
  std::size_t max_inbox_events = kMaxCellInboxEntries;
  // Maximum size of the facts of inbox entries in one commit; the results of steps may add the same size again. A Redis
  // command is limited to 256 MiB.
  std::size_t max_commit_bytes = 48U << 20;
  std::uint64_t min_collection_bytes = 64U << 20;  // bytes of spilled states that are written before a collection
  std::size_t max_snapshot_bytes =
      kMaxSnapshotBytes;  // a larger deployment gets no snapshot; its journal has all facts
  // A commit of a snapshot: number of instances that are read together, and size of the blobs that end the commit.
  std::size_t snapshot_part_cells = kMaxSnapshotPartCells, snapshot_part_bytes = 1U << 20;
  CellCacheLimits cell_cache = {};
};

class DeploymentLoop {
 public:
  struct Dependencies {
    Store& store;
    FlowStore& flows;
    WorkflowStore& deployments;
    StepRunner run_step;
    const Clock& clock;
    JobLimits limits = {};  // limits of the jobs and flows that effects start
    std::shared_ptr<Metrics> metrics = no_metrics();
    // Called by any thread when a step has ended between two rounds.
    std::function<void()> wake = [] {};
    // Stores with which the threads of the steps read instances that are not in memory, each by one thread at a time.
    // If there are none, the round reads the instances.
    std::vector<WorkflowStore*> cell_stores = {};
  };
  DeploymentLoop(Dependencies dependencies, Id context, DeploymentLimits limits = {})
      : dependencies_(std::move(dependencies)),
        context_(context),
        limits_(std::move(limits)),
        free_cell_stores_(dependencies_.cell_stores),
        pool_(limits_.shares, dependencies_.wake) {}

  // Runs one round. Returns the time in ms until the next round if no event arrives before, or 0 if more work is
  // waiting. Error unavailable: the store did not answer.
  Result<std::uint64_t> run_round();
  // Drops all state and checks every deployment for unfinished work. To be called after leadership was acquired or the
  // connection was lost.
  Result<void> recover();
  // Returns how often the rounds have waited for steps.
  std::uint64_t step_waits() const { return step_waits_; }

 private:
  struct PendingStep;
  struct CellRead;
  // Reads pages of a deployment with the store of the running read.
  struct CellPageReader {
    WorkflowStore* store = nullptr;
    CellReader reader;
  };
  struct Deployment {
    LoadedDeployment loaded;
    DeploymentInbox inbox = DeploymentInbox();
    std::map<InstanceId, std::uint64_t> backoff_ends = {};       // ends of the pauses of failing instances, local time
    std::map<InstanceId, std::uint64_t> backoff_delays_ms = {};  // lengths of the latest pauses
    std::vector<std::shared_ptr<PendingStep>> running_steps = {};  // in the order of their start
    bool has_slow_steps = false;                                   // steps take longer than a commit waits for them
    std::string poll_cursor = {};                                  // last effect reference that the sweep has checked
    std::uint64_t next_poll_ms = 0;                                // time of the next check, local time
    std::set<std::string> missed_completions = {};                 // ended jobs and flows that a sweep has found
    std::map<std::string, std::string> refusal_reasons = {};       // reasons of rejected receipts, by effect reference
    std::shared_ptr<CellPageReader> cell_reader = {};              // used by one read at a time
    std::shared_ptr<CellRead> cell_read = {};                      // the running read
    // Local time since when inbox entries are held back to allow a snapshot, or 0; height of the next attempt.
    std::uint64_t drain_start_ms = 0, next_drain_height = 0;
  };
  struct Backoff {
    std::uint64_t until_ms = 0;  // local time
    std::string reason;
  };
  void enqueue_turn(const std::string& name);
  std::uint64_t idle_ms() const;
  bool is_backing_off(const std::string& name) const;
  // Returns 0 until the deployment has been loaded.
  Id find_owner(const std::string& name) const;
  // Returns whether any work was done.
  Result<bool> run_turns();
  // Returns whether the deployment has more work.
  Result<bool> process_deployment(const std::string& name, std::uint64_t until_ms);
  void back_off(const std::string& name, const Error&);
  Result<Deployment*> load_deployment(const std::string& name);
  Result<bool> run_commit(Deployment&);
  bool should_drain(Deployment&);
  std::uint64_t snapshot_interval(const LoadedDeployment&) const;  // facts between two attempts
  bool is_snapshot_due(const LoadedDeployment&) const;
  Result<void> continue_snapshot(Deployment&);
  Result<void> check_snapshot(LoadedDeployment&, Result<void>);
  std::uint64_t compute_due_ms(const Deployment&);
  // Inbox entries.
  Result<void> load_targets(Deployment&);
  void submit_read(Deployment&, CellQuery);
  Result<FoundCells> read_in_background(const std::string& deployment, CellPageReader&, const CellQuery&);
  Result<void> collect_read(Deployment&);
  Result<std::size_t> process_inbox(Deployment&);
  Result<void> decide_entry(LoadedDeployment&, const InboxEntry&);
  Result<void> decide_receipt(LoadedDeployment&, ReceiptArrived);
  // Decides, and assigns the resulting facts to the trace. An empty trace assigns none.
  Result<void> decide_traced(LoadedDeployment&, const std::string& traceparent, const WorkflowInput&);
  std::string find_trace(const LoadedDeployment&, const PendingIntent&) const;
  std::string find_trace(const LoadedDeployment&, std::uint64_t height) const;
  // Restores the trace of an intent from the record of its job or flow, after a change of leaders.
  void load_trace(const LoadedDeployment&, const std::string& intent, const std::string& traceparent);
  Result<std::optional<ReceiptArrived>> build_job_receipt(LoadedDeployment&, const std::string& job_key);
  Result<std::optional<ReceiptArrived>> build_flow_receipt(LoadedDeployment&, const std::string& flow_key);
  Result<std::optional<ReceiptArrived>> build_receipt(LoadedDeployment&, const std::string& effect_ref);
  Result<std::string> load_pubkey(Id runner_id);
  Result<std::string> check_receipt(const EndedJob&, const Job&, const std::string& intent);
  Result<void> process_completions(Deployment&);
  // Periodic checks for lost notifications.
  Result<void> sweep();
  Result<std::vector<std::string>> poll_deployments(const std::vector<std::string>& names);
  bool has_missed_event(const Deployment&, const DeploymentPollResult&);
  Result<std::size_t> complete_timers(LoadedDeployment&);
  // Steps.
  Result<std::size_t> run_steps(Deployment&);
  Result<void> start_steps(Deployment&, std::size_t max, std::size_t max_bytes);
  void submit(const std::string& deployment, Id owner, std::shared_ptr<PendingStep>);
  static Result<StepAnswer> execute_step(const StepRunner&, const PendingStep&);
  void wait_for_steps(Deployment&);
  void wait_for_a_step(const Deployment&);
  // Waits until is_done() returns true, within the waiting time of the owner in this round.
  bool wait_for_pool(const Deployment&, const std::function<bool()>& is_done);
  Result<std::size_t> collect_answers(Deployment&, std::size_t max_bytes);
  void back_off_instance(Deployment&, const InstanceId&, const InboxEventId&, const std::string& reason);
  void unload(const std::string& name);  // Drops the decisions that were not committed.
  // Effects.
  Result<std::size_t> publish_effects(LoadedDeployment&);
  Result<void> publish_effect(LoadedDeployment&, const std::string& intent);
  struct DispatchDetails;
  Result<std::string> dispatch_effect(LoadedDeployment&, const PendingIntent&, const InstanceState&, DispatchDetails&);
  // acl_context() returns the access control data of the context, read once per round. check_owner_permission() checks
  // a permission of the owner. Error denied: the owner does not have it.
  Result<const AclContext*> acl_context();
  Result<void> check_owner_permission(Id owner, Action, const Resource&);
  Result<Job> submit_job(LoadedDeployment&, const PendingIntent&, const InstanceState&, const EffectSpec&, Id owner,
                         DispatchDetails&);
  Result<std::string> start_flow(LoadedDeployment&, const PendingIntent&, Id owner, const nlohmann::json& params,
                                 DispatchDetails&);
  // Returns the hash of the definition of the newest flow with that name that may be started in the owner's name.
  Result<std::string> find_definition(Id owner, const std::string& name);
  Result<std::string> send_signal(const PendingIntent&, Id owner, const nlohmann::json& params);
  Result<void> cancel_effects(LoadedDeployment&, const std::string& intent);
  Result<void> cancel_instance(LoadedDeployment&, const InboxEntry&);
  // Cancels a job or flow. A job or flow that has ended is not changed. `key` is the idempotency key of the request, so
  // that a flow is cancelled once.
  Result<void> cancel_effect_ref(const std::string& key, const std::string& effect_ref, Id owner);
  Sample sample() const;

  Dependencies dependencies_;
  Id context_;
  DeploymentLimits limits_;
  RunCache runs_{1000};
  std::map<std::string, Deployment> deployments_;
  std::map<std::string, Backoff> backoffs_;                  // paused deployments
  std::map<std::string, std::string> unreadable_snapshots_;  // hashes of snapshots with unreadable pages, by deployment
  std::map<std::string, Id> owners_;                         // owners of deployments, as of the latest load
  OwnerTurns turns_;
  std::map<Id, std::uint64_t> waited_ms_;  // time that this round has waited for steps, by owner
  std::uint64_t step_waits_ = 0;
  std::mutex cell_stores_mutex_;
  std::condition_variable cell_store_released_;
  std::vector<WorkflowStore*> free_cell_stores_;  // of dependencies_.cell_stores
  std::map<std::string, DeploymentTraces> traces_;
  std::map<Id, std::string> pubkeys_;                  // public keys of runners, as of this round
  std::optional<AclContext> acl_context_;              // as of this round
  std::uint64_t next_list_ms_ = 0, next_poll_ms_ = 0;  // Clock::boot_ms()
  std::uint64_t now_ms_ = 0;                           // clock of the store, as of this pass
  StepPool pool_;                                      // Last member: its threads use the members above.
};

}  // namespace mycojobs
