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
  FaultCounts fault_counts;
};

struct LifeSettings {
  Ms fault_phase_ms = 40000;      // duration of the fault phase
  Ms max_late_ms = 3000;          // maximum delay of a call that its caller has abandoned
  Ms settle_timeout_ms = 300000;  // time after the fault phase in which everything must end
  std::uint64_t min_agents = 2, max_agents = 4;
  Ms max_restart_delay_ms = 3000;  // maximum time until a dead agent is restarted
  Ms check_interval_ms = 2500;
  std::uint32_t fault_factor = 1;  // factor of the probability of faults
  PlantedBug planted_bug{"none"};
  std::set<std::string> suppressed_events = {};  // see World::should_inject()
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
    void (Life::*perform)();
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
  std::string explain_job(const std::string& subject);
  void check_parked_jobs();

  // Requests of clients.
  void submit();
  void submit_group();
  void push_without_submit();
  void push_before_record();
  void push_duplicate_entry();
  void overwrite_status();
  void cancel();
  void requeue();
  void settle_dead_letter();
  void purge_queue();
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

  Job make_random_job(Id id);
  FlowPlan make_random_plan(const std::string& name);
  std::string pick_job_key();
  Client& pick_client() { return *clients_[world().random_below(clients_.size())]; }
  Service& pick_service() { return *stage_.services[world().random_below(stage_.services.size())]; }
  void enqueue_request(const std::string& description, std::function<Result<void>(Store&)> call);
  World& world() { return stage_.world; }
  bool random_one_in(std::uint32_t bound) { return world().random_one_in(bound); }

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
  std::set<std::string> ended_jobs_;
  std::string unsettled_job_;      // a job that had not ended at the last check
  std::int64_t max_shift_ms_ = 0;  // furthest lead of the server's clock so far
  bool is_fault_phase_ = true;
  LifeReport report_;
};

}  // namespace mycojobs::sim
