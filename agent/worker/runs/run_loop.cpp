#include "worker/runs/run_loop.h"

#include <algorithm>
#include <array>

namespace mycojobs {
namespace {

constexpr std::uint64_t kOrders = 0, kSandbox = 1, kAlarm = 2, kBackgroundReads = 3;  // below every PipeTag
constexpr std::size_t kMaxReadBatch = 16384;  // per pipe and iteration, so that a flood does not starve other pipes

JobRuns::Settings run_settings(const WorkerSettings& settings) {
  return {settings.slots,
          settings.grace_ms,
          settings.retry,
          {settings.output_rate, settings.frame_rate, settings.max_artifact_bytes + settings.max_result_bytes}};
}

}  // namespace

RunLoop::RunLoop(std::unique_ptr<Sandbox> sandbox, const Clock& clock, const WorkerSettings& settings, RunRate& pace,
                 Callbacks callbacks)
    : sandbox_(std::move(sandbox)),
      clock_(clock),
      callbacks_(std::move(callbacks)),
      pace_(pace),
      metrics_(settings.metrics),
      traces_(settings.traces),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      runs_(run_settings(settings), std::random_device{}()),
      folder_contexts_(settings.folder_contexts) {
  watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, orders_.fd(), kOrders, EPOLLIN);
  watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, alarm_.fd(), kAlarm, EPOLLIN);
  watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, background_reads_.fd(), kBackgroundReads, EPOLLIN);
  watched_sandbox_ = sandbox_->event_fd();
  watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, watched_sandbox_, kSandbox, EPOLLIN);
  metrics_->add(Metric::launchers, {}, 0);
  auto thread = start_thread([this] { loop(); });
  if (thread) {
    thread_ = std::move(*thread);
  } else {
    started_ = tl::unexpected<Error>(std::move(thread).error());
  }
}

void RunLoop::stop() {
  stop_ = true;
  orders_.wake();
  if (thread_.joinable()) thread_.join();
  {
    const std::lock_guard turn(turn_);
    sandbox_.reset();  // unblocks lanes that wait for a job, which ends with the sandbox
  }
  strands_.stop();
}

void RunLoop::start(JobStart start) {
  std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn || stop_) return orders_.post(std::move(start));
  step(std::move(start));
  publish_ending_count();
  wake_in_time();
}

// A job that was just started may need an iteration before the current wait of the thread ends.
void RunLoop::wake_in_time() {
  const int ms = timeout_ms();
  if (ms < 0 || clock_.boot_ms() + static_cast<std::uint64_t>(ms) >= waits_until_ms_) return;
  waits_until_ms_ = clock_.boot_ms() + static_cast<std::uint64_t>(ms);
  alarm_.arm(static_cast<std::uint64_t>(ms));
}

void RunLoop::wait(std::unique_lock<std::mutex>& turn, std::span<epoll_event>& events) {
  const int ms = timeout_ms();
  waits_until_ms_ = ms < 0 ? UINT64_MAX : clock_.boot_ms() + static_cast<std::uint64_t>(ms);
  turn.unlock();
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), ms);
  turn.lock();
  events = events.first(static_cast<std::size_t>(std::max(count, 0)));
}

void RunLoop::loop() {
  std::array<epoll_event, 64> room{};
  std::unique_lock turn(turn_);
  while (!stop_) {
    std::span<epoll_event> events(room);
    wait(turn, events);
    liveness_.mark_progress();
    for (const epoll_event& event : events) {
      const std::uint64_t bits = event.data.u64;
      if (bits == kAlarm) alarm_.acknowledge();
      if (bits <= kBackgroundReads) continue;  // handled below, after the pipes
      const PipeTag tag = PipeTag::of(bits);
      if (const auto pipes = pipes_.find(tag.run); pipes != pipes_.end()) on_pipe(tag.run, pipes->second, tag.pipe);
    }
    for (BackgroundRead& read : background_reads_.take_all()) on_background_read(read);
    for (RunEnded& ended : sandbox_->read_ended()) on_end(ended);
    if (!sandbox_->alive()) restart_launcher();
    count_sandboxes();
    for (JobRuns::Event& order : orders_.take_all()) step(std::move(order));
    step(JobRuns::TimePassed{});
    forget_outdated();
    lacks_threads_ = !strands_.retry();
    publish_ending_count();
    if (unheard_) listen_to_output();
    if (clock_.boot_ms() >= resume_at_ms_) resume_reading();
  }
}

