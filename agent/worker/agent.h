// The worker agent: claims jobs from the queues of its contexts, runs each in a sandbox of its own, and stores the
// results.
//
//   intake --JobStart--> run loop --RunReport--> reporter ----> store
//     ^  \--claims--> lease keeper --fences, kills--> run loop   |
//     '--------------- slot free <------------ settled runs ------'
//   maintenance: timers of jobs, expired leases             prerequisite checker: prerequisites of waiting jobs
//   transfers: sends artifacts to other agents, and fetches inputs of jobs from them
//   uploads, bucket sweep: store artifacts in the object storage and delete them there, if the agent uses one
//   artifact cleanup: deletes artifacts without a job       secrets: current secrets of each context
//   registrar: registers the runner on a server that was unavailable at the start; no job is claimed there before that
//
// An agent with one Redis server has ten threads, whatever the number of contexts, and a bounded number of threads
// for each disk and each plugin while there is work that can block (base/strands/strand_pool.h). All of them except the
// run loop and the secrets thread have a store connection of their own. Contexts can have Redis servers of their own.
// All parts except run loop, artifact cleanup and secrets exist once for each server, so that a server that hangs does
// not delay other contexts.
//
// Life cycle: start() contacts all servers at the same time and continues once one of them answers. drain() stops
// claiming and keeps the heartbeats. return_jobs() sends TERM, then KILL after the grace period, and returns the jobs
// to their queues. The destructor returns at once: jobs die with the launcher and are delivered again by the next agent
// of this runner on this host, or when their leases expire.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "artifacts/bucket/bucket_sweep.h"
#include "artifacts/transfer/bucket_source.h"
#include "artifacts/transfer/transfer_loop.h"
#include "base/loop_thread.h"
#include "security/secret_watcher.h"
#include "worker/intake/input_fetcher.h"
#include "worker/intake/intake.h"
#include "worker/leases/instance_lock.h"
#include "worker/leases/lease_keeper.h"
#include "worker/leases/registration_loop.h"
#include "worker/leases/runner_registration.h"
#include "worker/reports/end_uploads.h"
#include "worker/reports/reporter.h"
#include "worker/runs/object_broker.h"
#include "worker/runs/run_loop.h"
#include "worker/runs/run_rate.h"
#include "worker/upkeep/artifact_cleanup_loop.h"
#include "worker/upkeep/maintenance_loop.h"
#include "worker/upkeep/prerequisite_loop.h"

namespace mycojobs {

class Agent {
 public:
  struct Dependencies {
    StoreFactory& stores;
    std::unique_ptr<Sandbox> sandbox;
    std::vector<std::unique_ptr<Executor>> executors;  // executors that passed their probe on this host
    const Clock& clock;
    RunnerHolder own_holder = current_instance();  // this process as the holder of the runner id
    InstanceLock instance_lock = {};  // lock of own_holder.instance, inherited by the processes of the sandbox
    // Called when no server accepts the registration yet. Returns, after a pause, whether to try again.
    std::function<bool(const Error&)> should_retry = [](const Error&) { return false; };
  };
  // Registers the runner and starts to claim jobs. Errors: conflict if the runner id is in use; unavailable if no
  // server answers; denied and other errors of one of the servers. On a server that does not answer, or has
  // a certificate that is expired, not yet valid or of an unknown CA, the runner is registered later.
  static Result<std::unique_ptr<Agent>> start(Dependencies, WorkerSettings);
  ~Agent();

  void drain();        // See the life cycle above. Thread-safe.
  void return_jobs();  // See the life cycle above. Thread-safe.
  // Replaces the ceilings for jobs that are claimed from now on, and reads the secrets again. Thread-safe.
  void reload(const Ceilings&);
  std::uint32_t count_busy_slots() const;  // slots of held jobs and of jobs that are being claimed; thread-safe
  // Returns whether another agent took over the runner id or replaced its key. The caller then drains and exits.
  // Thread-safe.
  bool has_lost_runner_id() const { return has_lost_runner_id_; }
  // Returns whether the run loop, the intakes and the maintenance loops have all made progress since this function last
  // returned true. A store that hangs does not stop them, since each call of the store has a time-out. Call it from one
  // thread only.
  bool is_healthy();
  // Returns why no new job would be claimed, or an empty text. Busy slots do not count. Thread-safe.
  std::string unready_reason();
  // Refreshes the metrics. Thread-safe.
  void refresh_metrics();

