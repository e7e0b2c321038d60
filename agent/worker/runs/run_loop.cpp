#include "worker/runs/run_loop.h"

#include <algorithm>
#include <array>

#include "artifacts/artifact_folder.h"
#include "base/parse.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kPostedEvents = 0, kSandbox = 1, kTimer = 2, kBackgroundReads = 3;  // less than every PipeTag
constexpr const char* kPipeStrandPrefix = "pipes ";
constexpr std::size_t kMaxReadBatch = 16384;  // per pipe and iteration, so that a flood does not starve other pipes

JobRuns::Settings run_settings(const WorkerSettings& settings) {
  return {settings.slots,
          settings.grace_ms,
          settings.retry,
          {settings.output_rate, settings.frame_rate, settings.max_artifact_bytes + settings.max_result_bytes},
          settings.holder_timeout_ms};
}

}  // namespace

RunLoop::RunLoop(std::unique_ptr<Sandbox> sandbox, const Clock& clock, const WorkerSettings& settings,
                 RunRate& run_rate, Callbacks callbacks)
    : sandbox_(std::move(sandbox)),
      clock_(clock),
      callbacks_(std::move(callbacks)),
      run_rate_(run_rate),
      metrics_(settings.metrics),
      traces_(settings.traces),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      runs_(run_settings(settings), std::random_device{}()),
      folder_contexts_(settings.folder_contexts),
      state_dir_(settings.state_dir) {
  watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, posted_events_.fd(), kPostedEvents, EPOLLIN);
  watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, timer_.fd(), kTimer, EPOLLIN);
  watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, background_reads_.fd(), kBackgroundReads, EPOLLIN);
  watched_sandbox_fd_ = sandbox_->event_fd();
  watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, watched_sandbox_fd_, kSandbox, EPOLLIN);
  metrics_->add(Metric::launcher_restarts, {}, 0);
  auto thread = start_thread([this] { loop(); });
  if (thread) {
    thread_ = std::move(*thread);
  } else {
    started_ = tl::unexpected<Error>(std::move(thread).error());
  }
}

void RunLoop::stop() {
  stop_ = true;
  posted_events_.wake();
  if (thread_.joinable()) thread_.join();
  {
    const std::lock_guard lock(step_mutex_);
    sandbox_.reset();  // unblocks strands that wait for a job, since jobs end with the sandbox
  }
  strands_.stop();
}

void RunLoop::start(JobStart start) {
  std::unique_lock lock(step_mutex_, std::try_to_lock);
  if (!lock || stop_) return posted_events_.post(std::move(start));
  step(std::move(start));
  publish_ending_count();
  shorten_wait();
}

// A job that was just started may need an iteration before the current wait of the thread ends.
void RunLoop::shorten_wait() {
  const int ms = timeout_ms();
  if (ms < 0 || clock_.boot_ms() + static_cast<std::uint64_t>(ms) >= wait_end_ms_) return;
  wait_end_ms_ = clock_.boot_ms() + static_cast<std::uint64_t>(ms);
  timer_.arm(static_cast<std::uint64_t>(ms));
}

void RunLoop::wait(std::unique_lock<std::mutex>& lock, std::span<epoll_event>& events) {
  const int ms = timeout_ms();
  wait_end_ms_ = ms < 0 ? UINT64_MAX : clock_.boot_ms() + static_cast<std::uint64_t>(ms);
  lock.unlock();
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), ms);
  lock.lock();
  events = events.first(static_cast<std::size_t>(std::max(count, 0)));
}

void RunLoop::loop() {
  std::array<epoll_event, 64> buffer{};
  std::unique_lock lock(step_mutex_);
  while (!stop_) {
    std::span<epoll_event> events(buffer);
    wait(lock, events);
    liveness_.mark_progress();
    for (const epoll_event& ready : events) {
      const std::uint64_t bits = ready.data.u64;
      if (bits == kTimer) timer_.acknowledge();
      if (bits <= kBackgroundReads) continue;  // handled below, after the pipes
      const PipeTag tag = PipeTag::from_bits(bits);
      if (const auto pipes = pipes_.find(tag.run); pipes != pipes_.end()) on_pipe(tag.run, pipes->second, tag.pipe);
    }
    for (BackgroundRead& read : background_reads_.consume_all()) on_background_read(read);
    for (RunEnded& ended : sandbox_->read_ended()) on_run_ended(ended);
    if (!sandbox_->alive()) restart_launcher();
    publish_sandbox_counts();
    for (JobRuns::Event& event : posted_events_.consume_all()) step(std::move(event));
    step(JobRuns::TimePassed{});
    end_outdated_warm_processes();
    has_missing_threads_ = !strands_.start_missing_threads();
    publish_ending_count();
    if (has_unwatched_output_) watch_output();
    if (clock_.boot_ms() >= resume_at_ms_) resume_reading();
  }
}

