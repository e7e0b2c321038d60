// Takes jobs: waits for work, claims as many as there are free slots, has them prepared (job_preparation.h), hands them
// to the run loop. It also takes the messages on the runner's topic. Takes turns (base/turns.h). Where an agent has
// several, one for each server of the store, they share its slots: no lock is held while one of them asks its server,
// so two of them may claim for one free slot; the job that finds none waits and goes back as one claimed ahead.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/mailbox.h"
#include "base/pulse.h"
#include "mycojobs/clock.h"
#include "worker/job_preparation.h"
#include "worker/registration.h"
#include "worker/store_health.h"
#include "worker/topic_intake.h"
#include "worker/types.h"

namespace mycojobs {

// The lists that a runner takes from: its own, and if it takes from queues those of its executors' script types.
std::vector<std::string> queues_of(const WorkerSettings&, const std::vector<const Executor*>&, bool takes_queues);

class Intake {
 public:
  struct Parts {
    RolesOf<ClaimStore, RecordStore, MessageStore> store;
    std::unique_ptr<Waiter> waiter;
    std::vector<const Executor*> executors;
    const SecretsWatch& secrets;
    std::uint64_t seed = std::random_device{}();  // of the pauses before retries
    RunNumber first_run = 1, run_step = 1;        // each intake of an agent has numbers of its own
    Id server_of = 0;                             // the one context that its server is for; 0: several have it
    // What the records of the runner say, from the first turn on; null, or a context that is not there: the settings.
    const std::map<Id, RegisteredRunner>* registered = nullptr;
  };
  struct Callbacks {
    std::function<bool()> may_start;  // false: no launcher now
    std::function<void(Start)> start;
    std::function<void(Outgoing)> report;  // a job that can never run
    std::function<void(RunNumber, const ClaimRef&)> claimed;
    std::function<void()> heartbeat;  // somebody asked to cancel a job of ours: the answer to a heartbeat tells
    std::function<void()> no_work;    // what woke us was no entry of a queue: something may be due sooner
    std::function<std::uint32_t()> ahead = [] { return 0U; };   // so many jobs may be claimed that find no slot at once
    std::function<std::uint32_t()> others = [] { return 0U; };  // jobs() of the other intakes
  };
  // instance: of the runner, as it is registered.
  Intake(Parts, const Clock&, StoreHealth&, const WorkerSettings&, const std::string& instance, Callbacks);
  // What it takes comes back to settled(), by way of the callbacks.
  struct Rest {
    std::uint64_t ms = 0;
    bool for_work = false;  // an entry of a queue ends it
  };
  Rest turn();
  void rest(Rest);  // on the waiter, and heard() what it says
  void heard(Result<Woken>);
  void stop();
  bool stopped() const { return stop_; }

  void cannot_begin(CannotBegin);              // any thread: one that was handed on to the run loop
  void settled(std::uint32_t jobs);            // any thread: so many of them need us no more
  void has_room();                             // any thread: a slot may be free
  bool draining() const { return draining_; }  // any thread
  void drain();                                // any thread: claim nothing more
  void replace_ceilings(std::shared_ptr<const Ceilings> ceilings) {  // any thread: of jobs that are claimed from now on
    preparation_.replace_ceilings(std::move(ceilings));
  }
  const Pulse& pulse() const { return pulse_; }  // any thread
  std::uint32_t busy() const { return taken_; }  // any thread: jobs that are not settled, and what is being claimed
  std::uint32_t jobs() const { return jobs_; }   // any thread: the former alone

 private:
  struct Round {
    bool more = false;      // there may be more to take
    std::size_t taken = 0;  // jobs
  };
  Rest look();
  std::uint32_t room() const;  // how many to claim now
  void look_at_topic(std::vector<std::string> hints);
  Round claim_some();
  Result<ClaimReply> claim(Id context, std::uint32_t max_jobs);
  void pause(Id context);
  void take_break(Id context, const std::string& queue);
  std::vector<std::string> resting(Id context) const;
  RegisteredRunner registered(Id context) const;
  void accept(Claimed&, std::uint64_t fence_boot_ms);
  void refuse(const CannotBegin&);

  Parts parts_;
  const Clock& clock_;
  StoreHealth& health_;
  WorkerSettings settings_;
  std::string instance_;
  Callbacks callbacks_;
  std::vector<std::string> queues_;  // of a context whose runner takes from queues
  JobPreparation preparation_;
  TopicIntake topic_;
  Mailbox<CannotBegin> refused_;
  std::vector<std::string> hints_;          // that are not looked at yet
  std::uint64_t topic_looked_boot_ms_ = 0;  // when the topic was looked at last; 0: look now
  ContextPauses pauses_;
  struct Break {
    unsigned failures = 0;
    std::uint64_t until_boot_ms = 0;
  };
  std::map<std::pair<Id, std::string>, Break> breaks_;  // of queues whose jobs cannot be begun now
  std::size_t turn_ = 0;                                // which context and queue is asked first: none starves another
  RunNumber next_run_;
  std::mt19937_64 chance_;
  unsigned failures_ = 0;  // of waits, one after the other
  bool work_ = false;      // as the waiter answered
  Pulse pulse_;
  std::atomic<std::uint32_t> taken_{0}, jobs_{0};
  std::atomic<bool> draining_{false}, stop_{false}, waits_for_work_{false};
};

}  // namespace mycojobs