 private:
  Agent(Dependencies&, WorkerSettings);
  // Everything that exists once for each Redis server. Each part has a store connection of its own.
  struct ServerShard {
    Id server_context = 0;    // the first context of the server; 0 for the default server
    WorkerSettings settings;  // restricted to the contexts of the server
    std::unique_ptr<Registrar> registrar;
    std::unique_ptr<Reporter> reporter;
    std::unique_ptr<LeaseKeeper> leases;
    std::unique_ptr<PrerequisiteChecker> prerequisites;
    std::unique_ptr<MaintenanceLoop> maintenance;
    std::unique_ptr<TransferLoop> transfers;  // null without a state_dir
    std::unique_ptr<BucketSource> input_source;
    std::unique_ptr<InputFetcher> input_fetcher;
    std::unique_ptr<EndUploads> uploads;  // null without an object storage
    std::unique_ptr<Intake> intake;
    std::optional<LoopThread<Reporter>> reporter_thread;
    // Registers the runner on a server that was unavailable at the start, and then starts the following threads.
    std::optional<LoopThread<Registrar>> registrar_thread;
    std::optional<LoopThread<LeaseKeeper>> leases_thread;
    std::optional<LoopThread<MaintenanceLoop>> maintenance_thread;
    std::optional<LoopThread<PrerequisiteChecker>> prerequisites_thread;
    std::optional<LoopThread<TransferLoop>> transfers_thread;
    std::optional<LoopThread<EndUploads>> uploads_thread;
    std::optional<LoopThread<Intake>> intake_thread;
    std::atomic<bool> is_serving{false};  // whether the threads are starting or running
    // Iterations of the loops when is_healthy() last returned true.
    std::uint64_t last_intake_iterations = 0, last_maintenance_iterations = 0;
  };
  Result<void> initialize(Dependencies&);
  Result<void> create_shards(StoreFactory&);
  std::vector<Result<void>> run_on_all_shards(const std::function<Result<void>(ServerShard&)>&);
  Result<void> register_runner_everywhere(Dependencies&);
  Result<void> open_shard(ServerShard&, StoreFactory&);
  Result<void> open_intake(ServerShard&, StoreFactory&);
  Result<void> open_transfers(ServerShard&, StoreFactory&);
  Result<void> open_uploads(ServerShard&, StoreFactory&);
  Result<void> open_sweep(StoreFactory&);
  void create_run_loop(Dependencies&);
  Result<void> start_threads();
  Result<void> start_serving(ServerShard&);
  void on_runner_lost(const std::string& reason);
  ServerShard& find_shard(Id context) { return *shards_by_context_.at(context); }
  void on_jobs_settled(ServerShard&, std::span<const RunNumber>);
  void on_slots_freed();
  std::uint32_t count_jobs_of_other_shards(const ServerShard&) const;
  Result<Store*> open_connection(StoreFactory&);
  std::uint32_t count_ending_jobs() const;
  std::uint32_t count_uploading_jobs() const;

  WorkerSettings settings_;
  const Clock& clock_;
  RunnerHolder own_holder_;
  InstanceLock instance_lock_;
  std::vector<std::unique_ptr<Executor>> executors_;
  StoreHealth health_;
  PreviousInstances previous_instances_;
  std::vector<std::unique_ptr<Store>> connections_;   // one for each thread; declared before the threads that use them
  RunRate run_rate_;                                  // declared before the threads that use it
  std::vector<std::unique_ptr<ServerShard>> shards_;  // at least one
  std::map<Id, ServerShard*> shards_by_context_;
  std::unique_ptr<ObjectBroker> broker_;
  std::unique_ptr<SecretWatcher> secrets_;  // declared before the parts that use it
  std::unique_ptr<RunLoop> run_loop_;
  std::unique_ptr<ArtifactCleanupLoop> artifact_cleanup_;
  std::optional<LoopThread<ArtifactCleanupLoop>> artifact_cleanup_thread_;
  std::unique_ptr<BucketSweep> bucket_sweep_;  // null without an object storage
  std::optional<LoopThread<BucketSweep>> bucket_sweep_thread_;
  std::atomic<bool> has_lost_runner_id_{false};
  std::uint64_t last_run_loop_iterations_ = 0;  // iterations of the run loop when is_healthy() last returned true
};

}  // namespace mycojobs