int RunLoop::timeout_ms() const {
  const int ms = runs_timeout_ms();
  if (resume_at_ms_ == UINT64_MAX) return ms;
  const std::uint64_t now = clock_.boot_ms();
  const std::uint64_t remaining_ms = resume_at_ms_ - std::min(resume_at_ms_, now);
  return ms < 0 || remaining_ms < static_cast<std::uint64_t>(ms) ? static_cast<int>(remaining_ms) : ms;
}

int RunLoop::runs_timeout_ms() const {
  if (has_unwatched_output_) return static_cast<int>(JobPipes::kWatchDelayMs);
  if (const auto wakeup_ms = runs_.next_wakeup_ms()) return static_cast<int>(*wakeup_ms);
  if (has_missing_threads_ || !launcher_.is_launcher_alive()) return static_cast<int>(LauncherMonitor::kRestartDelayMs);
  return warm_secrets_.empty() ? -1 : static_cast<int>(WarmSecrets::kCheckIntervalMs);
}

// Ends warm processes that hold an outdated secret, without waiting for their idle time.
void RunLoop::end_outdated_warm_processes() {
  for (const std::string& key : warm_secrets_.list_outdated_keys(callbacks_.has_current_secrets, clock_.boot_ms()))
    sandbox_->retire_warm_key(key);
}

void RunLoop::step(JobRuns::Event event) {
  for (JobRuns::Action& action : runs_.step(std::move(event), {clock_.boot_ms(), clock_.unix_ms()}))
    std::visit([this](auto& typed_action) { perform(typed_action); }, action);
}

// Actions that a step returns.

void RunLoop::perform(JobRuns::Launch& launch) {
  auto pipes = sandbox_->launch(launch.spec);
  if (!pipes) return step(JobRuns::LaunchFailed{launch.run, std::move(pipes).error().message});
  const JobStart* job = launch.spec.warm.runs > 0 ? runs_.find_job(launch.run) : nullptr;
  if (job != nullptr && !job->warm_secrets.empty())
    warm_secrets_.on_run_started(launch.spec, job->warm_secrets, clock_.boot_ms());
  reading_strands_.erase(launch.run);
  if (can_reads_block(launch.spec)) reading_strands_.emplace(launch.run, find_free_reading_strand());
  // Replaces the pipes of the previous stage.
  pipes_.insert_or_assign(
      launch.run, JobPipes(epoll_.get(), launch.run, *pipes, launch.attachment, launch.makes_calls, clock_.boot_ms()));
  has_unwatched_output_ = true;
  step(JobRuns::RunLaunched{launch.run});
}

void RunLoop::perform(JobRuns::WriteChannel& action) {
  if (const auto pipes = pipes_.find(action.run); pipes != pipes_.end())
    pipes->second.send([this, run = action.run] { return runs_.next_channel_bytes(run); });
}

void RunLoop::perform(JobRuns::PauseChannel& channel) {
  if (const auto pipes = pipes_.find(channel.run); pipes != pipes_.end())
    pipes->second.set_channel_held(channel.is_held);
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
    send_run_span(report.run, failed ? ended->end.detail : std::string());
  } else if (std::holds_alternative<Release>(report.report) || std::holds_alternative<AwaitInputs>(report.report)) {
    send_run_span(report.run, std::nullopt);
  }
  callbacks_.on_report(std::move(report));
}
void RunLoop::perform(BrokerCall& call) { callbacks_.on_call(std::move(call)); }

void RunLoop::perform(JobRuns::RunReaped& reaped) {
  callbacks_.on_run_reaped(reaped.run);
  if (pipes_.erase(reaped.run) > 0) reading_strands_.erase(reaped.run);
  run_rate_.on_run_ended(steady_now_us());
}