int RunLoop::timeout_ms() const {
  const int ms = timeout_of_runs_ms();
  if (resume_at_ms_ == UINT64_MAX) return ms;
  const std::uint64_t now = clock_.boot_ms();
  const std::uint64_t left = resume_at_ms_ - std::min(resume_at_ms_, now);
  return ms < 0 || left < static_cast<std::uint64_t>(ms) ? static_cast<int>(left) : ms;
}

int RunLoop::timeout_of_runs_ms() const {
  if (unheard_) return static_cast<int>(JobPipes::kListenMs);
  if (const auto look = runs_.next_wakeup_ms()) return static_cast<int>(*look);
  if (lacks_threads_ || !launcher_.ready()) return static_cast<int>(LauncherWatch::kReviveMs);
  return warm_secrets_.empty() ? -1 : static_cast<int>(WarmSecrets::kCheckMs);
}

// Ends warm processes that hold an outdated secret, without waiting for their idle time.
void RunLoop::forget_outdated() {
  for (const std::string& key : warm_secrets_.outdated(callbacks_.has_secrets, clock_.boot_ms()))
    sandbox_->forget_warm(key);
}

void RunLoop::step(JobRuns::Event event) {
  for (JobRuns::Action& action : runs_.step(std::move(event), {clock_.boot_ms(), clock_.unix_ms()}))
    std::visit([this](auto& each) { perform(each); }, action);
}

// Actions that a step returns.

void RunLoop::perform(JobRuns::Launch& launch) {
  auto pipes = sandbox_->launch(launch.spec);
  if (!pipes) return step(JobRuns::LaunchFailed{launch.run, std::move(pipes).error().message});
  const JobStart* job = launch.spec.warm.runs > 0 ? runs_.job_of(launch.run) : nullptr;
  if (job != nullptr && !job->warm_secrets.empty())
    warm_secrets_.on_run_started(launch.spec, job->warm_secrets, clock_.boot_ms());
  reading_lanes_.erase(launch.run);
  if (may_block_reads(launch.spec)) reading_lanes_.emplace(launch.run, free_reading_lane());
  // Replaces the pipes of the previous stage.
  pipes_.insert_or_assign(
      launch.run, JobPipes(epoll_.get(), launch.run, *pipes, launch.attachment, launch.converses, clock_.boot_ms()));
  unheard_ = true;
  step(JobRuns::RunLaunched{launch.run});
}

void RunLoop::perform(JobRuns::WriteChannel& speak) {
  if (const auto pipes = pipes_.find(speak.run); pipes != pipes_.end())
    pipes->second.send([this, run = speak.run] { return runs_.next_channel_bytes(run); });
}

void RunLoop::perform(JobRuns::PauseChannel& channel) {
  if (const auto pipes = pipes_.find(channel.run); pipes != pipes_.end()) pipes->second.hold(channel.hold);
}

void RunLoop::perform(JobRuns::PauseReading& pause) {
  const auto pipes = pipes_.find(pause.run);
  if (pipes == pipes_.end()) return;
  pipes->second.pause(pause.pipe, pause.until_boot_ms);
  resume_at_ms_ = std::min(resume_at_ms_, pause.until_boot_ms);
}

