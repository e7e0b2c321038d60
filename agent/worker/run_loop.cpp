#include "worker/run_loop.h"

#include <sys/epoll.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>

#include "base/fd.h"
#include "base/log.h"
#include "domain/object_call.h"

namespace mycojobs {

namespace {

// epoll's 64 bits: run number above, pipe below. Run numbers start at 1, so that 0 stands for our own descriptors.
constexpr std::uint64_t kOrders = 0, kSandbox = 1;
constexpr std::uint64_t kReviveMs = 500;    // between tries to start a new launcher
constexpr std::size_t kReadAtOnce = 65536;  // per pipe and turn, so that a flood does not starve the others

void control_epoll(int epoll, int operation, int fd, std::uint64_t tag, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  ::epoll_ctl(epoll, operation, fd, &event);
}

}  // namespace

RunLoop::RunLoop(std::unique_ptr<Sandbox> sandbox, const Clock& clock, const WorkerSettings& settings, Pace& pace,
                 Callbacks callbacks)
    : sandbox_(std::move(sandbox)),
      clock_(clock),
      settings_(settings),
      callbacks_(std::move(callbacks)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      secrets_(settings.secrets, clock),
      pace_(pace) {
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
void RunLoop::answer(RunNumber run, std::string json) { orders_.post(Reply{run, std::move(json)}); }
void RunLoop::cancel_all() { orders_.post(Kill{0, KillReason::cancelled}); }

void RunLoop::loop() {
  std::array<epoll_event, 64> events{};
  while (!stop_) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms());
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
    begin_waiting();
    look_at_runs();
  }
}

void RunLoop::look_at_runs() {
  const std::uint64_t now = clock_.boot_ms();
  partials_ = unheard_ = false;
  for (auto& [number, run] : runs_) {
    if (run.listen_at_ms != 0 && now >= run.listen_at_ms) listen_to_output(number, run);
    unheard_ = unheard_ || run.listen_at_ms != 0;
    partials_ = partials_ || run.output.has_partial();
  }
  if (partials_) flush_partials();
}

void RunLoop::listen_to_output(RunNumber number, Run& run) {
  run.listen_at_ms = 0;
  control_epoll(epoll_.get(), EPOLL_CTL_ADD, run.out.get(), tag_of(number, Pipe::out), EPOLLIN);
  control_epoll(epoll_.get(), EPOLL_CTL_ADD, run.err.get(), tag_of(number, Pipe::err), EPOLLIN);
}

int RunLoop::timeout_ms() const {
  if (unheard_) return static_cast<int>(kListenMs);
  if (!waiting_.empty() || partials_) return static_cast<int>(std::min(kPartialMs, Pace::kPatienceMs));
  return ready_ ? -1 : static_cast<int>(kReviveMs);
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
    queue_or_begin(std::move(*start));
  } else if (auto* fence = std::get_if<Fence>(&order)) {
    const auto run = runs_.find(fence->run);
    if (run == runs_.end()) return fence_waiting(fence->run, fence->boot_ms);
    run->second.fence_boot_ms = fence->boot_ms;
    sandbox_->fence(sandbox_run(fence->run, run->second.stage), fence->boot_ms);
  } else if (auto* kill = std::get_if<Kill>(&order)) {
    for (auto& [number, run] : runs_) {
      if (kill->run == 0 || kill->run == number) kill_run(number, run, kill->reason);
    }
    kill_waiting(kill->run);
  } else if (auto* reply = std::get_if<Reply>(&order)) {
    const auto run = runs_.find(reply->run);
    if (run == runs_.end()) return;
    run->second.job.conversation->answer(reply->json);
    pump(run->first, run->second);
  }
}

void RunLoop::kill_run(RunNumber number, Run& run, KillReason reason) {
  if (!run.killed) run.killed = reason;
  sandbox_->kill(sandbox_run(number, run.stage), reason, reason == KillReason::cancelled ? settings_.grace_ms : 0);
}

