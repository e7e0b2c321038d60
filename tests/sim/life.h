// A random life of a whole system: hosts, agents, clients, and all that can go wrong, from one seed.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "domain/flow_plan.h"
#include "sim_coordinator.h"
#include "stage.h"

namespace mycojobs::sim {

struct LifeReport {
  std::string trouble;  // empty: all was as it must be
  std::uint64_t history = 0;
  std::size_t jobs = 0, runs = 0, facts = 0, kills = 0, stops = 0, restarts = 0, jumps = 0, calls = 0, parked = 0,
              flows = 0;
  Troubles troubles;
};

struct LifeSettings {
  Ms trouble = 40000;    // for so long things go wrong
  Ms latest = 3000;      // that a call comes which its caller has given up
  Ms patience = 300000;  // then everything must have ended
  std::uint64_t least_agents = 2, most_agents = 4;
  Ms restart = 3000;  // at most, until an agent that has died starts again
  Ms check_every = 2500;
  std::uint32_t faults = 1;  // so many times as likely
  Mistake mistake{"none"};
  std::set<std::string> left_out = {};  // of what would happen (World::happened)
};
// A schedule: a life so short that many thousands can be tried.
LifeSettings brief_life();

class Life {
 public:
  explicit Life(std::uint64_t seed, LifeSettings = {});

  // Trouble anywhere: no invariant breaks. Then none any more: everything ends or is explainably parked.
  LifeReport run();
  // What went wrong, and what clients asked for, by name: each can be left out of the next life of this seed.
  const std::vector<std::string>& happened() const { return stage_.world.happened(); }

 private:
  struct Deed {
    std::uint32_t weight;
    void (Life::*act)();
  };
  static const std::vector<Deed>& deeds();

  void settle_the_seed();
  void act_now_and_then();
  void check_now_and_then();
  void check(const std::string& when);
  void end_trouble();
  std::string unsettled();
  std::string unsettled_of(const std::vector<std::string>& keys);
  void check_flows();
  std::string explained(const std::string& who);
  void explain_parked();

  // What clients ask for.
  void submit();
  void submit_group();
  void push_plainly();
  void push_before_the_record();
  void push_twice();
  void overwrite();
  void cancel();
  void requeue();
  void settle_dead_letter();
  void purge();
  void send_message();
  void start_flow();
  void cancel_flow();
  void pause_queue();
  // What happens to the system.
  void kill_agent();
  void stop_agent();
  void kill_coordinator();
  void drain_agent();
  void restart_server();
  void move_host_clock();
  void move_server_clock();
  void fail_launches();

  Job any_job(Id id);
  FlowPlan any_plan(const std::string& name);
  std::string any_key();
  Client& any_client() { return *clients_[world().below(clients_.size())]; }
  Service& any_service() { return *stage_.services[world().below(stage_.services.size())]; }
  void ask(const std::string& what, std::function<Result<void>(Store&)> call);
  World& world() { return stage_.world; }
  bool maybe(std::uint32_t once_in) { return world().once_in(once_in); }

  LifeSettings settings_;
  std::uint64_t seed_;
  std::size_t deeds_ = 0;
  std::uint32_t lease_ms_;
  Stage stage_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<SimCoordinator>> coordinators_;  // none: there are no flows
  std::size_t flows_asked_ = 0;
  std::map<std::string, Id> flows_;  // by name, that were started
  Id last_id_ = 0;
  std::set<std::string> settled_;     // jobs that have ended
  std::string unsettled_;             // one that had not when it was last looked
  std::int64_t latest_shift_ms_ = 0;  // of the server's clock: how far it has ever been ahead
  bool troubled_ = true;
  LifeReport report_;
};

}  // namespace mycojobs::sim