void RunLoop::perform(JobRuns::KillRun& kill) { sandbox_->kill(kill.sandbox_run, kill.reason, kill.grace_ms); }
void RunLoop::perform(JobRuns::MoveFence& fence) { sandbox_->fence(fence.sandbox_run, fence.boot_ms); }
void RunLoop::perform(RunReport& report) {
  if (const auto* ended = std::get_if<EndReport>(&report.report)) {
    const bool failed = ended->end.status == JobStatus::error;
    set_run_span(report.run, failed ? ended->end.detail : std::string());
  } else if (std::holds_alternative<Release>(report.report)) {
    set_run_span(report.run, std::nullopt);
  }
  callbacks_.post(std::move(report));
}
void RunLoop::perform(BrokerCall& call) { callbacks_.ask(std::move(call)); }

void RunLoop::perform(JobRuns::RunReaped& over) {
  callbacks_.forget(over.run);
  if (pipes_.erase(over.run) > 0) reading_lanes_.erase(over.run);
  pace_.on_run_ended(steady_us());
}

void RunLoop::perform(JobRuns::LaunchBackoff& failed) {
  if (launcher_.failed_to_start(clock_.boot_ms(), failed.why)) callbacks_.paused();
}
void RunLoop::perform(JobRuns::ClaimBackoff& /*action*/) { pace_.on_claim_ahead_failed(); }

void RunLoop::perform(StartRejected& job) { callbacks_.cannot_begin(std::move(job)); }

void RunLoop::perform(JobRuns::RunInBackground& elsewhere) {
  strands_.post(elsewhere.strand, [this, work = std::move(elsewhere.work)] { orders_.post(work()); });
}

// Events of the pipes and of the sandbox.

// Returns whether a page fault of the run can wait for a disk. Page faults of other runs are served from memory, or
// from the disk of the system itself.
bool RunLoop::may_block_reads(const RunSpec& spec) const {
  const Grants& grants = spec.grants;
  return !grants.fs_read.empty() || !grants.fs_write.empty() || !grants.syscalls.empty() ||
         folder_contexts_.contains(spec.context);
}

// Lanes are used again after their runs, so there are at most as many lanes as there were runs at the same time.
std::string RunLoop::free_reading_lane() const {
  for (std::size_t number = 0;; ++number) {
    std::string strand = "pipes " + std::to_string(number);
    const auto is_used = [&](const auto& each) { return each.second == strand; };
    if (std::none_of(reading_lanes_.begin(), reading_lanes_.end(), is_used)) return strand;
  }
}

void RunLoop::read_in_background(RunNumber run, JobPipes& pipes, JobPipe pipe, const std::string& strand) {
  const auto descriptor = pipes.begin_background_read(pipe);
  if (!descriptor) return;
  strands_.post(strand, [this, run, pipe, descriptor] {
    background_reads_.post({run, pipe, read_available(*descriptor, kMaxReadBatch)});
  });
}

void RunLoop::on_background_read(BackgroundRead& read) {
  const auto pipes = pipes_.find(read.run);
  if (pipes == pipes_.end()) {  // see abandon_pipes()
    reading_lanes_.erase(read.run);
    return;
  }
  if (!read.bytes.empty()) step(JobRuns::BytesReceived{read.run, read.pipe, read.bytes});
  step(JobRuns::PipesDrained{read.run, read.pipe});
  pipes->second.end_background_read(read.pipe);  // after the step, which can pause the pipe
  if (pipes->second.has_background_reads()) return;
  if (auto ended = ends_behind_reads_.extract(read.run)) on_end(ended.mapped());
}

void RunLoop::on_pipe(RunNumber run, JobPipes& pipes, JobPipe pipe) {
  if (pipe == JobPipe::requests) return pipes.send([this, run] { return runs_.next_channel_bytes(run); });
  if (const auto strand = reading_lanes_.find(run); strand != reading_lanes_.end() && !pipes.is_held(pipe))
    return read_in_background(run, pipes, pipe, strand->second);
  if (!pipes.is_held(pipe)) read_pipe(run, pipes, pipe);
  step(JobRuns::PipesDrained{run, pipe});
}