void RunLoop::perform(JobRuns::LaunchBackoff& failed) {
  if (launcher_.on_start_failed(clock_.boot_ms(), failed.reason)) callbacks_.on_readiness_changed();
}
void RunLoop::perform(JobRuns::ClaimBackoff& /*action*/) { run_rate_.on_claim_ahead_failed(); }

void RunLoop::perform(StartRejected& job) { callbacks_.on_start_rejected(std::move(job)); }

void RunLoop::perform(JobRuns::RunInBackground& action) {
  post_to_strand(action.strand, [this, work = std::move(action.work)] { posted_events_.post(work()); });
}

void RunLoop::perform(JobRuns::FetchInputs& fetch) {
  callbacks_.fetch_inputs(fetch.run, std::move(fetch.files), [this, run = fetch.run](InputsEnd end) {
    posted_events_.post(JobRuns::InputsFetched{run, std::move(end)});
  });
}

void RunLoop::perform(JobRuns::CancelFetch& fetch) { callbacks_.cancel_fetch(fetch.run); }

void RunLoop::post_to_strand(const std::string& strand, StrandPool::Work work) {
  if (!strands_.post({strand, find_strand_group(strand)}, std::move(work))) has_missing_threads_ = true;
}

// Strands of the same disk share threads, and so do strands of the same executor. A strand that reads pipes may be
// blocked for as long as its job lives, so it has a thread of its own.
std::string RunLoop::find_strand_group(const std::string& strand) {
  if (strand.starts_with(kPipeStrandPrefix)) return strand;
  std::uint64_t context = 0;
  const bool is_disk = strand.starts_with(kDiskStrandPrefix) || strand.starts_with(kLogStrandPrefix);
  if (is_disk && parse_u64(strand.substr(strand.find(' ') + 1), context))
    return mounts_.find_mount_point(ArtifactFolder(state_dir_, static_cast<Id>(context)).path());
  if (strand.starts_with(kFolderStrandPrefix))
    return mounts_.find_mount_point(strand.substr(kFolderStrandPrefix.size()));
  return strand.substr(0, strand.rfind(' '));
}

// Events of the pipes and of the sandbox.

// Returns whether a page fault of the run can wait for a disk. Page faults of other runs are served from memory, or
// from the disk of the system itself.
bool RunLoop::can_reads_block(const RunSpec& spec) const {
  const Grants& grants = spec.grants;
  return count_folders(grants) > 0 || !grants.syscalls.empty() || folder_contexts_.contains(spec.context);
}

// Strands are reused after their runs, so there are at most as many strands as there were runs at the same time.
std::string RunLoop::find_free_reading_strand() const {
  for (std::size_t number = 0;; ++number) {
    std::string strand = kPipeStrandPrefix + std::to_string(number);
    const auto is_used = [&](const auto& entry) { return entry.second == strand; };
    if (std::none_of(reading_strands_.begin(), reading_strands_.end(), is_used)) return strand;
  }
}

void RunLoop::read_in_background(RunNumber run, JobPipes& pipes, JobPipe pipe, const std::string& strand) {
  const auto descriptor = pipes.begin_background_read(pipe);
  if (!descriptor) return;
  post_to_strand(strand, [this, run, pipe, descriptor] {
    background_reads_.post({run, pipe, read_available(*descriptor, kMaxReadBatch)});
  });
}

void RunLoop::on_background_read(BackgroundRead& read) {
  const auto pipes = pipes_.find(read.run);
  if (pipes == pipes_.end()) {  // see abandon_pipes()
    reading_strands_.erase(read.run);
    return;
  }
  if (!read.bytes.empty()) step(JobRuns::BytesReceived{read.run, read.pipe, read.bytes});
  step(JobRuns::PipesDrained{read.run, read.pipe});
  pipes->second.end_background_read(read.pipe);  // after the step, which can pause the pipe
  if (pipes->second.has_background_reads()) return;
  if (auto ended = deferred_ends_.extract(read.run)) on_run_ended(ended.mapped());
}

