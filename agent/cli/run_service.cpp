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
// Returns the stop signals that this process does not ignore.
sigset_t get_stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction current_action {};
    // A signal that the parent process has set to be ignored (nohup, a shell's background job) stays ignored.
    if (::sigaction(signal, nullptr, &current_action) == 0 && current_action.sa_handler != SIG_IGN)
      sigaddset(&set, signal);
  }
  return set;
}

// The first call must be at the start of the process, because after a hang-up there is no controlling terminal.
bool has_controlling_terminal() {
  static const bool has_terminal = Fd(::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC)).get() >= 0;
  return has_terminal;
}

int wait_for_signal(const sigset_t& set, int timeout_ms, siginfo_t& info) {
  const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
  return ::sigtimedwait(&set, &info, &timeout);
}

// Returns a received signal, or 0 after the time. on_signal: called before the wait for a duplicate.
int next_signal(int timeout_ms, const std::function<void(int)>& on_signal) {
  const sigset_t set = get_stop_signals();
  siginfo_t info{};
  const int signal = wait_for_signal(set, timeout_ms, info);
  if (signal <= 0) return 0;
  on_signal(signal);
  // Only signals of processes can be duplicates. Ctrl-C is sent by the kernel, and each counts.
  if (info.si_code == SI_USER) {
    constexpr int kDuplicateMs = 100;  // maximum time between the signals to this process and to its process group
    sigset_t duplicates;
    sigemptyset(&duplicates);
    sigaddset(&duplicates, signal);
    siginfo_t duplicate{};
    (void)wait_for_signal(duplicates, kDuplicateMs, duplicate);
  }
  return signal;
}

// Reports to the service manager: the liveness, when a report is due and the service is healthy, and each change of the
// reason why the service is not ready.
template <class Service>
class ServiceStatusReporter {
 public:
  ServiceStatusReporter(const ServiceManager& manager, Service& service, std::string status, ProcessLiveness& liveness)
      : manager_(manager), service_(service), status_(std::move(status)), liveness_(liveness) {}
  void report() {
    report_reason();
    if (clock_.boot_ms() < next_report_ms_ || !service_.is_healthy()) return;
    liveness_.mark_progress();
    manager_.notify_watchdog();
    next_report_ms_ = clock_.boot_ms() + manager_.watchdog_interval_ms().value_or(kDefaultReportIntervalMs);
  }
  int pause_ms() const {
    constexpr std::uint64_t kMaxPauseMs = 250;
    return static_cast<int>(std::min(kMaxPauseMs, manager_.watchdog_interval_ms().value_or(kMaxPauseMs)));
  }

 private:
  static constexpr std::uint64_t kDefaultReportIntervalMs = 5000;
  void report_reason() {
    if (!manager_.is_available()) return;
    std::string reason = service_.unready_reason();
    if (reason == reason_) return;
    manager_.notify_status(reason.empty() ? status_ : reason);
    reason_ = std::move(reason);
  }
  const ServiceManager& manager_;
  Service& service_;
  std::string status_, reason_;
  ProcessLiveness& liveness_;
  SystemClock clock_;
  std::uint64_t next_report_ms_ = 0;
};

}  // namespace

void block_stop_signals() {
  const sigset_t set = get_stop_signals();
  (void)has_controlling_terminal();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // NOLINT(cert-err33-c): SIG_IGN is always accepted
}

void exit_on_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

SignalRequest next_request(int timeout_ms, const std::function<void()>& on_stop) {
  bool is_reload = false;
  const int signal = next_signal(timeout_ms, [&](int signal_number) {
    is_reload = signal_number == SIGHUP && !has_controlling_terminal();
    if (!is_reload) on_stop();
  });
  return is_reload ? SignalRequest::reload : signal != 0 ? SignalRequest::stop : SignalRequest::none;
}

int next_stop_signal(int timeout_ms, const std::function<void()>& on_signal) {
  return next_signal(timeout_ms, [&on_signal](int) { on_signal(); });
}

int next_follower_signal(int timeout_ms) {
  const int signal = next_stop_signal(timeout_ms);
  return signal == 0 && is_output_closed() ? SIGPIPE : signal;
}

