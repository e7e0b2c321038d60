// The functions of ChaosRound that choose the processes to kill or stop. The other functions are in round.cpp.
#include <algorithm>
#include <csignal>

#include "chaos/round.h"

namespace mycojobs::test {
namespace {

// Returns with equal probability a time that is much shorter than a lease or a time that is longer, so that both ways
// of recovery are tested.
std::int64_t pick_stop_duration_us(Random& random) {
  return pick_index(random, 2) == 0 ? pick_between(random, 200'000, 1'000'000)
                                    : pick_between(random, kLeaseUs + 200'000, 5'000'000);
}

}  // namespace

// Sends the first planned signal for which a matching process exists, and removes it from the plan.
void ChaosRound::send_next_signal() {
  for (auto planned_signal = planned_signals_.begin(); planned_signal != planned_signals_.end(); ++planned_signal) {
    if (!(planned_signal->component == Component::redis ? signal_redis(*planned_signal)
                                                        : signal_matching_process(*planned_signal)))
      continue;
    ++signal_counts_[{planned_signal->component, planned_signal->signal}];
    planned_signals_.erase(planned_signal);
    break;
  }
  next_signal_us_ = boot_time_us() + pick_between(random_, settings_.pause_us / 3, settings_.pause_us * 5 / 3);
}

bool ChaosRound::signal_redis(const PlannedSignal& planned_signal) {
  const auto processes = witness_->latest_processes();
  const auto redis_server = std::find_if(processes.begin(), processes.end(),
                                         [](const auto& process) { return process.component == Component::redis; });
  const bool is_stopped = std::any_of(stopped_processes_.begin(), stopped_processes_.end(), [](const auto& process) {
    return process.process.component == Component::redis;
  });
  if (redis_server == processes.end() || redis_restart_due_us_ != 0 || is_stopped) return false;
  if (planned_signal.signal == SIGKILL) {
    redis_.kill();
    log_action("kill redis");
    redis_restart_due_us_ = boot_time_us() + pick_between(random_, 0, 800'000);
    return true;
  }
  if (!signal_process(*redis_server, planned_signal.signal)) return false;
  log_action("stop " + redis_server->to_text());
  stopped_processes_.push_back({*redis_server, boot_time_us() + pick_stop_duration_us(random_)});
  return true;
}

bool ChaosRound::signal_matching_process(const PlannedSignal& planned_signal) {
  const auto processes = witness_->latest_processes();
  const auto has_stopped_process = [&](pid_t launcher, Component component) {
    return std::any_of(stopped_processes_.begin(), stopped_processes_.end(), [&](const StoppedProcess& process) {
      return process.process.launcher_pid == launcher && process.process.component == component;
    });
  };
  std::vector<ObservedProcess> candidates;
  for (const auto& process : processes) {
    if (process.component != planned_signal.component || process.state == 'T') continue;
    // The init of a job and the launcher both enforce the job's fence, so they are not stopped at the same time.
    if (planned_signal.signal == SIGSTOP && process.component == Component::init &&
        has_stopped_process(process.launcher_pid, Component::launcher))
      continue;
    if (planned_signal.signal == SIGSTOP && process.component == Component::launcher &&
        has_stopped_process(process.pid, Component::init))
      continue;
    candidates.push_back(process);
  }
  if (candidates.empty()) return false;
  const ObservedProcess victim = candidates[pick_index(random_, candidates.size())];
  if (!signal_process(victim, planned_signal.signal)) return false;
  log_action((planned_signal.signal == SIGKILL ? "kill " : "stop ") + victim.to_text());
  if (planned_signal.signal == SIGKILL && (victim.component == Component::init || victim.component == Component::job))
    record_killed_job(victim, processes);
  if (planned_signal.signal == SIGSTOP)
    stopped_processes_.push_back({victim, boot_time_us() + pick_stop_duration_us(random_)});
  if (!planned_signal.also_kills_agent) return true;
  const auto owning_agent = std::find_if(processes.begin(), processes.end(),
                                         [&](const auto& process) { return process.pid == victim.agent_pid; });
  if (owning_agent != processes.end() && signal_process(*owning_agent, SIGKILL)) {
    log_action("kill " + owning_agent->to_text());
    ++signal_counts_[{Component::agent, SIGKILL}];
  }
  return true;
}

// Records the job of the killed process. The name of the process, or of its child if init was killed, contains the
// job's id.
void ChaosRound::record_killed_job(const ObservedProcess& victim, const std::vector<ObservedProcess>& processes) {
  bool is_job_known = false;
  for (const auto& process : processes) {
    ProcessName name;
    if ((process.pid != victim.pid && process.parent != victim.pid) || !parse_process_name(process.comm, name))
      continue;
    jobs_with_killed_process_.insert(name.job);
    is_job_known = true;
  }
  if (!is_job_known) ++unidentified_kill_count_;
}

}  // namespace mycojobs::test