void RunLoop::release(RunNumber number, const ClaimRef& claim, std::string reason, bool ran) {
  log(LogLevel::warn, "worker", "{}: back to its queue: {}", claim.job_key, reason);
  callbacks_.post(Outgoing{number, Release{claim, std::move(reason), ran}, true});
}

void RunLoop::begin(Start& start) {
  const RunNumber number = start.run;
  const std::uint64_t output_bytes = start.output_bytes;
  auto [place, fresh] = runs_.try_emplace(number, Run{std::move(start), OutputCapture(output_bytes)});
  Run& run = place->second;
  run.fence_boot_ms = run.job.specs.front().fence_boot_ms;
  // What the job was given may be newer than our own look.
  if (auto redactor = run.job.redactor ? run.job.redactor : secrets_.redactor(run.job.context)) {
    if (run.job.artifacts) run.job.artifacts->keep_out(redactor);
    run.clean = std::make_unique<Clean>(std::move(redactor));
  }
  if (auto launched = launch(number, run); !launched) {
    // Nothing of it ran. No more is claimed for a moment: what failed once, for want of descriptors, say, fails again.
    release(number, run.job.claim, launched.error().message, false);
    runs_.erase(place);
    resting_until_ms_ = clock_.boot_ms() + kReviveMs;
  }
}

// The first stage, or the next one.
Result<void> RunLoop::launch(RunNumber number, Run& run) {
  run.stage = run.job.conversation->stage();
  RunSpec& spec = run.job.specs.at(run.stage);
  spec.run = sandbox_run(number, run.stage);
  spec.fence_boot_ms = run.fence_boot_ms;
  // A stage that begins when the time is over has the shortest that there is; 0 would be no limit.
  if (const std::uint64_t deadline = run.job.deadline_boot_ms, now = clock_.boot_ms(); deadline > 0) {
    const std::uint64_t left = deadline > now ? deadline - now : 1;
    spec.limits.wall_ms = spec.limits.wall_ms == 0 ? left : std::min(spec.limits.wall_ms, left);
  }
  MJ_TRY(pipes, sandbox_->launch(spec));
  run.out.reset(pipes.out);
  run.err.reset(pipes.err);
  run.channel.reset(pipes.channel);
  run.outgoing.clear();
  run.sent = 0;
  run.attachment = run.job.conversation->attachment();
  run.writing = false;
  run.listen_at_ms = clock_.boot_ms() + kListenMs;
  control_epoll(epoll_.get(), EPOLL_CTL_ADD, run.channel.get(), tag_of(number, Pipe::channel), EPOLLIN);
  pump(number, run);
  return {};
}

// Sends what the conversation has to say, as far as the channel takes it. Most requests fit at once, and the job finds
// its script waiting.
void RunLoop::pump(RunNumber number, Run& run) {
  bool full = false;
  while (run.channel && !full) {
    if (run.sent == run.outgoing.size()) {
      run.outgoing = run.job.conversation->take_output();
      run.sent = 0;
      if (run.outgoing.empty()) break;
    }
    const ssize_t sent = send_bytes(run.channel.get(), std::string_view(run.outgoing).substr(run.sent), run.attachment);
    full = sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (sent > 0) run.sent += static_cast<std::size_t>(sent), run.attachment = -1;
    // The job does not listen any more: its outcome will tell why.
    if (sent < 0 && !full && errno != EINTR) run.sent = run.outgoing.size();
  }
  if (run.channel && full != run.writing) {
    control_epoll(epoll_.get(), EPOLL_CTL_MOD, run.channel.get(), tag_of(number, Pipe::channel),
                  full ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
  run.writing = full;
}

void RunLoop::on_pipe(RunNumber number, Run& run, Pipe pipe) {
  if (pipe == Pipe::channel && run.writing) pump(number, run);
  read_pipe(number, run, pipe);
  watch_output(number, run);
  pass_on_output(number, run);
}

// Not more than one turn's bytes behind the job (kReadAtOnce of each pipe, and what the pipes hold).
void RunLoop::watch_output(RunNumber number, Run& run) {
  const std::uint64_t written = run.output.bytes(LogStream::out) + run.output.bytes(LogStream::err);
  if (!run.job.output_kill || written <= run.job.output_bytes || std::exchange(run.output_over, true)) return;
  kill_run(number, run, KillReason::output_limit);
}

bool RunLoop::read_pipe(RunNumber number, Run& run, Pipe pipe) {
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
      listen(number, run, bytes);
    } else {
      const LogStream stream = pipe == Pipe::out ? LogStream::out : LogStream::err;
      const std::string_view clean = run.clean ? run.clean->of(stream).feed(bytes) : bytes;
      if (pipe == Pipe::err) run.job.conversation->saw_stderr(clean);
      run.output.feed(stream, clean, clock_.unix_ms());
    }
    if (static_cast<std::size_t>(count) < buffer.size()) return false;
  }
  return static_cast<bool>(fd);
}

