#include "worker/run_loop.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>

#include "base/log.h"

namespace mycojobs {
namespace {

// epoll's 64 bits: run number above, pipe below. Run numbers start at 1, so that 0 stands for our own descriptors.
constexpr std::uint64_t kOrders = 0, kSandbox = 1;
constexpr std::uint64_t kPartialMs = 50;    // how long a line may wait for its end
constexpr std::uint64_t kReviveMs = 500;    // between tries to start a new launcher
constexpr std::size_t kLinesAtOnce = 512;   // of a log in one report
constexpr std::size_t kReadAtOnce = 65536;  // per pipe and turn, so that a flood does not starve the others
constexpr std::size_t kCutNote = 1000;      // a note of so many bytes may have lost its end on the way

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

void control_epoll(int epoll, int operation, int fd, std::uint64_t tag, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  ::epoll_ctl(epoll, operation, fd, &event);
}

}  // namespace

RunLoop::RunLoop(std::unique_ptr<Sandbox> sandbox, const Clock& clock, const WorkerSettings& settings,
                 std::function<void(Outgoing)> post)
    : sandbox_(std::move(sandbox)),
      clock_(clock),
      settings_(settings),
      post_(std::move(post)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      secrets_(settings.secrets_dir, clock) {
  control_epoll(epoll_.get(), EPOLL_CTL_ADD, orders_.fd(), kOrders, EPOLLIN);
  watched_sandbox_ = sandbox_->event_fd();
  control_epoll(epoll_.get(), EPOLL_CTL_ADD, watched_sandbox_, kSandbox, EPOLLIN);
  thread_ = std::thread([this] { loop(); });
}

void RunLoop::stop() {
  stop_ = true;
  orders_.wake();
  if (thread_.joinable()) thread_.join();
}

void RunLoop::start(Start start) { orders_.post(std::move(start)); }
void RunLoop::fence(RunNumber run, std::uint64_t boot_ms) { orders_.post(Fence{run, boot_ms}); }
void RunLoop::kill(RunNumber run, KillReason reason) { orders_.post(Kill{run, reason}); }
void RunLoop::cancel_all() { orders_.post(Kill{0, KillReason::cancelled}); }

void RunLoop::loop() {
  std::array<epoll_event, 64> events{};
  bool partials = false;
  while (!stop_) {
    const int timeout = !ready_ ? static_cast<int>(kReviveMs) : partials ? static_cast<int>(kPartialMs) : -1;
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
    pulse_.beat();
    for (int i = 0; i < count; ++i) {
      const std::uint64_t tag = events[static_cast<std::size_t>(i)].data.u64;
      if (tag == kOrders || tag == kSandbox) continue;  // looked at below, after the pipes
      auto run = runs_.find(tag >> 2);
      if (run != runs_.end()) on_pipe(run->first, run->second, static_cast<Pipe>(tag & 3));
    }
    for (RunEnded& ended : sandbox_->read_ended()) end(ended);
    if (!sandbox_->alive()) revive_sandbox();
    for (Order& order : orders_.take()) obey(order);
    partials = false;
    for (auto& [number, run] : runs_) partials = partials || run.output.has_partial();
    if (partials) flush_partials();
  }
}

void RunLoop::revive_sandbox() {
  if (clock_.boot_ms() < revive_at_ms_) return;
  if (ready_.exchange(false)) log(LogLevel::error, "sandbox", "the launcher is gone: its jobs go back to their queues");
  revive_at_ms_ = clock_.boot_ms() + kReviveMs;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watched_sandbox_,
              nullptr);  // fails if it is closed: it is gone from the set then
  auto restarted = sandbox_->restart();
  watched_sandbox_ = sandbox_->event_fd();
  if (watched_sandbox_ >= 0) control_epoll(epoll_.get(), EPOLL_CTL_ADD, watched_sandbox_, kSandbox, EPOLLIN);
  if (!restarted) {
    if (restarted.error().message != why_not_)
      log(LogLevel::error, "sandbox", "no launcher: {}", restarted.error().message);
    why_not_ = restarted.error().message;
    return;
  }
  why_not_.clear();
  ready_ = true;
  log(LogLevel::info, "sandbox", "a new launcher is ready");
}

void RunLoop::obey(Order& order) {
  if (auto* start = std::get_if<Start>(&order)) {
    begin(*start);
  } else if (auto* fence = std::get_if<Fence>(&order)) {
    sandbox_->fence(fence->run, fence->boot_ms);
  } else if (auto* kill = std::get_if<Kill>(&order)) {
    const std::uint32_t grace = kill->reason == KillReason::cancelled ? settings_.grace_ms : 0;
    if (kill->run != 0) {
      sandbox_->kill(kill->run, kill->reason, grace);
    } else {
      for (auto& [number, run] : runs_) sandbox_->kill(number, kill->reason, grace);
    }
  }
}

void RunLoop::release(RunNumber number, const ClaimRef& claim, std::string reason, bool ran) {
  log(LogLevel::warn, "worker", "{}: back to its queue: {}", claim.job_key, reason);
  post_(Outgoing{number, Release{claim, std::move(reason), ran}, true});
}

void RunLoop::begin(Start& start) {
  auto pipes = sandbox_->launch(start.spec);
  if (!pipes) {
    // Nothing of it ran. No more is claimed for a moment: what failed once, for want of descriptors, say, fails again.
    release(start.run, start.claim, pipes.error().message, false);
    resting_until_ms_ = clock_.boot_ms() + kReviveMs;
    return;
  }
  auto [place, fresh] = runs_.try_emplace(
      start.run, Run{std::move(start.claim), std::move(start.conversation), OutputCapture(start.output_bytes),
                     Fd(pipes->out), Fd(pipes->err), Fd(pipes->channel), start.attempt, start.retries,
                     start.output_kill ? start.output_bytes : 0});
  Run& run = place->second;
  if (auto redactor = secrets_.redactor(start.spec.context)) run.clean = std::make_unique<Clean>(std::move(redactor));
  // Most requests fit into the socket at once, and the job finds its script waiting.
  const std::uint32_t channel_events = pump_request(run) ? EPOLLIN : EPOLLIN | EPOLLOUT;
  control_epoll(epoll_.get(), EPOLL_CTL_ADD, run.out.get(), tag_of(start.run, Pipe::out), EPOLLIN);
  control_epoll(epoll_.get(), EPOLL_CTL_ADD, run.err.get(), tag_of(start.run, Pipe::err), EPOLLIN);
  control_epoll(epoll_.get(), EPOLL_CTL_ADD, run.channel.get(), tag_of(start.run, Pipe::channel), channel_events);
}

bool RunLoop::pump_request(Run& run) {
  const std::string& request = run.conversation->request();
  while (run.sent < request.size()) {
    const ssize_t sent = ::send(run.channel.get(), request.data() + run.sent, request.size() - run.sent, MSG_NOSIGNAL);
    if (sent > 0) {
      run.sent += static_cast<std::size_t>(sent);
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    } else if (sent < 0 && errno == EINTR) {
      continue;
    } else {
      break;  // the job does not listen any more: its outcome will tell why
    }
  }
  run.sent = request.size();
  return true;
}

void RunLoop::on_pipe(RunNumber number, Run& run, Pipe pipe) {
  if (pipe == Pipe::channel && run.sent < run.conversation->request().size() && pump_request(run)) {
    control_epoll(epoll_.get(), EPOLL_CTL_MOD, run.channel.get(), tag_of(number, Pipe::channel), EPOLLIN);
  }
  read_pipe(run, pipe);
  watch_output(number, run);
  pass_on_output(number, run);
}

// Not more than one turn's bytes behind the job (kReadAtOnce of each pipe, and what the pipes hold).
void RunLoop::watch_output(RunNumber number, Run& run) {
  const std::uint64_t written = run.output.bytes(LogStream::out) + run.output.bytes(LogStream::err);
  if (run.output_most == 0 || written <= run.output_most || std::exchange(run.output_over, true)) return;
  sandbox_->kill(number, KillReason::output_limit, 0);
}

bool RunLoop::read_pipe(Run& run, Pipe pipe) {
  Fd& fd = pipe == Pipe::out ? run.out : pipe == Pipe::err ? run.err : run.channel;
  std::array<char, 16384> buffer;  // NOLINT(*-member-init): filled by read
  for (std::size_t total = 0; fd && total < kReadAtOnce;) {
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (count <= 0) {
      fd.reset();  // also leaves the epoll set
      return false;
    }
    total += static_cast<std::size_t>(count);
    const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
    if (pipe == Pipe::channel) {
      run.conversation->feed(bytes);
      for (const std::string& note : run.conversation->take_notes()) take_note(run, note);
    } else {
      const LogStream stream = pipe == Pipe::out ? LogStream::out : LogStream::err;
      run.output.feed(stream, run.clean ? run.clean->of(stream).feed(bytes) : bytes, clock_.unix_ms());
    }
    if (static_cast<std::size_t>(count) < buffer.size()) return false;
  }
  return static_cast<bool>(fd);
}

void RunLoop::take_note(Run& run, const std::string& note) {
  const std::uint64_t now = clock_.unix_ms();
  run.output.note(run.clean ? run.clean->redactor->redact(note, note.size() >= kCutNote) : note, now);
}

void RunLoop::pass_on_output(RunNumber number, Run& run) {
  // In portions: the store does one of them at a time, and others wait for it.
  std::vector<Log> lines = run.output.take();
  for (std::size_t from = 0; from < lines.size(); from += kLinesAtOnce) {
    const auto first = std::make_move_iterator(lines.begin() + static_cast<std::ptrdiff_t>(from));
    const auto last = first + static_cast<std::ptrdiff_t>(std::min(kLinesAtOnce, lines.size() - from));
    post_(Outgoing{number, LogAppend{run.claim, {first, last}}, false});
  }
}

void RunLoop::flush_partials() {
  const std::uint64_t now = clock_.boot_ms();
  for (auto& [number, run] : runs_) {
    if (!run.output.has_partial()) {
      run.partial_since_ms = 0;
    } else if (run.partial_since_ms == 0) {
      run.partial_since_ms = now;
    } else if (now - run.partial_since_ms >= kPartialMs) {
      run.output.flush_partial(clock_.unix_ms());
      run.partial_since_ms = 0;
      pass_on_output(number, run);
    }
  }
}

void RunLoop::end(RunEnded& ended) {
  auto place = runs_.find(ended.run);
  if (place == runs_.end()) return;
  Run& run = place->second;
  if (ended.outcome.status == RunStatus::unkillable) return withhold(ended.run, run, ended.outcome.reason);
  // No process of the job is left, so what the pipes hold now is all there will ever be. It fits in their buffers.
  for (Pipe pipe : {Pipe::channel, Pipe::out, Pipe::err}) {
    while (read_pipe(run, pipe)) {
    }
  }
  for (const auto& note : ended.outcome.notes) take_note(run, note);
  close_output(ended.run, run);
  ended.outcome.usage.stdout_bytes = run.output.bytes(LogStream::out);
  ended.outcome.usage.stderr_bytes = run.output.bytes(LogStream::err);
  judge_output(ended.outcome, run.output_most);
  if (ended.outcome.status == RunStatus::lost) {
    release(ended.run, run.claim, ended.outcome.reason, true);
  } else {
    post_(Outgoing{ended.run, end_of(run, ended.outcome), true});
  }
  runs_.erase(place);
}

// Not an end, also not of a job that was cancelled or ran out of time: its lease is kept and its slot stays taken until
// the real end comes. The reason names processes, and a process names itself.
void RunLoop::withhold(RunNumber number, Run& run, const std::string& reason) {
  if (std::exchange(run.withheld, true)) return;
  log(LogLevel::error, "worker",
      "{}: unkillable on host {}: {}. Its slot is withheld. See what the process waits for (a disk, a network file "
      "system, a debugger) or restart the host",
      run.claim.job_key, host_name(), run.clean ? run.clean->redactor->redact(reason) : reason);
  post_(Outgoing{number, Mark{run.claim, "unkillable"}, false});
}

void RunLoop::close_output(RunNumber number, Run& run) {
  const std::uint64_t now = clock_.unix_ms();
  for (LogStream stream : {LogStream::out, LogStream::err}) {
    if (run.clean) run.output.feed(stream, run.clean->of(stream).finish(), now);
  }
  run.output.close(now);
  pass_on_output(number, run);
}

EndReport RunLoop::end_of(const Run& run, Outcome& outcome) {
  // A process names itself; the name gets into the receipt too.
  if (run.clean && outcome.violation) outcome.violation->comm = run.clean->redactor->redact(outcome.violation->comm);
  JobEnd end = run.conversation->finish(outcome);
  if (run.clean) redact(*run.clean->redactor, end);
  const double chance = std::uniform_real_distribution<double>(0, 1)(chance_);
  const auto again = retry_after(settings_.retry, end, run.attempt, run.retries, chance);
  return {run.claim, std::move(end), again};
}

}  // namespace mycojobs