void RunLoop::on_pipe(RunNumber run, JobPipes& pipes, JobPipe pipe) {
  if (pipe == JobPipe::requests) return pipes.send([this, run] { return runs_.next_channel_bytes(run); });
  if (const auto strand = reading_strands_.find(run); strand != reading_strands_.end() && !pipes.is_paused(pipe))
    return read_in_background(run, pipes, pipe, strand->second);
  if (!pipes.is_paused(pipe)) read_pipe(run, pipes, pipe);
  step(JobRuns::PipesDrained{run, pipe});
}

void RunLoop::read_pipe(RunNumber run, JobPipes& pipes, JobPipe pipe) {
  std::array<char, kMaxReadBatch> buffer;  // NOLINT(*-member-init): filled by read
  if (const std::string_view bytes = pipes.read(pipe, buffer); !bytes.empty())
    step(JobRuns::BytesReceived{run, pipe, bytes});
}

// A short read does not mean that the pipe is empty: a job can put its pipe into packet mode (O_DIRECT), where a read
// returns one packet.
void RunLoop::drain_pipes(RunNumber run, JobPipes& pipes) {
  std::array<char, kMaxReadBatch> buffer;  // NOLINT(*-member-init): filled by read
  for (JobPipe pipe : {JobPipe::channel, JobPipe::out, JobPipe::err}) {
    for (auto bytes = pipes.read(pipe, buffer); !bytes.empty(); bytes = pipes.read(pipe, buffer))
      step(JobRuns::BytesReceived{run, pipe, bytes});
  }
}

// Reading and closing can block until a process of the lost run ends, so both are done on the strand of the run. The
// strand stays reserved until then.
void RunLoop::abandon_pipes(RunNumber run) {
  auto pipes = std::make_shared<JobPipes>(std::move(pipes_.extract(run).mapped()));
  for (const JobPipe pipe : {JobPipe::channel, JobPipe::out, JobPipe::err, JobPipe::requests})
    pipes->begin_background_read(pipe);
  post_to_strand(reading_strands_.at(run), [this, run, pipes]() mutable {
    pipes.reset();
    background_reads_.post({run, JobPipe::channel, {}});
  });
}

// No process of the run is left, so its pipes receive no more bytes. A background read that was blocked by such a
// process now ends. The exception is `lost`, which does not prove the end of the processes (sandbox/sandbox.h): one
// of them may wait for a disk and block the read.
void RunLoop::on_run_ended(RunEnded& ended) {
  const RunNumber run = JobRuns::get_run_number(ended.run);
  const auto pipes = pipes_.find(run);
  const bool is_lost = ended.outcome.status == RunStatus::lost;
  if (is_lost && pipes != pipes_.end() && reading_strands_.contains(run)) {
    abandon_pipes(run);
  } else if (pipes != pipes_.end() && ended.outcome.status != RunStatus::unkillable) {
    if (pipes->second.has_background_reads()) {
      deferred_ends_.insert_or_assign(run, std::move(ended));
      return;
    }
    drain_pipes(run, pipes->second);
  }
  record_metrics(ended);
  step(std::move(ended));
}

void RunLoop::record_metrics(const RunEnded& ended) {
  const Outcome& outcome = ended.outcome;
  const JobStart* job = runs_.find_job(JobRuns::get_run_number(ended.run));
  if (job == nullptr || outcome.status == RunStatus::unkillable || outcome.status == RunStatus::lost) return;
  constexpr double kUs = 1e6;
  const Usage& usage = outcome.usage;
  const ClaimRef& claim = job->claim;
  metrics_->observe(Metric::run_time, {claim.context, claim.script_type}, static_cast<double>(usage.wall_us) / kUs);
  metrics_->add(Metric::run_cpu, {claim.context, claim.script_type},
                static_cast<double>(usage.user_us + usage.system_us) / kUs);
  std::uint64_t setup_us = 0;
  const char* source = "new";
  for (const StepTime& step : outcome.setup) {
    if (step.step == kPrewarmedStep) source = "ready";
    if (step.step == kWarmStep) source = "warm";
    const bool was_reused = step.step == kPrewarmedStep || step.step == kWarmStep;
    setup_us = was_reused ? step.us : setup_us + step.us;
    if (was_reused) break;
  }
  if (!outcome.setup.empty()) metrics_->observe(Metric::sandbox_setup, {source}, static_cast<double>(setup_us) / kUs);
  record_span(ended, *job, setup_us);
}