void RunLoop::read_pipe(RunNumber run, JobPipes& pipes, JobPipe pipe) {
  std::array<char, kMaxReadBatch> buffer;  // NOLINT(*-member-init): filled by read
  if (const std::string_view bytes = pipes.read(pipe, buffer); !bytes.empty())
    step(JobRuns::BytesReceived{run, pipe, bytes});
}

// A short read does not mean that the pipe is empty: a job can put its pipe into packet mode (O_DIRECT), where a read
// returns one packet.
void RunLoop::read_rest(RunNumber run, JobPipes& pipes) {
  std::array<char, kMaxReadBatch> buffer;  // NOLINT(*-member-init): filled by read
  for (JobPipe pipe : {JobPipe::channel, JobPipe::out, JobPipe::err}) {
    for (auto bytes = pipes.read(pipe, buffer); !bytes.empty(); bytes = pipes.read(pipe, buffer))
      step(JobRuns::BytesReceived{run, pipe, bytes});
  }
}

// Reading and closing can block until a process of the lost run ends, so both are left to the lane of the run. The lane
// stays reserved until then.
void RunLoop::abandon_pipes(RunNumber run) {
  auto pipes = std::make_shared<JobPipes>(std::move(pipes_.extract(run).mapped()));
  for (const JobPipe pipe : {JobPipe::channel, JobPipe::out, JobPipe::err, JobPipe::requests})
    pipes->begin_background_read(pipe);
  strands_.post(reading_lanes_.at(run), [this, run, pipes]() mutable {
    pipes.reset();
    background_reads_.post({run, JobPipe::channel, {}});
  });
}

// No process of the run is left, so its pipes receive no more bytes. A background read that was blocked by such a
// process now ends. The exception is `lost`, which does not prove the end of the processes (sandbox/sandbox.h): one of
// them may wait for a disk and block the read.
void RunLoop::on_end(RunEnded& ended) {
  const RunNumber run = JobRuns::number_of(ended.run);
  const auto pipes = pipes_.find(run);
  const bool lost = ended.outcome.status == RunStatus::lost;
  if (lost && pipes != pipes_.end() && reading_lanes_.contains(run)) {
    abandon_pipes(run);
  } else if (pipes != pipes_.end() && ended.outcome.status != RunStatus::unkillable) {
    if (pipes->second.has_background_reads()) {
      ends_behind_reads_.insert_or_assign(run, std::move(ended));
      return;
    }
    read_rest(run, pipes->second);
  }
  count(ended);
  step(std::move(ended));
}

void RunLoop::count(const RunEnded& ended) {
  const Outcome& outcome = ended.outcome;
  const JobStart* job = runs_.job_of(JobRuns::number_of(ended.run));
  if (job == nullptr || outcome.status == RunStatus::unkillable || outcome.status == RunStatus::lost) return;
  constexpr double kUs = 1e6;
  const Usage& usage = outcome.usage;
  const ClaimRef& claim = job->claim;
  metrics_->observe(Metric::run_time, {claim.context, claim.script_type}, static_cast<double>(usage.wall_us) / kUs);
  metrics_->add(Metric::run_cpu, {claim.context, claim.script_type},
                static_cast<double>(usage.user_us + usage.system_us) / kUs);
  std::uint64_t setup_us = 0;
  const char* given = "new";
  for (const StepTime& step : outcome.setup) {
    if (step.step == kPrewarmedStep) given = "ready";
    if (step.step == kWarmStep) given = "warm";
    const bool was_there = step.step == kPrewarmedStep || step.step == kWarmStep;
    setup_us = was_there ? step.us : setup_us + step.us;
    if (was_there) break;
  }
  if (!outcome.setup.empty()) metrics_->observe(Metric::sandbox_setup, {given}, static_cast<double>(setup_us) / kUs);
  trace(ended, *job, setup_us);
}