bool AgentStatus::wait(const Error& error) {
  constexpr int kStoreRetryIntervalMs = 400;
  constexpr int kRejectedRetryIntervalMs = 5000;  // Redis logs each rejected certificate
  health_.on_failure(0, "starting", error);
  {
    std::lock_guard lock(mutex_);
    unready_reason_ = "Redis is unavailable";
  }
  if (!std::exchange(is_waiting_, true)) manager_.notify_ready("waits for its store: " + error.message);
  liveness_.mark_progress();
  manager_.notify_watchdog();
  const SignalRequest request =
      next_request(error.code == Code::unavailable ? kStoreRetryIntervalMs : kRejectedRetryIntervalMs, [] {});
  reload_requested_ = reload_requested_ || request == SignalRequest::reload;
  return !(is_stopped_ = request == SignalRequest::stop);
}

Agent& AgentStatus::attach_agent(std::unique_ptr<Agent> agent) {
  health_.on_success(0);
  std::lock_guard lock(mutex_);
  agent_ = std::move(agent);
  return *agent_;
}

std::string AgentStatus::unready_reason() {
  std::lock_guard lock(mutex_);
  return agent_ ? agent_->unready_reason() : unready_reason_;
}

void AgentStatus::refresh_metrics() {
  std::lock_guard lock(mutex_);
  if (agent_) return agent_->refresh_metrics();
  metrics_.set(Metric::ready, {}, 0);
}

void wait_for_drain(Agent& agent) {
  constexpr std::uint64_t kMessageDelayMs = 1000;
  const SystemClock clock;
  const std::uint64_t start_ms = clock.boot_ms();
  agent.drain();
  for (bool is_message_printed = false; agent.count_busy_slots() > 0;) {
    if (!is_message_printed && clock.boot_ms() - start_ms > kMessageDelayMs) {
      is_message_printed = true;
      print_message(
          fmt::format("waiting for {} that runs on this host; Ctrl-C exits immediately, and the next `mycojobs dev` or "
                      "`run` on this state folder runs it again",
                      agent.count_busy_slots() == 1 ? "a job" : fmt::format("{} jobs", agent.count_busy_slots())));
    }
    if (next_stop_signal(10) != 0) return;
  }
}

int serve(Agent& agent, const std::string& status, ProcessLiveness& liveness, Reload& reload) {
  const ServiceManager manager = ServiceManager::from_environment();
  manager.notify_ready(status);
  ServiceStatusReporter reporter(manager, agent, status, liveness);
  int stop_count = 0;
  while (stop_count == 0 || agent.count_busy_slots() > 0) {
    // New jobs may arrive directly after the stop signal, and must not be claimed.
    const SignalRequest request = next_request(stop_count > 0 ? 20 : reporter.pause_ms(), [&agent] { agent.drain(); });
    reporter.report();
    if (request == SignalRequest::reload) reload.reload();
    const bool is_runner_lost = agent.has_lost_runner_id() && stop_count == 0;
    if (request != SignalRequest::stop && !is_runner_lost) continue;
    switch (++stop_count) {
      case 1:
        log(LogLevel::info, "worker", "draining: {} to finish; a second signal stops and releases them",
            count_with_noun(agent.count_busy_slots(), "job"));
        manager.notify_stopping();
        agent.drain();
        break;
      case 2:
        log(LogLevel::warn, "worker",
            "stopping {}: returned to their queues without a delivery; another signal exits immediately",
            count_with_noun(agent.count_busy_slots(), "job"));
        agent.return_jobs();
        break;
      default:
        log(LogLevel::warn, "worker", "exiting immediately: {} will be delivered again",
            count_with_noun(agent.count_busy_slots(), "job"));
        return EX_TEMPFAIL;
    }
  }
  return agent.has_lost_runner_id() ? EX_TEMPFAIL : EXIT_SUCCESS;
}

void serve(Coordinator& coordinator, const std::string& status, ProcessLiveness& liveness, Reload& reload) {
  const ServiceManager manager = ServiceManager::from_environment();
  manager.notify_ready(status);
  ServiceStatusReporter reporter(manager, coordinator, status, liveness);
  for (SignalRequest request{}; (request = next_request(reporter.pause_ms(), [] {})) != SignalRequest::stop;
       reporter.report()) {
    if (request == SignalRequest::reload) reload.reload();
    coordinator.start_missing_threads();
  }
  manager.notify_stopping();
  coordinator.stop();
}

}  // namespace mycojobs
