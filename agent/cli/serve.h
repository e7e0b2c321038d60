// Runs an agent until it is asked to stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "api/health.h"
#include "base/clock.h"
#include "base/notify.h"
#include "cli/reload.h"
#include "coordinator/coordinator.h"
#include "metrics/metrics.h"
#include "worker/agent.h"
#include "worker/store_health.h"

namespace mycojobs {

// Blocks the signals that serve() and `run` wait for, in this thread and all that it starts from now on.
void block_stop_signals();
// What a signal asks of a process that serves. HUP of a process without a controlling terminal is a reload; with one,
// it is sent when the terminal hangs up, and stops.
enum class SignalRequest { none, stop, reload };
// As next_stop_signal().
SignalRequest next_request(int timeout_ms, const std::function<void()>& at_stop);
// A stop signal that has arrived: its number, or 0 after timeout_ms. One that a process sends us twice in a moment, as
// timeout(1) does, is one.
// at_once: done before a second one is waited for, where that moment counts.
int next_stop_signal(int timeout_ms, const std::function<void()>& at_once);
inline int next_stop_signal(int timeout_ms) {
  return next_stop_signal(timeout_ms, [] {});
}
// The signal that ends a command which follows a job, flow, message or workflow: a stop signal, or SIGPIPE once the
// reader of standard output or standard error has gone, even if nothing is written. 0 after timeout_ms.
int next_follower_signal(int timeout_ms);
// What a command exits with that was asked to stop before it had its answer, as a shell says it: 130 after Ctrl-C.
constexpr int exit_of_signal(int signal) { return 128 + signal; }

// Whether a process comes round: its main thread says so, others ask.
class Vitals {
 public:
  void came_round() { last_ms_ = clock_.boot_ms(); }
  bool alive() const { return clock_.boot_ms() - last_ms_ < kLongestMs; }

 private:
  static constexpr std::uint64_t kLongestMs = 30'000;  // half of what the units' WatchdogSec= allows
  SystemClock clock_;
  std::atomic<std::uint64_t> last_ms_{clock_.boot_ms()};
};

// What others may ask of a process that serves; both outlive whoever asks.
template <class Served>
Health health_of(Served& served, const Vitals& vitals) {
  return {[&vitals] { return vitals.alive(); }, [&served] { return served.why_not_ready(); }};
}

// What others may ask of an agent from its first moment on, when there is none yet: it starts, or waits for its store.
class AgentPlace {
 public:
  AgentPlace(Metrics& metrics, Vitals& vitals) : metrics_(metrics), vitals_(vitals) {}
  // Of Agent::Parts::try_again: says that we wait and why, in the log and to the service manager, who counts us as
  // started: what else the host starts shall not wait for Redis. False: a stop signal came.
  bool wait(const Error& why);
  bool reload_wanted() const { return reload_wanted_; }  // a reload was asked for in the meantime
  bool stopped() const { return stopped_; }
  Agent& take(std::unique_ptr<Agent>);

  std::string why_not_ready();  // as Agent has it; any thread
  void measure();               // the same

 private:
  Metrics& metrics_;
  Vitals& vitals_;
  StoreHealth health_;
  const ServiceManager manager_ = ServiceManager::of_environment();
  bool waits_ = false, stopped_ = false, reload_wanted_ = false;
  std::mutex mutex_;  // of what follows
  std::string reason_ = "it starts";
  std::unique_ptr<Agent> agent_;
};

// First TERM or INT: drain; second: stop the jobs and give them back; third: leave at once. Returns the exit code. A
// service manager gets `status` when jobs are taken, a note when we drain, and a sign of life while the agent's threads
// come round.
int serve(Agent&, const std::string& status, Vitals&, Reload&);
// What an agent of our own runs besides what we waited for may finish; a stop signal leaves it to the next one on this
// state folder. Nothing new is taken.
void let_finish(Agent&);
// Until the first TERM or INT: the commit that is under way is finished, and nothing is lost.
void serve(Coordinator&, const std::string& status, Vitals&, Reload&);

}  // namespace mycojobs
