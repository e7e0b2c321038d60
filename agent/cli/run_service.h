// Main loops of the services, and handling of stop signals. All functions are for the main thread, unless noted.
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
// Restores the default action of stop signals, which ends the process.
void exit_on_stop_signals();
// Meaning of a signal for a service. SIGHUP is a reload for a process without a controlling terminal. With a terminal,
// SIGHUP is sent when the terminal hangs up, and stops the process.
enum class SignalRequest { none, stop, reload };
// Waits like next_stop_signal(), but for all signals of a service. on_stop: called at once after a stop signal.
SignalRequest next_request(int timeout_ms, const std::function<void()>& on_stop);
// Returns the number of a received stop signal, or 0 after timeout_ms. A signal that a process sends twice within a
// short time, like timeout(1) does, counts once. on_signal: called before the wait for such a duplicate.
int next_stop_signal(int timeout_ms, const std::function<void()>& on_signal);
inline int next_stop_signal(int timeout_ms) {
  return next_stop_signal(timeout_ms, [] {});
}
// Returns the signal that ends a command which follows a job, flow, message or workflow: a stop signal, or SIGPIPE
// after the reader of standard output or standard error has closed, even without output. Returns 0 after timeout_ms.
int next_follower_signal(int timeout_ms);
// Returns the exit code of a command that a signal has stopped before its result, as in a shell: 130 after Ctrl-C.
constexpr int signal_exit_code(int signal) { return 128 + signal; }

// Liveness of a process. The main thread reports progress; other threads query the state.
class ProcessLiveness {
 public:
  void mark_progress() { last_progress_ms_ = clock_.boot_ms(); }
  bool is_alive() const { return clock_.boot_ms() - last_progress_ms_ < kMaxDurationMs; }

 private:
  static constexpr std::uint64_t kMaxDurationMs = 30'000;  // half of WatchdogSec= of the units
  SystemClock clock_;
  std::atomic<std::uint64_t> last_progress_ms_{clock_.boot_ms()};
};

// Returns the health queries of a service. `service` and `liveness` must outlive the result.
template <class Service>
Health make_health_queries(Service& service, const ProcessLiveness& liveness) {
  return {[&liveness] { return liveness.is_alive(); }, [&service] { return service.unready_reason(); }};
}

// Health and metrics of an agent from the start of the process, also before the agent exists or while its store is
// unavailable.
class AgentStatus {
 public:
  AgentStatus(Metrics& metrics, ProcessLiveness& liveness) : metrics_(metrics), liveness_(liveness) {}
  // Callback for Agent::Dependencies::should_retry. Reports the wait and its reason to the log and to the service
  // manager. The service counts as started, so that other units of the host do not wait for Redis. Returns false after
  // a stop signal.
  bool wait(const Error& error);
  bool is_reload_requested() const { return reload_requested_; }  // a reload was requested during the wait
  bool is_stopped() const { return is_stopped_; }
  Agent& attach_agent(std::unique_ptr<Agent>);

  std::string unready_reason();  // like Agent::unready_reason(); thread-safe
  void refresh_metrics();        // like Agent::refresh_metrics(); thread-safe

 private:
  Metrics& metrics_;
  ProcessLiveness& liveness_;
  StoreHealth health_;
  const ServiceManager manager_ = ServiceManager::from_environment();
  bool is_waiting_ = false, is_stopped_ = false, reload_requested_ = false;
  std::mutex mutex_;  // protects the members below
  std::string unready_reason_ = "it starts";
  std::unique_ptr<Agent> agent_;
};

// Runs the agent until it stops, and returns the exit code. The first SIGTERM or SIGINT drains, the second stops the
// jobs and returns them to their queues, the third exits at once. The service manager receives `status` when the agent
// accepts jobs, a notice when it drains, and watchdog messages while the agent's threads make progress.
int serve(Agent&, const std::string& status, ProcessLiveness&, Reload&);
// Waits until the jobs of this command's agent have ended; the agent claims no new jobs. After a stop signal, returns
// without waiting, and the next agent on the state folder runs these jobs again.
void wait_for_drain(Agent&);
// Runs the coordinator until the first SIGTERM or SIGINT. The current commit is completed, so no data is lost.
void serve(Coordinator&, const std::string& status, ProcessLiveness&, Reload&);

}  // namespace mycojobs
