#include "life.h"

#include <algorithm>

#include "flows/flow_run.h"
#include "inspect/explain.h"
#include "inspect/invariants.h"
#include "jobs/state_machines.h"
#include "support/queue_pause.h"

namespace mycojobs::sim {
namespace {

constexpr std::int64_t kMaxClockShiftMs = 600000;

StageSettings make_settings(std::uint64_t seed, std::uint32_t lease_ms) {
  StageSettings settings{seed, lease_ms, 0, 0};
  if (seed % 4 == 1) settings.retention_count = 5;
  if (seed % 4 == 2) settings.retention = Retention::same_for_all(20000);
  return settings;
}

// All agents that check the leases of a context may have been down while faults were injected.
bool is_excused_during_faults(const std::string& violation) { return violation.starts_with("lease-overdue"); }

}  // namespace

LifeSettings brief_life() {
  LifeSettings settings;
  settings.fault_phase_ms = 1200;
  settings.max_late_ms = 200;
  settings.min_agents = 1;
  settings.max_agents = 2;
  settings.max_restart_delay_ms = 300;
  settings.check_interval_ms = 5000;
  settings.fault_factor = 4;
  return settings;
}

Life::Life(std::uint64_t seed, LifeSettings settings)
    : settings_(std::move(settings)),
      seed_(seed),
      lease_ms_(1000U << (seed / 4 % 3)),
      stage_(make_settings(seed, lease_ms_)) {
  world().planted_bug = settings_.planted_bug;
  world().suppressed_events = settings_.suppressed_events;
  choose_from_seed();
}

void Life::choose_from_seed() {
  const std::uint64_t agents =
      settings_.min_agents + world().random_below(settings_.max_agents - settings_.min_agents + 1);
  for (std::uint64_t i = 0; i < agents; ++i) {
    const bool shares_host = i > 0 && random_one_in(3);
    Service& service = stage_.add_service(
        [&](WorkerSettings& settings) {
          settings.slots = static_cast<std::uint32_t>(1 + world().random_below(4));
          if (random_one_in(2) || i == 0) settings.script_types.emplace_back("other");
          if (random_one_in(3)) settings.lease_ms = lease_ms_ * 3;
        },
        shares_host ? &stage_.services[0]->host() : nullptr);
    service.host().clock.shift_ms =
        static_cast<std::int64_t>(world().random_below(2 * kMaxClockShiftMs)) - kMaxClockShiftMs;
    service.set_restart_delay(100 + world().random_below(settings_.max_restart_delay_ms));
    service.start(world().random_below(settings_.fault_phase_ms / 20));
  }
  for (int i = 0; i < 2; ++i) clients_.push_back(std::make_unique<Client>(world(), "client" + std::to_string(i)));
  const auto pick_rate = [&](std::uint32_t max_rate) {
    return random_one_in(3)
               ? 0
               : static_cast<std::uint32_t>((20 + world().random_below(max_rate)) / settings_.fault_factor);
  };
  const std::uint64_t coordinators = seed_ % 8 == 0 ? 2 : seed_ % 8 == 4 ? 1 : 0;
  for (std::uint64_t i = 0; i < coordinators; ++i)
    coordinators_.push_back(std::make_unique<SimCoordinator>(world(), "coordinator" + std::to_string(i)));
  FaultRates& fault_rates = world().fault_rates;
  fault_rates.cut = pick_rate(200);
  fault_rates.late = pick_rate(300);
  fault_rates.late_ms = settings_.max_late_ms;
  fault_rates.slow = pick_rate(100);
  fault_rates.slow_ms = lease_ms_ / 2;
  fault_rates.stop = pick_rate(600);
  fault_rates.stop_ms = 3ULL * lease_ms_;
  const std::uint32_t request_lost = pick_rate(200), reply_lost = pick_rate(200), killed = pick_rate(600);
  world().choose_fault = [this, request_lost, reply_lost, killed](const Program&, const ServerCall&, std::uint64_t) {
    ++report_.calls;
    if (!is_fault_phase_) return CallFault::none;
    if (random_one_in(request_lost)) return CallFault::request_lost;
    if (random_one_in(reply_lost)) return CallFault::reply_lost;
    if (!random_one_in(killed)) return CallFault::none;
    ++report_.kills;
    return random_one_in(2) ? CallFault::killed_before : CallFault::killed_after;
  };
}

void Life::schedule_operations() {
  if (!is_fault_phase_) return;
  const std::string number = std::to_string(++operation_count_);
  const Ms pause = 20 + world().draw_independently("pause " + number, [this] { return world().random_below(600); });
  world().schedule(world().now() + pause, [this] { schedule_operations(); });
  world().draw_independently("deed " + number, [&] {
    std::uint32_t total = 0;
    for (const RandomOperation& operation : random_operations()) total += operation.weight;
    std::uint64_t remaining_weight = world().random_below(total);
    auto operation = random_operations().begin();
    for (; remaining_weight >= operation->weight; ++operation) remaining_weight -= operation->weight;
    if (world().should_inject("deed " + number)) (this->*operation->perform)();
    return true;
  });
}

void Life::schedule_checks() {
  if (!is_fault_phase_) return;
  check("during the faults");
  world().schedule(world().now() + settings_.check_interval_ms, [this] { schedule_checks(); });
}

void Life::check(const std::string& when) {
  for (const std::string& each : find_violations(stage_.store())) {
    if (!is_fault_phase_ || !is_excused_during_faults(each)) world().report_violation(when + ": " + each);
  }
}

LifeReport Life::run() {
  world().schedule(0, [this] { schedule_operations(); });
  world().schedule(settings_.check_interval_ms, [this] { schedule_checks(); });
  world().run_until(settings_.fault_phase_ms);
  end_fault_phase();
  const Ms until = world().now() + settings_.settle_timeout_ms;
  for (std::string unsettled; !world().is_violated() && !(unsettled = describe_unsettled()).empty();) {
    if (world().now() >= until) world().report_violation("not everything has ended: " + explain_job(unsettled));
    world().run_until(world().now() + 500);
  }
  if (!world().is_violated()) check("at the end");
  if (!world().is_violated()) check_flows();
  if (!world().is_violated()) check_parked_jobs();
  report_.violation = world().violation();
  report_.history = world().history();
  report_.jobs = last_id_;
  report_.flows = flows_.size();
  report_.fault_counts = world().fault_counts();
  report_.runs = stage_.checker.run_count();
  report_.facts = stage_.checker.fact_count();
  return report_;
}

// Ends the faults: stopped programs resume, and the server's clock is set to its furthest time so far.
void Life::end_fault_phase() {
  is_fault_phase_ = false;
  world().fault_rates = {};
  world().server_clock().shift_ms = max_shift_ms_;
  for (const auto& host : stage_.hosts) host->failing_launches = host->hanging_launches = 0;
  // Waits until abandoned calls have arrived, such as a request to pause a queue.
  world().run_until(world().now() + settings_.max_late_ms + 100);
  for (const char* queue : {"queue:sim", "queue:other"}) {
    clients_[0]->enqueue({std::string("resumes ") + queue,
                          [queue](Store& store) { return test::set_queue_paused(store, kContext, queue, false); }});
  }
  world().note("the faults have ended");
}

// Returns the reason why the life is not settled, or "". No client sends new requests, so an ended job stays ended.
std::string Life::describe_unsettled() {
  for (const auto& client : clients_) {
    if (!client->is_done()) return client->name() + " waits for replies";
  }
  if (!unsettled_job_.empty())
    unsettled_job_ = describe_unsettled_jobs({unsettled_job_});  // cheaper than reading all jobs
  if (unsettled_job_.empty()) {
    std::vector<std::string> keys;
    for (Id id = 1; id <= last_id_; ++id) {
      if (const std::string key = make_job_key(id); !ended_jobs_.contains(key)) keys.push_back(key);
    }
    unsettled_job_ = describe_unsettled_jobs(keys);
  }
  if (!unsettled_job_.empty()) return unsettled_job_;
  if (!coordinators_.empty()) {
    const auto active_flows = coordinators_.front()->fault_free_flows().active_flows(kContext, 0, 1);
    if (!active_flows) return active_flows.error().message;
    if (!active_flows->empty()) return "flow:" + std::to_string(active_flows->front()) + " has not ended";
  }
  for (const auto& service : stage_.services) {
    if (!service->is_quiet()) return "agent " + std::to_string(service->settings().runner.id) + " is busy";
  }
  return "";
}

// Returns the first of these jobs that is still active, or "". All other jobs have ended or are parked.
std::string Life::describe_unsettled_jobs(const std::vector<std::string>& keys) {
  const auto job_states = stage_.store().job_states(kContext, keys, false);
  if (!job_states) return job_states.error().message;
  report_.parked = 0;
  std::string first_active;
  for (const JobStoreState& job : *job_states) {
    const bool is_absent = job.record_type == "none" && !job.claim.exists && !job.awaits_record;
    const bool is_waiting = job.claim.state == "waiting";
    report_.parked += is_waiting ? 1 : 0;
    if (has_ended(job))
      ended_jobs_.insert(job.job_key);
    else if (!is_absent && !is_waiting && first_active.empty())
      first_active = job.job_key;
  }
  return first_active;
}

std::string Life::explain_job(const std::string& subject) {
  if (!subject.starts_with("job:")) return subject;
  const auto why = explain(stage_.store(), kContext, subject);
  return subject + (why ? " is " + why->state + ", " + why->cause : ": " + why.error().message);
}

// The record of each flow must agree with its journal.
void Life::check_flows() {
  for (const auto& [name, id] : flows_) {
    RunCache cache;
    const auto run = load_run(coordinators_.front()->fault_free_flows(), kContext, id, cache);
    if (!run) return world().report_violation(name + ": " + run.error().message);
    if (run->record.status != run->state.status || run->record.detail != run->state.detail) {
      world().report_violation(name + ": its record says " + std::string(to_string(run->record.status)) +
                               ", its journal " + std::string(to_string(run->state.status)));
    }
    for (const auto* list : {&run->anomalies, &run->state.anomalies}) {
      for (const std::string& each : *list) world().report_violation(name + ": " + each);
    }
  }
}

// A parked job must wait for an absent job, or be part of a cycle.
void Life::check_parked_jobs() {
  std::map<std::string, std::string> causes;
  for (Id id = 1; id <= last_id_; ++id) {
    if (ended_jobs_.contains(make_job_key(id)) || stage_.get_job_state(make_job_key(id)).claim.state != "waiting")
      continue;
    const auto why = explain(stage_.store(), kContext, make_job_key(id));
    const std::string cause = why ? why->cause : why.error().message;
    if (cause != "dependency_absent" && cause != "cycle" && cause != "dependencies") {
      world().report_violation(make_job_key(id) + " waits, and the reason is " + cause);
    }
  }
}

}  // namespace mycojobs::sim
