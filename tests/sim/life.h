// A random life of a whole system: hosts, agents, clients and faults, derived from a seed.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "flows/flow_plan.h"
#include "sim_coordinator.h"
#include "stage.h"

namespace mycojobs::sim {

struct LifeReport {
  std::string violation;  // empty if no invariant was violated
  std::uint64_t history = 0;
  std::size_t jobs = 0, runs = 0, facts = 0, kills = 0, stops = 0, restarts = 0, jumps = 0, calls = 0, parked = 0,
              flows = 0;
  Troubles troubles;
};

struct LifeSettings {
  Ms fault_phase_ms = 40000;      // duration of the fault phase
  Ms max_late_ms = 3000;          // maximum delay of a call that its caller has abandoned
  Ms settle_timeout_ms = 300000;  // time after the fault phase in which everything must end
  std::uint64_t min_agents = 2, max_agents = 4;
  Ms restart = 3000;  // maximum time until a dead agent is restarted
  Ms check_interval_ms = 2500;
  std::uint32_t faults = 1;  // factor of the probability of faults
  Mistake mistake{"none"};
  std::set<std::string> suppressed_events = {};  // events that are suppressed (Deployment::happened)
};
// Settings of a schedule: a life so short that many thousands can be run.
LifeSettings brief_life();

class Life {
 public:
  explicit Life(std::uint64_t seed, LifeSettings = {});

  // Runs the life. During the fault phase no invariant may be violated; afterwards everything must end, or be parked
  // with an explanation.
  LifeReport run();
  // The names of the faults and requests of clients; each can be left out of the next life with this seed.
  const std::vector<std::string>& event_names() const { return stage_.world.event_names(); }

 private:
  struct RandomOperation {
    std::uint32_t weight;
    void (Life::*act)();
  };
  static const std::vector<RandomOperation>& random_operations();

  void choose_from_seed();
  void schedule_operations();
  void schedule_checks();
  void check(const std::string& when);
  void end_fault_phase();
  std::string describe_unsettled();
  std::string describe_unsettled_jobs(const std::vector<std::string>& keys);
  void check_flows();
  std::string explain_job(const std::string& who);
  void explain_parked();

  // Requests of clients.
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
  // Events of the system.
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
  std::size_t operation_count_ = 0;
  std::uint32_t lease_ms_;
  Stage stage_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<std::unique_ptr<SimCoordinator>> coordinators_;  // empty in a life without flows
  std::size_t requested_flows_ = 0;
  std::map<std::string, Id> flows_;  // started flows, by name
  Id last_id_ = 0;
  std::set<std::string> settled_;     // ended jobs
  std::string unsettled_;             // a job that had not ended at the last check
  std::int64_t latest_shift_ms_ = 0;  // furthest lead of the server's clock so far
  bool is_fault_phase_ = true;
  LifeReport report_;
};

}  // namespace mycojobs::sim
