#include "sandbox/egress/proxy.h"

#include <algorithm>
#include <ctime>
#include <type_traits>

#include "base/errno_text.h"

namespace mycojobs::egress {
namespace {

constexpr int kTimerIntervalMs = 250;
constexpr int kMaxFramesPerIteration = 16;
constexpr std::uint64_t kLauncher = ~0ULL;  // run numbers start at 1
constexpr std::size_t kReservedDescriptors = 64;
constexpr std::size_t kDescriptorsPerConnection = 4;  // of both sides and of a lookup

std::uint64_t monotonic_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000000;
}

}  // namespace

Proxy::Proxy(Fd launcher, Options options)
    : epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      launcher_(std::move(launcher)),
      options_(std::move(options)),
      resolver_(options_.hosts, options_.name_servers) {}

int Proxy::run() {
  if (!epoll_ || !flush()) return 71;
  epoll_event events[64];
  std::uint64_t last_sweep_ms = monotonic_ms();
  for (;;) {
    const bool has_timers =
        std::any_of(runs_.begin(), runs_.end(), [](const auto& entry) { return entry.second->needs_timer(); });
    const int count = ::epoll_wait(epoll_.get(), events, 64, has_timers ? kTimerIntervalMs : -1);
    if (count < 0 && errno != EINTR) return 71;
    const std::uint64_t now_ms = monotonic_ms();
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kLauncher) {
        if (!read_launcher()) return 0;
        continue;
      }
      if (const auto found = runs_.find(events[i].data.u64); found != runs_.end())
        found->second->process_events(now_ms, max_connections());
    }
    if (has_timers && now_ms >= last_sweep_ms + kTimerIntervalMs) {
      for (auto& [id, run] : runs_) run->on_time(now_ms, max_connections());
      last_sweep_ms = now_ms;
    }
    if (!flush()) return 0;
  }
}

bool Proxy::read_launcher() {
  for (int i = 0; i < kMaxFramesPerIteration; ++i) {
    sandbox::RawFrame frame;
    switch (sandbox::receive_raw(launcher_.get(), frame, MSG_DONTWAIT)) {
      case sandbox::ReceiveResult::would_block:
        return true;
      case sandbox::ReceiveResult::closed:
        return false;
      case sandbox::ReceiveResult::malformed:
        send(ProxyProblem{"egress: a frame from the launcher is malformed"});
        break;
      case sandbox::ReceiveResult::descriptors_lost:
        send(ProxyProblem{"egress: out of descriptors: a frame from the launcher had no sockets"});
        break;
      case sandbox::ReceiveResult::frame:
        handle_frame(frame);
        break;
    }
  }
  return true;
}

void Proxy::handle_frame(sandbox::RawFrame& frame) {
  Serve serving;
  Close closing;
  NextJob next_job;
  if (decode(frame, serving) && frame.fds.size() == 1) return serve(serving, std::move(frame.fds.front()));
  if (decode(frame, closing) && frame.fds.empty()) return close(closing);
  if (decode(frame, next_job) && frame.fds.empty()) {
    if (const auto found = runs_.find(next_job.run); found != runs_.end()) found->second->state().reported_denials = 0;
    return;
  }
  send(ProxyProblem{"egress: invalid frame from the launcher: kind " + std::to_string(frame.kind) + ", " +
                    std::to_string(frame.fds.size()) + " descriptors"});
}

void Proxy::serve(const Serve& message, Fd listener) {
  const auto report_problem = [&](const std::string& reason) {
    send(ProxyProblem{"egress: run " + std::to_string(message.run) + ": " + reason});
  };
  if (runs_.contains(message.run) || message.run == kLauncher) return report_problem("is served already");
  auto allow = parse_allow(message.allow);
  if (!allow) return report_problem(allow.error().message);
  ProxyRunState state{AllowListChecker(std::move(*allow)), resolver_, options_.timeouts, Poller(), 0, 0, 0, 0, 0, {}};
  if (!state.poller) return report_problem("epoll_create1: " + errno_text(errno));
  // Sent before the job receives the refusal, since its run may then end. A closed launcher socket is detected in the
  // next iteration.
  state.report_denied = [this, id = message.run](const std::string& text) {
    const auto found = runs_.find(id);
    if (found == runs_.end() || found->second->state().reported_denials >= kMaxDenied) return;
    ++found->second->state().reported_denials;
    send(ConnectionDenied{id, text});
    static_cast<void>(flush());
  };
  auto run = ProxiedRun::start(std::move(state), std::move(listener));
  if (!run) return report_problem(run.error().message);
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = message.run;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, (*run)->poll_fd(), &event) != 0) {
    return report_problem("epoll_ctl: " + errno_text(errno));
  }
  runs_.emplace(message.run, std::move(*run));
}

void Proxy::close(const Close& message) {
  ProxyRunEnded ended;
  ended.run = message.run;
  if (const auto found = runs_.find(message.run); found != runs_.end()) {
    const ProxyRunState& state = found->second->state();
    ended.connections = state.connections;
    ended.bytes_up = state.bytes_up;
    ended.bytes_down = state.bytes_down;
    ended.denied = state.denied;
    runs_.erase(found);
  }
  send(ended);
}

// Returns an equal share of the descriptors, so that many connections of one run do not affect others.
std::size_t Proxy::max_connections() const {
  const std::size_t usable_descriptors =
      options_.descriptors > kReservedDescriptors ? options_.descriptors - kReservedDescriptors : 0;
  const std::size_t share = usable_descriptors / kDescriptorsPerConnection / std::max<std::size_t>(runs_.size(), 1);
  return std::clamp<std::size_t>(share, 1, kMaxConnections);
}

template <class Message>
void Proxy::send(const Message& message) {
  unsent_.push_back(sandbox::encode(message));
}

// Messages that the launcher does not accept wait; there are at most kMaxDenied per job, and one ProxyRunEnded per run.
// Returns false if the launcher has closed the socket.
bool Proxy::flush() {
  while (!unsent_.empty()) {
    const int error = sandbox::send_raw(launcher_.get(), unsent_.front(), {}, MSG_DONTWAIT);
    if (error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS) break;
    if (error != 0 && error != EMSGSIZE) return false;
    unsent_.pop_front();
  }
  const std::uint32_t watched_events = unsent_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
  if (watched_events == launcher_events_) return true;
  epoll_event event{};
  event.events = watched_events;
  event.data.u64 = kLauncher;
  const int operation = launcher_events_ == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (::epoll_ctl(epoll_.get(), operation, launcher_.get(), &event) != 0) return false;
  launcher_events_ = watched_events;
  return true;
}

}  // namespace mycojobs::egress
