#include "cli/run_service.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sysexits.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/service_manager.h"
#include "cli/terminal.h"
#include "text/plural.h"

namespace mycojobs {
namespace {
sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction now {};
    // A signal that the parent process has set to be ignored (nohup, a shell's background job) stays ignored.
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&set, signal);
  }
  return set;
}

// Must be called at the start of the process: after a hang-up there is no controlling terminal.
bool has_controlling_terminal() {
  static const bool has = Fd(::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC)).get() >= 0;
  return has;
}

int wait_for(const sigset_t& set, int timeout_ms, siginfo_t& from) {
  const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
  return ::sigtimedwait(&set, &from, &timeout);
}

// Returns a received signal, or 0 after the time. at_once: called before the wait for a duplicate.
int next_signal(int timeout_ms, const std::function<void(int)>& at_once) {
  const sigset_t set = stop_signals();
  siginfo_t from{};
  const int signal = wait_for(set, timeout_ms, from);
  if (signal <= 0) return 0;
  at_once(signal);
  // Sent by a process. Ctrl-C is sent by the kernel, and each one counts.
  if (from.si_code == SI_USER) {
    constexpr int kEchoMs = 100;  // between the signals to this process and to its process group
    sigset_t same;
    sigemptyset(&same);
    sigaddset(&same, signal);
    siginfo_t again{};
    (void)wait_for(same, kEchoMs, again);
  }
  return signal;
}

// Reports liveness to the service manager when a report is due and the service is healthy, and changes of the reason
// why the service is not ready.
template <class Served>
class ServiceStatusReporter {
 public:
  ServiceStatusReporter(const ServiceManager& manager, Served& served, std::string status, ProcessLiveness& vitals)
      : manager_(manager), served_(served), status_(std::move(status)), vitals_(vitals) {}
  void show() {
    show_status();
    if (clock_.boot_ms() < next_ms_ || !served_.is_healthy()) return;
    vitals_.mark_progress();
    manager_.notify_watchdog();
    next_ms_ = clock_.boot_ms() + manager_.watchdog_interval_ms().value_or(kUnwatchedMs);
  }
  int pause_ms() const {
    constexpr std::uint64_t kMaxMs = 250;
    return static_cast<int>(std::min(kMaxMs, manager_.watchdog_interval_ms().value_or(kMaxMs)));
  }

 private:
  static constexpr std::uint64_t kUnwatchedMs = 5000;
  void show_status() {
    if (!manager_.is_available()) return;
    std::string reason = served_.unready_reason();
    if (reason == reason_) return;
    manager_.status(reason.empty() ? status_ : reason);
    reason_ = std::move(reason);
  }
  const ServiceManager& manager_;
  Served& served_;
  std::string status_, reason_;
  ProcessLiveness& vitals_;
  SystemClock clock_;
  std::uint64_t next_ms_ = 0;
};

}  // namespace

void block_stop_signals() {
  const sigset_t set = stop_signals();
  (void)has_controlling_terminal();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // NOLINT(cert-err33-c): SIG_IGN is always accepted
}

SignalRequest next_request(int timeout_ms, const std::function<void()>& at_stop) {
  bool reloads = false;
  const int signal = next_signal(timeout_ms, [&](int number) {
    reloads = number == SIGHUP && !has_controlling_terminal();
    if (!reloads) at_stop();
  });
  return reloads ? SignalRequest::reload : signal != 0 ? SignalRequest::stop : SignalRequest::none;
}

int next_stop_signal(int timeout_ms, const std::function<void()>& at_once) {
  return next_signal(timeout_ms, [&at_once](int) { at_once(); });
}

int next_follower_signal(int timeout_ms) {
  const int signal = next_stop_signal(timeout_ms);
  return signal == 0 && is_output_closed() ? SIGPIPE : signal;
}

bool AgentStatus::wait(const Error& why) {
  constexpr int kPauseMs = 400;
  health_.failed(0, "starting", why);
  {
    std::lock_guard lock(mutex_);
    reason_ = "the store is away";
  }
  if (!std::exchange(waits_, true)) manager_.ready("waits for its store: " + why.message);
  vitals_.mark_progress();
  manager_.notify_watchdog();
  const SignalRequest request = next_request(kPauseMs, [] {});
  reload_wanted_ = reload_wanted_ || request == SignalRequest::reload;
  return !(stopped_ = request == SignalRequest::stop);
}

Agent& AgentStatus::attach_agent(std::unique_ptr<Agent> agent) {
  health_.on_success(0);
  std::lock_guard lock(mutex_);
  agent_ = std::move(agent);
  return *agent_;
}

std::string AgentStatus::unready_reason() {
  std::lock_guard lock(mutex_);
  return agent_ ? agent_->unready_reason() : reason_;
}

void AgentStatus::measure() {
  std::lock_guard lock(mutex_);
  if (agent_) return agent_->measure();
  metrics_.set(Metric::ready, {}, 0);
}

void wait_for_drain(Agent& agent) {
  constexpr std::uint64_t kQuietMs = 1000;
  const SystemClock clock;
  const std::uint64_t since_ms = clock.boot_ms();
  agent.drain();
  for (bool shown = false; agent.busy() > 0;) {
    if (!shown && clock.boot_ms() - since_ms > kQuietMs) {
      shown = true;
      print_message(
          fmt::format("waiting for {} that runs on this host; Ctrl-C exits immediately, and the next `mycojobs dev` or "
                      "`run` on this state folder runs it again",
                      agent.busy() == 1 ? "a job" : fmt::format("{} jobs", agent.busy())));
    }
    if (next_stop_signal(10) != 0) return;
  }
}

int serve(Agent& agent, const std::string& status, ProcessLiveness& vitals, Reload& reload) {
  const ServiceManager manager = ServiceManager::from_environment();
  manager.ready(status);
  ServiceStatusReporter life(manager, agent, status, vitals);
  int stops = 0;
  while (stops == 0 || agent.busy() > 0) {
    // New jobs may arrive directly after the stop signal, and must not be claimed.
    const SignalRequest request = next_request(stops > 0 ? 20 : life.pause_ms(), [&agent] { agent.drain(); });
    life.show();
    if (request == SignalRequest::reload) reload.reload();
    const bool lost = agent.runner_lost() && stops == 0;
    if (request != SignalRequest::stop && !lost) continue;
    switch (++stops) {
      case 1:
        log(LogLevel::info, "worker", "draining: {} to finish; once more stops them and gives them back",
            count_with_noun(agent.busy(), "job"));
        manager.stopping();
        agent.drain();
        break;
      case 2:
        log(LogLevel::warn, "worker",
            "stopping {}: returned to their queues without a delivery; another signal exits immediately",
            count_with_noun(agent.busy(), "job"));
        agent.return_jobs();
        break;
      default:
        log(LogLevel::warn, "worker", "exiting immediately: {} will be delivered again",
            count_with_noun(agent.busy(), "job"));
        return EX_TEMPFAIL;
    }
  }
  return agent.runner_lost() ? EX_TEMPFAIL : EXIT_SUCCESS;
}

void serve(Coordinator& coordinator, const std::string& status, ProcessLiveness& vitals, Reload& reload) {
  const ServiceManager manager = ServiceManager::from_environment();
  manager.ready(status);
  ServiceStatusReporter life(manager, coordinator, status, vitals);
  for (SignalRequest request{}; (request = next_request(life.pause_ms(), [] {})) != SignalRequest::stop; life.show()) {
    if (request == SignalRequest::reload) reload.reload();
  }
  manager.stopping();
  coordinator.stop();
}

}  // namespace mycojobs