// The times were measured by the sandbox and are counted back from now. A sandbox that was set up before its job was
// claimed has a span that begins with the claim, since no job has waited for it before.
void RunLoop::trace(const RunEnded& ended, const JobStart& job, std::uint64_t setup_us) {
  const ClaimRef& claim = job.claim;
  if (!traces_->wanted() || claim.traceparent.empty()) return;
  const std::uint64_t over = unix_us(), began = over - std::min(over, ended.outcome.usage.wall_us);
  const std::size_t stage = JobRuns::stage_of(ended.run);
  const bool last = stage + 1 == job.specs.size();
  // MYCOJOBS_TRACEPARENT contains the span of the last stage.
  const std::string of = last ? claim.claim_id : claim.claim_id + ' ' + std::to_string(stage);
  const std::vector<std::pair<std::string, std::string>> attributes{{"mycojobs.job", claim.job_key},
                                                                    {"mycojobs.script_type", claim.script_type},
                                                                    {"mycojobs.attempt", std::to_string(claim.attempt)},
                                                                    {"mycojobs.stage", std::to_string(stage)}};
  const std::uint64_t asked = std::max(began - std::min(began, setup_us), std::min(claim.claimed_us, began));
  add_span(*traces_, claim.traceparent, of, {"", "", "", "sandbox", asked, began, attributes});
  const RunNumber run = JobRuns::number_of(ended.run);
  set_run_span(run, std::nullopt);  // sends the span of the previous stage
  Span span{"", "", "", "run", began, over, attributes, "", SpanKind::consumer};
  if (ended.outcome.status != RunStatus::ok) span.error = std::string(to_string(ended.outcome.status));
  ended_spans_.insert_or_assign(run, EndedSpan{claim.traceparent, of, std::move(span)});
}

// Sends the span of a run when the end of its job is known. detail: the error of the job, empty after success. No
// value: the job has no end, and the status of the run applies.
void RunLoop::set_run_span(RunNumber run, const std::optional<std::string>& detail) {
  const auto found = ended_spans_.find(run);
  if (found == ended_spans_.end()) return;
  EndedSpan& ended = found->second;
  if (detail) ended.span.error = *detail;
  add_span(*traces_, ended.traceparent, ended.of, std::move(ended.span));
  ended_spans_.erase(found);
}

void RunLoop::count_sandboxes() {
  const SandboxCounts now = sandbox_->counts();
  if (now == counted_) return;
  counted_ = now;
  metrics_->set(Metric::sandboxes, {"ready"}, now.ready);
  metrics_->set(Metric::sandboxes, {"forming"}, now.forming);
  metrics_->set(Metric::sandboxes, {"lent"}, now.lent);
  metrics_->set(Metric::zygotes, {}, now.zygotes);
}

void RunLoop::listen_to_output() {
  const std::uint64_t now = clock_.boot_ms();
  unheard_ = false;
  for (auto& [run, pipes] : pipes_) unheard_ = !pipes.listen(now) || unheard_;
}

void RunLoop::resume_reading() {
  const std::uint64_t now = clock_.boot_ms();
  resume_at_ms_ = UINT64_MAX;
  for (auto& [run, pipes] : pipes_) resume_at_ms_ = std::min(resume_at_ms_, pipes.resume(now));
}

void RunLoop::publish_ending_count() {
  const std::size_t now = runs_.endings();
  if (now > endings_.exchange(now)) callbacks_.ending();
}

void RunLoop::restart_launcher() {
  if (!launcher_.try_now(clock_.boot_ms())) return;
  // Fails if the descriptor was closed, which has removed it from the set already.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watched_sandbox_, nullptr);
  const auto restarted = sandbox_->restart();
  metrics_->add(Metric::launchers, {});
  watched_sandbox_ = sandbox_->event_fd();
  if (watched_sandbox_ >= 0) watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, watched_sandbox_, kSandbox, EPOLLIN);
  launcher_.on_launcher_ready(restarted);
  callbacks_.paused();
}

}  // namespace mycojobs
