#include "life.h"

#include <algorithm>

#include "flows/flow_run.h"
#include "inspect/explain.h"
#include "inspect/invariants.h"
#include "jobs/state_machines.h"
#include "support/queue_pause.h"

namespace mycojobs::sim {
namespace {

constexpr std::int64_t kTenMinutes = 600000;

StageSettings make_settings(std::uint64_t seed, std::uint32_t lease_ms) {
  StageSettings settings{seed, lease_ms, 0, 0};
  if (seed % 4 == 1) settings.retention_count = 5;
  if (seed % 4 == 2) settings.retention_ms = 20000;
  return settings;
}

// All agents that check the leases of a context may have been down while faults were injected.
bool is_late_only(const std::string& violation) { return violation.starts_with("lease-overdue"); }

}  // namespace

LifeSettings brief_life() {
  LifeSettings settings;
  settings.fault_phase_ms = 1200;
  settings.max_late_ms = 200;
  settings.min_agents = 1;
  settings.max_agents = 2;
  settings.restart = 300;
  settings.check_interval_ms = 5000;
  settings.faults = 4;
  return settings;
}

Life::Life(std::uint64_t seed, LifeSettings settings)
    : settings_(std::move(settings)),
      seed_(seed),
      lease_ms_(1000U << (seed / 4 % 3)),
      stage_(make_settings(seed, lease_ms_)) {
  world().mistake = settings_.mistake;
  world().suppressed_events = settings_.suppressed_events;
  choose_from_seed();
}

void Life::choose_from_seed() {
  const std::uint64_t agents = settings_.min_agents + world().below(settings_.max_agents - settings_.min_agents + 1);
  for (std::uint64_t i = 0; i < agents; ++i) {
    const bool shares = i > 0 && maybe(3);
    Service& service = stage_.add_service(
        [&](WorkerSettings& settings) {
          settings.slots = static_cast<std::uint32_t>(1 + world().below(4));
          if (maybe(2) || i == 0) settings.script_types.emplace_back("other");
          if (maybe(3)) settings.lease_ms = lease_ms_ * 3;
        },
        shares ? &stage_.services[0]->host() : nullptr);
    service.host().clock.shift_ms = static_cast<std::int64_t>(world().below(2 * kTenMinutes)) - kTenMinutes;
    service.restart_after(100 + world().below(settings_.restart));
    service.start(world().below(settings_.fault_phase_ms / 20));
  }
  for (int i = 0; i < 2; ++i) clients_.push_back(std::make_unique<Client>(world(), "client" + std::to_string(i)));
  const auto chance = [&](std::uint32_t most) {
    return maybe(3) ? 0 : static_cast<std::uint32_t>((20 + world().below(most)) / settings_.faults);
  };
  const std::uint64_t coordinators = seed_ % 8 == 0 ? 2 : seed_ % 8 == 4 ? 1 : 0;
  for (std::uint64_t i = 0; i < coordinators; ++i)
    coordinators_.push_back(std::make_unique<SimCoordinator>(world(), "coordinator" + std::to_string(i)));
  Weather& weather = world().weather;
  weather.cut = chance(200);
  weather.late = chance(300);
  weather.late_ms = settings_.max_late_ms;
  weather.slow = chance(100);
  weather.slow_ms = lease_ms_ / 2;
  weather.stop = chance(600);
  weather.stop_ms = 3ULL * lease_ms_;
  const std::uint32_t request_lost = chance(200), reply_lost = chance(200), killed = chance(600);
  world().fate = [this, request_lost, reply_lost, killed](const Program&, const ServerCall&, std::uint64_t) {
    ++report_.calls;
    if (!is_fault_phase_) return Fate::fine;
    if (maybe(request_lost)) return Fate::request_lost;
    if (maybe(reply_lost)) return Fate::reply_lost;
    if (!maybe(killed)) return Fate::fine;
    ++report_.kills;
    return maybe(2) ? Fate::killed_before : Fate::killed_after;
  };
}

void Life::schedule_operations() {
  if (!is_fault_phase_) return;
  const std::string number = std::to_string(++operation_count_);
  const Ms pause = 20 + world().apart("pause " + number, [this] { return world().below(600); });
  world().at(world().now() + pause, [this] { schedule_operations(); });
  world().apart("deed " + number, [&] {
    std::uint32_t total = 0;
    for (const RandomOperation& deed : random_operations()) total += deed.weight;
    std::uint64_t left = world().below(total);
    auto deed = random_operations().begin();
    for (; left >= deed->weight; ++deed) left -= deed->weight;
    if (world().happens("deed " + number)) (this->*deed->act)();
    return true;
  });
}

void Life::schedule_checks() {
  if (!is_fault_phase_) return;
  check("meanwhile");
  world().at(world().now() + settings_.check_interval_ms, [this] { schedule_checks(); });
}

void Life::check(const std::string& when) {
  for (const std::string& each : violations(stage_.store())) {
    if (!is_fault_phase_ || !is_late_only(each)) world().report_violation(when + ": " + each);
  }
}

LifeReport Life::run() {
  world().at(0, [this] { schedule_operations(); });
  world().at(settings_.check_interval_ms, [this] { schedule_checks(); });
  world().run_until(settings_.fault_phase_ms);
  end_fault_phase();
  const Ms until = world().now() + settings_.settle_timeout_ms;
  for (std::string left; !world().is_violated() && !(left = describe_unsettled()).empty();) {
    if (world().now() >= until) world().report_violation("not everything has ended: " + explain_job(left));
    world().run_until(world().now() + 500);
  }
  if (!world().is_violated()) check("at the end");
  if (!world().is_violated()) check_flows();
  if (!world().is_violated()) explain_parked();
  report_.violation = world().violation();
  report_.history = world().history();
  report_.jobs = last_id_;
  report_.flows = flows_.size();
  report_.troubles = world().troubles();
  report_.runs = stage_.witness.runs();
  report_.facts = stage_.witness.facts();
  return report_;
}

// Ends the faults: stopped programs resume, and the server's clock is set to its furthest time so far.
void Life::end_fault_phase() {
  is_fault_phase_ = false;
  world().weather = {};
  world().server_clock().shift_ms = latest_shift_ms_;
  for (const auto& host : stage_.hosts) host->failing_launches = host->hanging_launches = 0;
  // Waits until abandoned calls have arrived, such as a request to pause a queue.
  world().run_until(world().now() + settings_.max_late_ms + 100);
  for (const char* queue : {"queue:sim", "queue:other"}) {
    clients_[0]->ask({std::string("resumes ") + queue,
                      [queue](Store& store) { return test::set_queue_paused(store, kContext, queue, false); }});
  }
  world().note("no trouble any more");
}

// Returns the reason why the life is not settled, or "". No client sends new requests, so an ended job stays ended.
std::string Life::describe_unsettled() {
  for (const auto& client : clients_) {
    if (!client->done()) return client->name() + " has not got all its answers";
  }
  if (!unsettled_.empty()) unsettled_ = describe_unsettled_jobs({unsettled_});  // cheaper than reading all jobs
  if (unsettled_.empty()) {
    std::vector<std::string> keys;
    for (Id id = 1; id <= last_id_; ++id) {
      if (const std::string key = make_job_key(id); !settled_.contains(key)) keys.push_back(key);
    }
    unsettled_ = describe_unsettled_jobs(keys);
  }
  if (!unsettled_.empty()) return unsettled_;
  if (!coordinators_.empty()) {
    const auto active = coordinators_.front()->own_flows().active_flows(kContext, 0, 1);
    if (!active) return active.error().message;
    if (!active->empty()) return "flow:" + std::to_string(active->front()) + " has not ended";
  }
  for (const auto& service : stage_.services) {
    if (!service->is_quiet()) return "agent " + std::to_string(service->settings().runner.id) + " is busy";
  }
  return "";
}

// Returns the first of these jobs that is still active, or "". All other jobs have ended or are parked.
std::string Life::describe_unsettled_jobs(const std::vector<std::string>& keys) {
  const auto places = stage_.store().job_states(kContext, keys, false);
  if (!places) return places.error().message;
  report_.parked = 0;
  std::string first;
  for (const JobStoreState& job : *places) {
    const bool absent = job.record_type == "none" && !job.claim.exists && !job.awaits_record;
    const bool waits = job.claim.state == "waiting";
    report_.parked += waits ? 1 : 0;
    if (has_ended(job))
      settled_.insert(job.job_key);
    else if (!absent && !waits && first.empty())
      first = job.job_key;
  }
  return first;
}

std::string Life::explain_job(const std::string& who) {
  if (!who.starts_with("job:")) return who;
  const auto why = explain(stage_.store(), kContext, who);
  return who + (why ? " is " + why->state + ", " + why->cause : ": " + why.error().message);
}

// The record of each flow must agree with its journal.
void Life::check_flows() {
  for (const auto& [name, id] : flows_) {
    RunCache cache;
    const auto run = load_run(coordinators_.front()->own_flows(), kContext, id, cache);
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
void Life::explain_parked() {
  std::map<std::string, std::string> causes;
  for (Id id = 1; id <= last_id_; ++id) {
    if (settled_.contains(make_job_key(id)) || stage_.place(make_job_key(id)).claim.state != "waiting") continue;
    const auto why = explain(stage_.store(), kContext, make_job_key(id));
    const std::string cause = why ? why->cause : why.error().message;
    if (cause != "dependency_absent" && cause != "cycle" && cause != "dependencies") {
      world().report_violation(make_job_key(id) + " waits, and the reason is " + cause);
    }
  }
}

}  // namespace mycojobs::sim
