// Main loops of the services, and handling of stop signals.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "api/health.h"
#include "base/clock.h"
#include "base/service_manager.h"
#include "cli/reload.h"
#include "coordinator/coordinator.h"
#include "store/store_health.h"
#include "telemetry/metrics.h"
#include "worker/agent.h"

namespace mycojobs {

// Blocks the signals that serve() and `run` wait for, in this thread and in all threads that it starts later.
void block_stop_signals();
// Meaning of a signal for a service. SIGHUP is a reload for a process without a controlling terminal. With a terminal,
// SIGHUP is sent when the terminal hangs up, and stops the process.
enum class SignalRequest { none, stop, reload };
// Waits like next_stop_signal(), but for all signals of a service. at_stop: called at once after a stop signal.
SignalRequest next_request(int timeout_ms, const std::function<void()>& at_stop);
// Returns the number of a received stop signal, or 0 after timeout_ms. A signal that a process sends twice within a
// short time, like timeout(1) does, counts once. at_once: called before the wait for such a duplicate.
int next_stop_signal(int timeout_ms, const std::function<void()>& at_once);
inline int next_stop_signal(int timeout_ms) {
  return next_stop_signal(timeout_ms, [] {});
}
// Returns the signal that ends a command which follows a job, flow, message or workflow: a stop signal, or SIGPIPE once
// the reader of standard output or standard error is closed, even without output. Returns 0 after timeout_ms.
int next_follower_signal(int timeout_ms);
// Exit code of a command that was stopped before its result, as in a shell: 130 after Ctrl-C.
constexpr int exit_of_signal(int signal) { return 128 + signal; }

// Liveness of a process: its main thread reports progress, other threads query it.
class ProcessLiveness {
 public:
  void mark_progress() { last_ms_ = clock_.boot_ms(); }
  bool alive() const { return clock_.boot_ms() - last_ms_ < kMaxDurationMs; }

 private:
  static constexpr std::uint64_t kMaxDurationMs = 30'000;  // half of WatchdogSec= of the units
  SystemClock clock_;
  std::atomic<std::uint64_t> last_ms_{clock_.boot_ms()};
};

// Returns health queries for a service. `served` and `vitals` must outlive them.
template <class Served>
Health health_of(Served& served, const ProcessLiveness& vitals) {
  return {[&vitals] { return vitals.alive(); }, [&served] { return served.unready_reason(); }};
}

// Health and metrics of an agent from the start of the process, also before the agent exists or while its store is
// unavailable.
class AgentStatus {
 public:
  AgentStatus(Metrics& metrics, ProcessLiveness& vitals) : metrics_(metrics), vitals_(vitals) {}
  // Callback for Agent::Dependencies::try_again. Reports the wait and its reason to the log and to the service manager.
  // The service counts as started, so that other units of the host do not wait for Redis. Returns false after a stop
  // signal.
  bool wait(const Error& why);
  bool is_reload_requested() const { return reload_wanted_; }  // a reload was requested during the wait
  bool stopped() const { return stopped_; }
  Agent& attach_agent(std::unique_ptr<Agent>);

  std::string unready_reason();  // like Agent::unready_reason(); thread-safe
  void measure();                // like Agent::measure(); thread-safe

 private:
  Metrics& metrics_;
  ProcessLiveness& vitals_;
  StoreHealth health_;
  const ServiceManager manager_ = ServiceManager::from_environment();
  bool waits_ = false, stopped_ = false, reload_wanted_ = false;
  std::mutex mutex_;  // protects the members below
  std::string reason_ = "it starts";
  std::unique_ptr<Agent> agent_;
};

// Serves until the agent stops, and returns the exit code. The first SIGTERM or SIGINT drains, the second stops the
// jobs and returns them to their queues, the third exits at once. The service manager receives `status` when the agent
// accepts jobs, a notice when it drains, and watchdog messages while the agent's threads make progress.
int serve(Agent&, const std::string& status, ProcessLiveness&, Reload&);
// Drains the agent of this command until its other jobs have ended. A stop signal leaves these jobs to the next agent
// of the state folder. No new jobs are claimed.
void wait_for_drain(Agent&);
// Serves until the first SIGTERM or SIGINT. The current commit is completed, so no data is lost.
void serve(Coordinator&, const std::string& status, ProcessLiveness&, Reload&);

}  // namespace mycojobs
