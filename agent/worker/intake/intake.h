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
#include <random>
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
std::vector<std::string> queues_of(const WorkerSettings&, const std::vector<const Executor*>&, bool takes_queues);

class Intake {
 public:
  struct Dependencies {
    StoreRoles<ClaimStore, RecordStore, MessageStore> store;
    std::unique_ptr<Waiter> waiter;
    std::vector<const Executor*> executors;
    const SecretsWatch& secrets;
    std::uint64_t seed = std::random_device{}();  // randomizes the pauses before retries
    RunNumber first_run = 1, run_step = 1;        // each intake of an agent uses run numbers of its own
    Id server_of = 0;                             // the only context of the server; 0 for the shared server
    // Values from the runner records. The settings apply if it is null or has no entry for a context.
    const std::map<Id, RegisteredRunner>* registered = nullptr;
  };
  struct Callbacks {
    std::function<bool()> may_start;  // Returns false while there is no launcher.
    std::function<void(JobStart)> start;
    std::function<void(RunReport)> report;  // Reports a job that can never run.
    std::function<void(RunNumber, const ClaimRef&)> claimed;
    std::function<void()> heartbeat;  // Requests an early heartbeat; its answer names cancelled jobs.
    std::function<void()> no_work;  // Called when a wake-up had another cause than a queue: timers may be due earlier.
    std::function<std::uint32_t()> ahead = [] {
      return 0U;
    };  // Number of jobs that may be claimed without a free slot.
    std::function<std::uint32_t()> others = [] { return 0U; };  // Returns jobs() of the other intakes.
  };
  // instance: instance name with which the runner is registered.
  Intake(Dependencies, const Clock&, StoreHealth&, const WorkerSettings&, const std::string& instance, Callbacks);
  struct WaitRequest {
    std::uint64_t ms = 0;
    bool for_work = false;  // a new entry of a queue ends the wait
  };
  // Claims jobs and passes them to the callbacks. The owner reports completed jobs to on_jobs_settled(). Returns the
  // wait until the next call.
  WaitRequest run_once();
  void wait_until_due(WaitRequest);  // Waits at the waiter and passes the result to on_wait_result().
  void on_wait_result(Result<WaitResult>);
  void stop();
  bool stopped() const { return stop_; }

  // The following functions are thread-safe.
  void cannot_begin(StartRejected);          // Reports a job that the run loop could not start.
  void on_jobs_settled(std::uint32_t jobs);  // Reports the number of jobs that ended.
  void on_slot_free();                       // Reports that a slot may be free.
  bool draining() const { return draining_; }
  void drain();  // Stops claiming.
  // Applies to jobs that are claimed from now on.
  void replace_ceilings(std::shared_ptr<const Ceilings> ceilings) {
    preparation_.replace_ceilings(std::move(ceilings));
  }
  const LivenessCounter& pulse() const { return liveness_; }
  std::uint32_t busy() const { return taken_; }  // jobs that did not end, and jobs that are being claimed
  std::uint32_t jobs() const { return jobs_; }   // jobs that did not end

 private:
  struct ClaimResult {
    bool more = false;      // the queues may have more jobs
    std::size_t taken = 0;  // claimed jobs
  };
  WaitRequest poll_once();
  std::uint32_t jobs_to_claim() const;  // Returns the number of jobs to claim now.
  void process_topic(std::vector<std::string> hints);
  ClaimResult claim_batch();
  Result<ClaimReply> claim(Id context, std::uint32_t max_jobs);
  void pause(Id context);
  void pause_queue_claims(Id context, const std::string& queue);
  std::vector<std::string> paused_queues(Id context) const;
  RegisteredRunner registered(Id context) const;
  void accept(ClaimedJob&, std::uint64_t fence_boot_ms);
  void reject_start(const StartRejected&);

  Dependencies parts_;
  const Clock& clock_;
  StoreHealth& health_;
  WorkerSettings settings_;
  std::string instance_;
  Callbacks callbacks_;
  std::vector<std::string> queues_;  // queues of a context in which the runner serves shared queues
  JobPreparation preparation_;
  TopicIntake topic_;
  Mailbox<StartRejected> refused_;
  std::vector<std::string> hints_;           // hints that were not processed yet
  std::uint64_t topic_checked_boot_ms_ = 0;  // time of the last check of the topic; 0: check now
  ContextPauses pauses_;
  struct QueueBackoff {
    unsigned failures = 0;
    std::uint64_t until_boot_ms = 0;
  };
  std::map<std::pair<Id, std::string>, QueueBackoff> breaks_;  // queues with jobs that cannot be started now
  std::size_t turn_ = 0;  // rotates the first context and queue, so that none starves
  RunNumber next_run_;
  std::mt19937_64 chance_;
  unsigned failures_ = 0;  // consecutive failures of the waiter
  bool work_ = false;      // whether the last wait ended with new work
  LivenessCounter liveness_;
  std::atomic<std::uint32_t> taken_{0}, jobs_{0};
  std::atomic<bool> draining_{false}, stop_{false}, waits_for_work_{false};
};

}  // namespace mycojobs