void RunLoop::listen(RunNumber number, Run& run, std::string_view bytes) {
  Conversation& conversation = *run.job.conversation;
  conversation.feed(bytes);
  for (const std::string& note : conversation.take_notes()) take_note(run, note);
  if (run.job.artifacts) {
    for (const std::string& note : run.job.artifacts->take_notes()) take_note(run, note);
  }
  bool refused = false;
  for (std::string& call : conversation.take_calls()) {
    refused = refused || !run.job.calls_objects;
    if (run.job.calls_objects) {
      callbacks_.ask({number, run.job.context, run.job.caller, run.job.claim, std::move(call)});
    } else {  // not read: who wrote it is not the script host that it stands for
      conversation.answer(error_answer("null", {Code::denied, "only scripts of the type osis have the object store"}));
    }
  }
  if (refused) pump(number, run);
}

// Jobs that were claimed ahead of the slots, so that a slot that becomes free need not wait for the store. They wait
// here, in order and not for long.

void RunLoop::queue_or_begin(Start start) {
  if (waiting_.empty() && has_slot()) return begin(start);
  waiting_.push_back({std::move(start), clock_.boot_ms()});
}

void RunLoop::begin_waiting() {
  while (!waiting_.empty() && has_slot()) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    // What it may take counts from its start.
    if (next.job.deadline_boot_ms > 0) next.job.deadline_boot_ms += clock_.boot_ms() - next.since_boot_ms;
    begin(next.job);
  }
  if (waiting_.empty() || clock_.boot_ms() - waiting_.front().since_boot_ms < Pace::kPatienceMs) return;
  pace_.stalled();
  give_back_waiting("the slots of its runner stay busy");
}

// The last one first: what is given back is next in its queue.
void RunLoop::give_back_waiting(const std::string& why) {
  for (; !waiting_.empty(); waiting_.pop_back()) give_back(waiting_.back().job, why);
}

// It has not begun: no delivery is counted. If it is to be cancelled the store ends it.
void RunLoop::give_back(const Start& job, const std::string& why) {
  callbacks_.post(Outgoing{job.run, Release{job.claim, why, false}, true});
}

RunLoop::Waiting* RunLoop::find_waiting(RunNumber run) {
  const auto found =
      std::find_if(waiting_.begin(), waiting_.end(), [run](const auto& each) { return each.job.run == run; });
  return found == waiting_.end() ? nullptr : &*found;
}

void RunLoop::fence_waiting(RunNumber run, std::uint64_t boot_ms) {
  if (Waiting* found = find_waiting(run)) {
    for (RunSpec& spec : found->job.specs) spec.fence_boot_ms = boot_ms;
  }
}

void RunLoop::kill_waiting(RunNumber run) {
  if (run == 0) return give_back_waiting("cancelled before it began");
  if (Waiting* found = find_waiting(run)) {
    give_back(found->job, "cancelled before it began");
    std::erase_if(waiting_, [run](const auto& each) { return each.job.run == run; });
  }
}

// What a run has written on its way into the log, and its end.

