// A worker: takes jobs from its contexts' queues, runs each in its own sandbox, stores what came of it.
//
//   intake ----Start----> run loop ----reports----> reporter ----> store
//     ^  \--claims--> lease keeper --fences, kills--> run loop        |
//     '--------------------- slot free <-------- settled -------------'
//   housekeeper: what time brings, leases that ran out      prerequisite checker: what jobs wait for
//   sweeper: artifacts that no job has any more             secrets: what they are, for each context
//   registrar: the runner, where a server was away when the agent started; nothing is taken there before
//
// Seven threads and one a context, all but the run loop and those of secrets with a store connection of their own;
// slots are a number. Contexts may have servers of the store of their own: all but run loop, sweeper and secrets are
// there once for each server, so that one which hangs keeps no other context waiting. Life: start (all servers are
// asked at the same time; with one of them it begins), then drain() (claims nothing more, keeps heartbeats),
// return_jobs() (TERM, then KILL after the grace; the jobs go back to their queues), and destruction (leaves at once:
// jobs die with the launcher and are delivered again, by the next agent of this id on this host or when their leases
// have run out).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/turns.h"
#include "worker/broker.h"
#include "worker/housekeeper.h"
#include "worker/instance_lock.h"
#include "worker/intake.h"
#include "worker/lease_keeper.h"
#include "worker/pace.h"
#include "worker/prerequisite_checker.h"
#include "worker/registrar.h"
#include "worker/registration.h"
#include "worker/reporter.h"
#include "worker/run_loop.h"
#include "worker/secrets_watch.h"
#include "worker/sweeper.h"

namespace mycojobs {

class Agent {
 public:
  struct Parts {
    StoreFactory& stores;
    std::unique_ptr<Sandbox> sandbox;
    std::vector<std::unique_ptr<Executor>> executors;  // those that work on this host
    const Clock& clock;
    RunnerHold self = describe_self();
    InstanceLock alive = {};  // of self.instance; handed down by the sandbox
    // Asked when every server of the store is away while the runner is registered: true, after a pause: try again.
    std::function<bool(const Error&)> try_again = [](const Error&) { return false; };
  };
  // Registers the runner and begins to take jobs. Error: conflict (the runner's id is in use), denied, ... by one of
  // the servers; unavailable: all of them are. Where one alone is away, the runner is registered once it is back.
  static Result<std::unique_ptr<Agent>> start(Parts, WorkerSettings);
  ~Agent();

  void drain();
  void return_jobs();
  // The ceilings of jobs that are claimed from now on. Secrets are read again at once. Any thread.
  void reload(const Ceilings&);
  std::uint32_t busy() const;
  bool runner_lost() const { return runner_lost_; }  // the id is not ours, or its key: drain and leave
  // Whether the run loop, the intakes and the housekeepers have all come round since this was last true. A store that
  // hangs does not stop them: each call of it ends by a time-out. Call it from one thread.
  bool is_healthy();
  // Empty: a job that comes now would be taken, if a slot is free. Any thread.
  std::string why_not_ready();
  // Says in the metrics how it stands now. Any thread.
  void measure();

 private:
  Agent(Parts&, WorkerSettings);
  // What is there for one server of the store. Each has a store connection of its own.
  struct Side {
    Id server_of = 0;         // the one context that the server is for; 0: it is everybody's
    WorkerSettings settings;  // of its contexts
    std::unique_ptr<Registrar> registrar;
    std::unique_ptr<Reporter> reporter;
    std::unique_ptr<LeaseKeeper> leases;
    std::unique_ptr<Housekeeper> housekeeper;
    std::unique_ptr<PrerequisiteChecker> prerequisites;
    std::unique_ptr<Intake> intake;
    std::optional<TurnThread<Reporter>> reporter_thread;
    std::optional<TurnThread<Registrar>> registrar_thread;  // where the server was away: it begins those that follow
    std::optional<TurnThread<LeaseKeeper>> leases_thread;
    std::optional<TurnThread<Housekeeper>> housekeeper_thread;
    std::optional<TurnThread<PrerequisiteChecker>> prerequisites_thread;
    std::optional<TurnThread<Intake>> intake_thread;
    std::atomic<bool> serves{false};        // they begin, or have begun
    std::array<std::uint64_t, 2> rounds{};  // of intake and housekeeper, as is_healthy() saw them last
  };
  Result<void> open(Parts&);
  Result<void> make_sides(StoreFactory&);
  std::vector<Result<void>> at_the_same_time(const std::function<Result<void>(Side&)>&);
  Result<void> register_everywhere(Parts&);
  Result<void> open(Side&, StoreFactory&);
  Result<void> open_intake(Side&, StoreFactory&);
  void make_run_loop(Parts&);
  Result<void> start_threads();
  Result<void> begin_to_serve(Side&);
  void lose_runner(const std::string& why);
  Side& side_of(Id context) { return *side_of_.at(context); }
  void settled(Side&, std::span<const RunNumber>);
  void has_room();
  std::uint32_t jobs_of_others(const Side&) const;
  Result<Store*> connect(StoreFactory&);
  std::uint32_t slots_of_endings() const;

  WorkerSettings settings_;
  const Clock& clock_;
  RunnerHold self_;
  InstanceLock alive_;
  std::vector<std::unique_ptr<Executor>> executors_;
  StoreHealth health_;
  FormerInstances former_;
  std::vector<std::unique_ptr<Store>> connections_;  // one a thread, and those of registrars: before the threads
  Pace pace_;                                        // before the threads that look at it
  std::vector<std::unique_ptr<Side>> sides_;         // one at least
  std::map<Id, Side*> side_of_;                      // by context
  std::unique_ptr<Broker> broker_;
  std::unique_ptr<SecretsWatch> secrets_;  // before those that ask it
  std::unique_ptr<RunLoop> run_loop_;
  std::unique_ptr<Sweeper> sweeper_;
  std::optional<TurnThread<Sweeper>> sweeper_thread_;
  std::atomic<bool> runner_lost_{false};
  std::uint64_t rounds_ = 0;  // of the run loop, as is_healthy() saw them last
};

}  // namespace mycojobs