// The sandbox has measured durations, so the times are computed backwards from now. If the sandbox was set up before
// its job was claimed, its span begins with the claim, since no job has waited for the sandbox before.
void RunLoop::record_span(const RunEnded& ended, const JobStart& job, std::uint64_t setup_us) {
  const ClaimRef& claim = job.claim;
  if (!traces_->is_enabled() || claim.traceparent.empty()) return;
  const std::uint64_t end = unix_us(), begin = end - std::min(end, ended.outcome.usage.wall_us);
  const std::size_t stage = JobRuns::get_stage(ended.run);
  const bool is_last_stage = stage + 1 == job.specs.size();
  // MYCOJOBS_TRACEPARENT contains the span of the last stage.
  const std::string span_key = is_last_stage ? claim.claim_id : claim.claim_id + ' ' + std::to_string(stage);
  const std::vector<std::pair<std::string, std::string>> attributes{{"mycojobs.job", claim.job_key},
                                                                    {"mycojobs.script_type", claim.script_type},
                                                                    {"mycojobs.attempt", std::to_string(claim.attempt)},
                                                                    {"mycojobs.stage", std::to_string(stage)}};
  const std::uint64_t setup_begin = std::max(begin - std::min(begin, setup_us), std::min(claim.claimed_us, begin));
  add_span(*traces_, claim.traceparent, span_key, {"", "", "", "sandbox", setup_begin, begin, attributes});
  const RunNumber run = JobRuns::get_run_number(ended.run);
  send_run_span(run, std::nullopt);  // sends the span of the previous stage
  Span span{"", "", "", "run", begin, end, attributes, "", SpanKind::consumer};
  if (ended.outcome.status != RunStatus::ok) span.error = std::string(to_string(ended.outcome.status));
  ended_spans_.insert_or_assign(run, EndedSpan{claim.traceparent, span_key, std::move(span)});
}

// Sends the span of a run when the end of its job is known. detail: the error of the job, or empty after success.
// Without a value the job has no end, and the status of the run applies.
void RunLoop::send_run_span(RunNumber run, const std::optional<std::string>& detail) {
  const auto entry = ended_spans_.find(run);
  if (entry == ended_spans_.end()) return;
  EndedSpan& ended = entry->second;
  if (detail) ended.span.error = *detail;
  add_span(*traces_, ended.traceparent, ended.span_key, std::move(ended.span));
  ended_spans_.erase(entry);
}

void RunLoop::publish_sandbox_counts() {
  const SandboxCounts now = sandbox_->counts();
  if (now == published_counts_) return;
  published_counts_ = now;
  metrics_->set(Metric::sandboxes, {"ready"}, now.ready);
  metrics_->set(Metric::sandboxes, {"starting"}, now.starting);
  metrics_->set(Metric::sandboxes, {"in_use"}, now.in_use);
  metrics_->set(Metric::zygotes, {}, now.zygotes);
}

void RunLoop::watch_output() {
  const std::uint64_t now = clock_.boot_ms();
  has_unwatched_output_ = false;
  for (auto& [run, pipes] : pipes_) has_unwatched_output_ = !pipes.watch_output(now) || has_unwatched_output_;
}

void RunLoop::resume_reading() {
  const std::uint64_t now = clock_.boot_ms();
  resume_at_ms_ = UINT64_MAX;
  for (auto& [run, pipes] : pipes_) resume_at_ms_ = std::min(resume_at_ms_, pipes.resume(now));
}

void RunLoop::publish_ending_count() {
  const std::size_t count = runs_.ending_count();
  if (count > ending_count_.exchange(count)) callbacks_.on_slots_freed();
}

void RunLoop::restart_launcher() {
  if (!launcher_.on_launcher_died(clock_.boot_ms())) return;
  // Fails if the descriptor was closed, which has removed it from the set already.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watched_sandbox_fd_, nullptr);
  const auto restarted = sandbox_->restart();
  metrics_->add(Metric::launcher_restarts, {});
  watched_sandbox_fd_ = sandbox_->event_fd();
  if (watched_sandbox_fd_ >= 0) watch_descriptor(epoll_.get(), EPOLL_CTL_ADD, watched_sandbox_fd_, kSandbox, EPOLLIN);
  launcher_.on_launcher_ready(restarted);
  callbacks_.on_readiness_changed();
}

}  // namespace mycojobs