namespace {

constexpr std::size_t kLinesAtOnce = 512;  // of a log in one report
constexpr std::size_t kCutNote = 1000;     // a note of so many bytes may have lost its end on the way

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

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
    callbacks_.post(Outgoing{number, LogAppend{run.job.claim, {first, last}}, false});
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
  const RunNumber number = number_of(ended.run);
  auto place = runs_.find(number);
  if (place == runs_.end()) return;
  Run& run = place->second;
  Outcome& outcome = ended.outcome;
  if (outcome.status == RunStatus::unkillable) return withhold(number, run, outcome.reason);
  // No process of the job is left, so what the pipes hold now is all there will ever be. It fits in their buffers.
  for (Pipe pipe : {Pipe::channel, Pipe::out, Pipe::err}) {
    while (read_pipe(number, run, pipe)) {
    }
  }
  for (const auto& note : outcome.notes) take_note(run, note);
  count_output(run, outcome);
  const bool lost = outcome.status == RunStatus::lost;
  std::string why = outcome.reason;
  if (!lost && run.job.conversation->go_on(outcome)) {
    auto launched = launch(number, run);
    if (launched && run.killed) kill_run(number, run, *run.killed);
    if (launched) return;
    why = launched.error().message;  // the launcher went away between two runs
    close_output(number, run);
    release(number, run.job.claim, why, true);
  } else {
    std::string artifacts = lost ? std::string() : keep_artifacts(run);  // its notes belong into the log
    close_output(number, run);
    count_output(run, outcome);
    if (lost) release(number, run.job.claim, why, true);
    if (!lost) callbacks_.post(Outgoing{number, end_of(run, outcome, std::move(artifacts)), true});
  }
  callbacks_.forget(number);
  runs_.erase(place);
  pace_.ended(steady_us());
}

void RunLoop::count_output(const Run& run, Outcome& outcome) {
  outcome.usage.stdout_bytes = run.output.bytes(LogStream::out);
  outcome.usage.stderr_bytes = run.output.bytes(LogStream::err);
  judge_output(outcome, run.job.output_kill ? run.job.output_bytes : 0);
}

// Not an end, also not of a job that was cancelled or ran out of time: its lease is kept and its slot stays taken until
// the real end comes. The reason names processes, and a process names itself.
void RunLoop::withhold(RunNumber number, Run& run, const std::string& reason) {
  if (std::exchange(run.withheld, true)) return;
  log(LogLevel::error, "worker",
      "{}: unkillable on host {}: {}. Its slot is withheld. See what the process waits for (a disk, a network file "
      "system, a debugger) or restart the host",
      run.job.claim.job_key, host_name(), run.clean ? run.clean->redactor->redact(reason) : reason);
  callbacks_.post(Outgoing{number, Mark{run.job.claim, "unkillable"}, false});
}

void RunLoop::close_output(RunNumber number, Run& run) {
  const std::uint64_t now = clock_.unix_ms();
  for (LogStream stream : {LogStream::out, LogStream::err}) {
    if (run.clean) run.output.feed(stream, run.clean->of(stream).finish(), now);
  }
  run.output.close(now);
  pass_on_output(number, run);
}

std::string RunLoop::keep_artifacts(Run& run) {
  if (!run.job.artifacts) return {};
  std::string artifacts = run.job.artifacts->finish();
  for (const std::string& note : run.job.artifacts->take_notes()) take_note(run, note);
  return artifacts;
}

EndReport RunLoop::end_of(Run& run, Outcome& outcome, std::string artifacts) {
  // A process names itself; the name gets into the receipt too.
  if (run.clean && outcome.violation) outcome.violation->comm = run.clean->redactor->redact(outcome.violation->comm);
  JobEnd end = run.job.conversation->finish(outcome);
  end.artifacts = std::move(artifacts);
  if (run.clean) redact(*run.clean->redactor, end);
  const double chance = std::uniform_real_distribution<double>(0, 1)(chance_);
  const auto again = retry_after(settings_.retry, end, run.job.attempt, run.job.retries, chance);
  return {run.job.claim, std::move(end), again};
}

}  // namespace mycojobs
