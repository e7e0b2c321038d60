// Claims jobs: waits for work, claims as many jobs as there are free slots, prepares them (job_preparation.h) and
// passes them to the run loop. It also processes the messages on the topic of the runner. A loop of base/loop_thread.h.
// An agent has one intake for each Redis server; all of them share its slots. No lock is held during a claim, so two
// intakes may claim a job for the same free slot. The second job then waits, and is released like a job that was
// claimed ahead.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/liveness_counter.h"
#include "base/mailbox.h"
#include "store/store_health.h"
#include "worker/intake/job_preparation.h"
#include "worker/intake/topic_intake.h"
#include "worker/leases/runner_registration.h"
#include "worker/worker_types.h"

namespace mycojobs {

// Returns the queues of a runner: its own, and the queues of the script types of its executors if it serves shared
// queues.
std::vector<std::string> list_runner_queues(const WorkerSettings&, const std::vector<const Executor*>&,
                                            bool serves_queues);

class Intake {
 public:
  struct Dependencies {
    Store& store;
    std::unique_ptr<Waiter> waiter;
    std::vector<const Executor*> executors;
    const SecretWatcher& secrets;
    std::uint64_t seed = std::random_device{}();            // randomizes the pauses before retries
    RunNumber first_run_number = 1, run_number_stride = 1;  // intakes of an agent assign disjoint run numbers
    Id server_context = 0;                                  // the first context of the server; 0 for the default server
    std::string topic = {};  // topic whose hints the waiter receives; other topics are checked often
    // Values from the runner records. The settings apply if it is null or has no entry for a context.
    const std::map<Id, RegisteredRunner>* registered_runners = nullptr;
  };
  struct Callbacks {
    std::function<bool()> can_start_runs;  // whether the launcher is ready
    std::function<void(JobStart)> start_job;
    std::function<void(RunReport)> report;  // receives the end or the release of a job that cannot be started
    std::function<void(RunNumber, const ClaimRef&)> on_claimed;
    std::function<void()> request_heartbeat;  // the answer of the heartbeat names cancelled jobs
    // Called if a job of the context was announced or examined, but none was claimed: timers may be due earlier.
    std::function<void(Id context)> on_wakeup_without_jobs;
    // Returns the number of jobs that may be claimed without a free slot.
    std::function<std::uint32_t()> claim_ahead_count = [] { return 0U; };
    // Returns the number of held jobs of all intakes that need no slot, since their artifacts are being uploaded.
    std::function<std::uint32_t()> count_uploading_jobs = [] { return 0U; };
    // Returns the sum of held_jobs() of the other intakes.
    std::function<std::uint32_t()> count_other_jobs = [] { return 0U; };
  };
  // instance: instance name with which the runner is registered.
  Intake(Dependencies, const Clock&, StoreHealth&, const WorkerSettings&, const std::string& instance, Callbacks);
  struct WaitRequest {
    std::uint64_t ms = 0;
    bool wakes_on_work = false;  // whether a new entry of a queue ends the wait
  };
  // Claims jobs and passes them to the callbacks. The owner reports completed jobs to on_jobs_settled(). Returns the
  // wait until the next call.
  WaitRequest run_once();
  void wait_until_due(WaitRequest);  // Waits at the waiter and passes the result to on_wait_result().
  void on_wait_result(Result<WaitResult>);
  void stop();
  bool stopped() const { return stop_; }

  // The following functions are thread-safe.
  void on_start_rejected(StartRejected);     // Reports a job that the run loop could not start.
  void on_jobs_settled(std::uint32_t jobs);  // Reports the number of jobs that ended.
  // Adds jobs that a previous agent of the runner has claimed. They are settled like jobs of this intake.
  void add_held_jobs(std::uint32_t jobs);
  void on_slot_free();  // Reports that a slot may be free.
  bool draining() const { return draining_; }
  void drain();  // Stops claiming.
  // Applies to jobs that are claimed from now on.
  void replace_ceilings(std::shared_ptr<const Ceilings> ceilings) {
    preparation_.replace_ceilings(std::move(ceilings));
  }
  const LivenessCounter& liveness() const { return liveness_; }
  // Returns the number of held jobs plus the number of jobs that are being claimed.
  std::uint32_t held_or_requested_jobs() const { return held_or_requested_jobs_; }
  std::uint32_t held_jobs() const { return held_jobs_; }  // claimed jobs that have not ended

 private:
  WaitRequest poll_once();
  std::uint32_t count_jobs_to_claim() const;
  void process_topic(std::vector<std::string> hints);
  std::vector<Id> list_due_topic_checks() const;
  std::optional<Id> find_overdue_context() const;
  bool has_queue_backoff(Id context) const;
  void add_overdue_context();
  std::optional<Id> find_next_context(const std::set<Id>& visited = {}) const;
  void claim_batch();
  Result<ClaimReply> claim(Id context, std::uint32_t max_jobs);
  void start_claimed_jobs(Id context, ClaimReply&, std::uint64_t sent_boot_ms);
  bool is_look_due() const;
  void pause_context(Id context);
  void pause_queues(Id context, const std::vector<std::string>& queues);
  void start_queue_backoff(Id context, const std::string& queue);
  std::vector<std::string> list_unclaimable_queues(Id context) const;
  RegisteredRunner get_registered_runner(Id context) const;
  void start_claimed_job(ClaimedJob&, std::uint64_t fence_boot_ms);
  void reject_start(const StartRejected&);

  Dependencies dependencies_;
  const Clock& clock_;
  StoreHealth& health_;
  WorkerSettings settings_;
  std::string instance_;
  Callbacks callbacks_;
  std::vector<std::string> queues_;  // queues of a context in which the runner serves shared queues
  JobPreparation preparation_;
  TopicIntake topic_;
  Mailbox<StartRejected> rejected_starts_;
  std::vector<std::string> hints_;  // hints that were not processed yet
  std::uint64_t last_topic_check_boot_ms_ = 0;
  ContextPauses context_pauses_;
  struct QueueBackoff {
    unsigned failures = 0;
    std::uint64_t until_boot_ms = 0;
  };
  // By context and queue: queues with jobs that could not be started.
  std::map<std::pair<Id, std::string>, QueueBackoff> queue_backoffs_;
  struct ContextState {
    // Times of the last claim and of the last check of the topic; 0 if none has succeeded since the last failure.
    std::uint64_t claimed_boot_ms = 0, topic_checked_boot_ms = 0;
    std::size_t claims = 0;          // rotates the first queue, so that no queue starves
    bool has_paused_queues = false;  // whether the waiter was told to pause a queue
  };
  std::map<Id, ContextState> context_states_;  // has all contexts
  // Contexts that may have jobs, from which the next batch claims. The waiter names contexts with new entries.
  std::set<Id> due_contexts_;
  Id last_context_ = 0;  // the last context that was claimed from; the next claim begins after it, so that none starves
  std::optional<Id> latest_source_;          // context of the latest claimed job
  std::uint64_t looked_boot_ms_ = 0;         // when the waiter was last asked for work
  std::uint64_t overdue_check_boot_ms_ = 0;  // time of the last search for contexts without a recent claim
  RunNumber next_run_;
  std::mt19937_64 random_;
  unsigned failures_ = 0;            // consecutive failures of the waiter
  std::set<Id> announced_contexts_;  // contexts with an announced job, until the next claim
  LivenessCounter liveness_;
  std::atomic<std::uint32_t> held_or_requested_jobs_{0}, held_jobs_{0};
  std::atomic<bool> draining_{false}, stop_{false}, waits_for_work_{false};
};

}  // namespace mycojobs
