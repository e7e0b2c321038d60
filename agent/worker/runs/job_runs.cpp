#include "worker/runs/job_runs.h"

#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "base/sha256.h"
#include "base/shortage.h"
#include "model/trace_context.h"
#include "worker/runs/object_call.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kCheckStrandsMs = 500;
constexpr const char* kCancelledBeforeStart = "cancelled before it began";

Error hang_error(const std::string& strand) {
  const std::string seconds = std::to_string(HangDetector::kTimeoutMs / 1000);
  return {Code::unavailable, "\"" + strand + "\" of this agent has not answered for " + seconds +
                                 " s: see to the plugin, or to the disk of that context in state_dir"};
}

std::string host_name() {
  char name[256] = "";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

JobRuns::JobRuns(Settings settings, std::uint64_t seed) : settings_(settings), random_(seed) {}

std::vector<JobRuns::Action> JobRuns::step(Event event, CurrentTime now) {
  now_ = now;
  std::visit([this](auto& typed_event) { on(typed_event); }, event);
  return std::exchange(actions_, {});
}

JobRuns::Run* JobRuns::find(RunNumber number) {
  const auto entry = runs_.find(number);
  return entry == runs_.end() ? nullptr : &entry->second;
}

const JobStart* JobRuns::find_job(RunNumber number) const {
  const auto entry = runs_.find(number);
  return entry == runs_.end() ? nullptr : &entry->second.job;
}

std::string JobRuns::next_channel_bytes(RunNumber number) {
  Run* run = find(number);
  return run == nullptr || run->between_stages ? std::string() : run->job.conversation->consume_output();
}

// A coarse interval: each waiting job or line is checked a little later than at its exact time, so that one wake-up
// serves all of them.
std::optional<std::uint64_t> JobRuns::next_wakeup_ms() const {
  if (waiting_.empty() && !has_pending_output_)
    return hang_detector_.empty() && pending_ends_ == 0 ? std::nullopt : std::optional(kCheckStrandsMs);
  return std::min(RunOutput::kMaxPartialWaitMs, PrefetchedJobs::kTimeoutMs);
}

// Start of jobs.

void JobRuns::on(JobStart& start) {
  if (waiting_.empty() && has_slot()) return begin(std::move(start));
  waiting_.add(std::move(start), now_.boot_ms);
}

void JobRuns::on(TimePassed& /*time*/) {
  if (!hang_detector_.empty()) release_hanging_jobs();
  if (pending_ends_ > 0) release_hanging_ends();
  start_waiting_jobs();
  if (has_pending_output_) flush_pending_output();
}

void JobRuns::start_waiting_jobs() {
  while (!waiting_.empty() && has_slot()) begin(waiting_.pop_first(now_.boot_ms));
  if (!waiting_.is_overdue(now_.boot_ms)) return;
  emit_action(ClaimBackoff{});
  release_waiting_jobs("the slots of its runner stay busy");
}

void JobRuns::begin(JobStart start) {
  if (start.create_conversation && hang_detector_.is_hanging(start.strand, now_.boot_ms))
    return reject_start(start, hang_error(start.strand));
  const RunNumber number = start.run;
  const std::uint64_t output_bytes = start.output_bytes;
  auto redactor = start.redactor;
  if (redactor && start.artifacts) start.artifacts->set_redactor(redactor);
  const ReadBudget read_budget(settings_.read_budget, redactor != nullptr, start.uses_object_store);
  const auto inserted =
      runs_.try_emplace(number, Run{std::move(start), RunOutput(output_bytes, std::move(redactor)), read_budget});
  Run& run = inserted.first->second;
  if (run.job.exported_log) run.output.add_sink(run.job.exported_log);
  if (run.job.log_spool) run.output.add_sink(run.job.log_spool);
  run.fence_boot_ms = run.job.specs.front().fence_boot_ms;
  if (!run.job.create_conversation) return launch(number, run);
  begin_in_background(number, run);
}

void JobRuns::begin_in_background(RunNumber number, Run& run) {
  const std::string& strand = run.job.strand;
  if (!run.conversation_factory) {
    run.conversation_factory =
        std::make_shared<decltype(JobStart::create_conversation)>(std::move(run.job.create_conversation));
    run.requested_boot_ms = now_.boot_ms;
  }
  hang_detector_.on_request_sent(strand, now_.boot_ms);
  emit_action(RunInBackground{
      strand, [number, strand, factory = std::weak_ptr(run.conversation_factory), artifacts = run.job.artifacts] {
        const auto create_conversation = factory.lock();
        return Event(PrepareFinished{
            number, strand, artifacts,
            create_conversation ? (*create_conversation)() : fail(Code::conflict, kCancelledBeforeStart)});
      }});
}

void JobRuns::on(PrepareFinished& prepared) {
  hang_detector_.on_request_answered(prepared.strand, now_.boot_ms);
  Run* run = find(prepared.run);
  if (run == nullptr) return;  // the job was killed or released while its conversation was created
  if (prepared.conversation) {
    run->conversation_factory.reset();
    run->job.conversation = std::move(*prepared.conversation);
    run->job.extend_deadline(now_.boot_ms - run->requested_boot_ms);
    return launch(prepared.run, *run);
  }
  if (auto files = run->job.list_missing_inputs ? run->job.list_missing_inputs() : std::vector<MissingInput>();
      !files.empty())
    return fetch_inputs(prepared.run, *run, std::move(files));
  reject_start(run->job, std::move(prepared.conversation).error());
  runs_.erase(prepared.run);
}

// A file can be deleted from the cache before the conversation has read it, so it is fetched again.
void JobRuns::fetch_inputs(RunNumber number, Run& run, std::vector<MissingInput> files) {
  constexpr std::uint32_t kMaxFetches = 3;
  if (run.fetches++ == kMaxFetches) {
    reject_start(run.job, {Code::unavailable, "inputs: " + files.front().artifact.label +
                                                  " was deleted from the cache before the job could begin: raise "
                                                  "artifacts.cache_bytes"});
    runs_.erase(number);
    return;
  }
  run.is_fetching = true;
  run.input_jobs.clear();
  for (const MissingInput& file : files) {
    if (run.input_jobs.empty() || run.input_jobs.back() != file.artifact.job_key)
      run.input_jobs.push_back(file.artifact.job_key);
  }
  emit_action(FetchInputs{number, std::move(files)});
}

void JobRuns::on(InputsFetched& fetched) {
  Run* run = find(fetched.run);
  if (run == nullptr || !run->is_fetching) return;
  run->is_fetching = false;
  const InputsEnd& end = fetched.end;
  switch (end.status) {
    case FetchStatus::received:
      return begin_in_background(fetched.run, *run);
    case FetchStatus::storage_away:
    case FetchStatus::away:
      emit_action(RunReport{fetched.run,
                            AwaitInputs{run->job.claim, end.holder, settings_.holder_timeout_ms, end.reason,
                                        std::move(run->input_jobs), end.status == FetchStatus::storage_away},
                            true});
      break;
    case FetchStatus::busy:  // another agent may be able to run the job
      release_job(run->job, "inputs: " + end.reason);
      break;
    case FetchStatus::lost:
    case FetchStatus::damaged: {
      JobEnd job_end;
      job_end.status = JobStatus::error;
      job_end.detail = "artifact_lost";
      job_end.error = "inputs: " + end.reason + ": run that job again";
      emit_action(RunReport{fetched.run, EndReport{run->job.claim, std::move(job_end)}, true});
      break;
    }
    case FetchStatus::failed:
      reject_start(run->job, {Code::unavailable, "inputs: " + end.reason});
  }
  runs_.erase(fetched.run);
}

// Releases the jobs of strands that do not answer, since another agent may be able to run the jobs: jobs that have not
// begun, and jobs between two stages. New jobs of such a strand are refused until the strand answers.
void JobRuns::release_hanging_jobs() {
  for (auto it = runs_.begin(); it != runs_.end();) {
    auto& [number, run] = *it++;
    const JobStart& job = run.job;
    if (run.is_fetching || (job.conversation && !run.between_stages) ||
        !hang_detector_.is_hanging(job.strand, now_.boot_ms))
      continue;
    if (run.between_stages) {
      release_started_job(number, run, hang_error(job.strand).message);
    } else {
      reject_start(job, hang_error(job.strand));
      runs_.erase(number);
    }
  }
}

void JobRuns::reject_start(const JobStart& job, Error error) {
  const bool is_caller_paused = job.executor != nullptr && job.executor->is_paused(job.context, job.caller);
  emit_action(
      StartRejected{job.run, job.claim, job.queue, job.attempt, job.retries, std::move(error), is_caller_paused});
}

// Starts the first or the next stage.
void JobRuns::launch(RunNumber number, Run& run) {
  run.stage = run.job.conversation->stage();
  run.is_first_stage = !run.has_begun;
  run.is_channel_held = false;
  RunSpec spec = run.job.specs.at(run.stage);
  spec.run = sandbox_run(number, run.stage);
  spec.fence_boot_ms = run.fence_boot_ms;
  spec.grants.packages = run.job.conversation->packages();
  // A process is never reused with other packages.
  if (spec.warm.runs > 0 && !spec.grants.packages.path.empty()) spec.warm.key += sha256_hex(spec.grants.packages.path);
  // A stage that begins after the deadline gets the shortest time limit, since 0 means no limit.
  if (const std::uint64_t deadline = run.job.deadline_boot_ms; deadline > 0) {
    const std::uint64_t left = deadline > now_.boot_ms ? deadline - now_.boot_ms : 1;
    spec.limits.wall_ms = spec.limits.wall_ms == 0 ? left : std::min(spec.limits.wall_ms, left);
  }
  emit_action(Launch{number, std::move(spec), run.job.conversation->attachment(), run.job.uses_object_store});
}

void JobRuns::on(RunLaunched& launched) {
  Run* run = find(launched.run);
  if (run == nullptr) return;
  run->has_begun = true;
  if (run->kill_reason)
    return kill_run(launched.run, *run, *run->kill_reason);  // killed between two stages: no request is sent
  emit_action(WriteChannel{launched.run});
}

void JobRuns::on(LaunchFailed& failed) {
  Run* run = find(failed.run);
  if (run == nullptr) return;
  if (run->has_begun) {  // the launcher died between two stages
    return release_started_job(failed.run, *run, std::move(failed.reason));
  }
  // No process of the job has run, so no delivery is counted.
  release_job(run->job, failed.reason);
  runs_.erase(failed.run);
  emit_action(LaunchBackoff{std::move(failed.reason)});
}

void JobRuns::reap_run(RunNumber number) {
  runs_.erase(number);
  emit_action(RunReaped{number});
}

// Releases the job and deletes its artifacts. Deleting can block as long as writing, so it is done on the strand of
// the disk.
void JobRuns::release_started_job(RunNumber number, Run& run, std::string reason, bool counts_delivery) {
  close_output(number, run);
  release(number, run.job.claim, std::move(reason), counts_delivery);
  if (const auto& artifacts = run.job.artifacts; artifacts && !artifacts->is_unused())
    emit_action(RunInBackground{disk_strand_name(run.job.context),
                                [delete_artifacts = artifacts->discard()] { return Event(TimePassed{}); }});
  if (const auto& spool = run.job.log_spool; spool && spool->is_used())
    emit_action(RunInBackground{log_strand_name(run.job.context),
                                [key = run.job.claim.job_key, close = spool->make_close_task()] {
                                  for (const std::string& note : close().notes)
                                    log(LogLevel::warn, "worker", "{}: {}", key, note);
                                  return Event(TimePassed{});
                                }});
  reap_run(number);
}

// Release of jobs to their queues. release() is for jobs that may have run, and logs the reason.

void JobRuns::release(RunNumber number, const ClaimRef& claim, std::string reason, bool counts_delivery) {
  log(LogLevel::warn, "worker", "{}: back to its queue: {}", append_trace_id(claim.job_key, claim.traceparent), reason);
  emit_action(RunReport{number, Release{claim, std::move(reason), counts_delivery}, true});
}

// Releases a job that has not begun, without counting a delivery. If the job is to be cancelled, the store ends it.
void JobRuns::release_job(const JobStart& job, const std::string& reason) {
  emit_action(RunReport{job.run, Release{job.claim, reason, false}, true});
}

void JobRuns::release_waiting_jobs(const std::string& reason) {
  while (const auto job = waiting_.pop_last()) release_job(*job, reason);
}

// Leases and kills.

void JobRuns::on(Fence& fence) {
  Run* run = find(fence.run);
  if (run == nullptr) return waiting_.set_fence(fence.run, fence.boot_ms);
  run->fence_boot_ms = fence.boot_ms;
  if (run->job.conversation) emit_action(MoveFence{sandbox_run(fence.run, run->stage), fence.boot_ms});
}

void JobRuns::on(Kill& kill) {
  if (Run* run = find(kill.run)) {
    kill_run(kill.run, *run, kill.reason);
  } else if (const auto job = waiting_.remove(kill.run)) {
    release_job(*job, kCancelledBeforeStart);
  }
}

// A job that is already being cancelled is not marked as returned, so it ends as cancelled.
void JobRuns::on(ReturnJobs& /*all*/) {
  for (auto run = runs_.begin(); run != runs_.end();) {
    const auto current = run++;  // kill_run() erases a job that has not begun
    current->second.is_returning = !current->second.kill_reason;
    kill_run(current->first, current->second, KillReason::cancelled);
  }
  release_waiting_jobs("its agent stops");
}

void JobRuns::kill_run(RunNumber number, Run& run, KillReason reason) {
  if (!run.job.conversation) {  // do not wait for create_conversation, which may be blocked on its strand
    if (run.is_fetching) emit_action(CancelFetch{number});
    release_job(run.job, kCancelledBeforeStart);
    runs_.erase(number);
    return;
  }
  if (!run.kill_reason || (run.between_stages && reason == KillReason::fenced)) run.kill_reason = reason;
  if (run.between_stages) return;  // on(RunLaunched) kills the next stage
  emit_action(
      KillRun{sandbox_run(number, run.stage), reason, reason == KillReason::cancelled ? settings_.grace_ms : 0});
}

// Output, calls and answers of runs.

void JobRuns::on(BytesReceived& read) {
  Run* run = find(read.run);
  if (run == nullptr || run->between_stages) return;
  if (read.pipe == JobPipe::channel) return process_channel(read.run, *run, read.bytes);
  run->read_budget.charge(read.pipe, read.bytes.size(), 0, now_.boot_ms);
  const LogStream stream = read.pipe == JobPipe::out ? LogStream::out : LogStream::err;
  const std::string_view redacted = run->output.feed(stream, read.bytes, now_.unix_ms);
  Conversation& conversation = *run->job.conversation;
  const bool is_merged = run->job.specs.at(run->stage).merge_output;
  stream == LogStream::err || is_merged ? conversation.on_stderr(redacted) : conversation.on_stdout(redacted);
}

void JobRuns::process_channel(RunNumber number, Run& run, std::string_view bytes) {
  Conversation& conversation = *run.job.conversation;
  conversation.feed(bytes);
  const std::uint64_t frames = conversation.frame_count();
  run.read_budget.charge(JobPipe::channel, bytes.size(), frames - std::min(frames, run.frames), now_.boot_ms);
  run.frames = frames;
  add_notes(run, conversation.consume_notes());
  write_artifacts(number, run);
  bool has_refused_calls = false;
  for (std::string& call : conversation.consume_calls()) {
    has_refused_calls = has_refused_calls || !run.job.uses_object_store;
    if (run.job.uses_object_store) {
      emit_action(BrokerCall{number, run.job.context, run.job.caller, run.job.claim, std::move(call)});
    } else {  // not parsed: the script host of this executor makes no calls, so the call is forged
      conversation.answer(
          build_error_answer("null", {Code::denied, "only scripts of the type osis have the object store"}));
    }
  }
  if (has_refused_calls) emit_action(WriteChannel{number});
}

// Posts the queued artifacts to the strand of the disk. If the disk hangs and the queue is full, the channel is not
// read, and the job blocks as soon as the channel is full.
void JobRuns::write_artifacts(RunNumber number, Run& run) {
  if (!run.job.artifacts) return;
  ArtifactQueue& artifacts = *run.job.artifacts;
  if (auto work = artifacts.pop_write_task())
    emit_action(RunInBackground{disk_strand_name(run.job.context), [number, work = std::move(*work)] {
                                  return Event(ArtifactsWritten{number, work()});
                                }});
  if (const bool is_full = artifacts.is_full(); is_full != std::exchange(run.is_channel_held, is_full))
    emit_action(PauseChannel{number, is_full});
}

void JobRuns::on(ArtifactsWritten& written) {
  Run* run = find(written.run);
  const auto ending = ended_runs_.find(written.run);
  if (run == nullptr && ending == ended_runs_.end()) return;
  Run& owner = run != nullptr ? *run : ending->second.run;
  owner.job.artifacts->on_write_done(written.result);
  add_notes(owner, written.result.notes);
  if (run == nullptr) return;  // the function of ArtifactQueue::make_store_task() writes the remaining artifacts
  write_artifacts(written.run, owner);
  report_output(written.run, owner);
}

void JobRuns::on(BrokerAnswered& answer) {
  Run* run = find(answer.run);
  if (run == nullptr || run->between_stages) return;  // the stage that made the call has ended
  run->job.conversation->answer(answer.json);
  emit_action(WriteChannel{answer.run});
}

// The output limit is checked once for each iteration of the run loop. A job can exceed the limit by the bytes that one
// iteration reads, plus the content of the pipes.
void JobRuns::on(PipesDrained& read) {
  Run* run = find(read.run);
  if (run == nullptr) return;
  if (run->job.output_kill && run->output.redacted_bytes() > run->job.output_bytes &&
      !std::exchange(run->output_limit_exceeded, true))
    kill_run(read.run, *run, KillReason::output_limit);
  report_output(read.run, *run);
  std::uint64_t resume_ms = run->read_budget.resume_at_ms(read.pipe, now_.boot_ms);
  if (run->job.log_spool && read.pipe != JobPipe::channel)
    resume_ms = std::max(resume_ms, run->job.log_spool->resume_at_ms(now_.boot_ms));
  if (resume_ms > 0) emit_action(PauseReading{read.run, read.pipe, resume_ms});
}

void JobRuns::report_output(RunNumber number, Run& run) {
  run.output.emit_tail(now_.boot_ms);
  for (std::vector<Log>& lines : run.output.pop_batches()) {
    // Each report deletes one range of bounded size. The first one also adds lines, so that the log keeps its latest
    // entry, and with it the latest number.
    do {
      const auto [first, last, bytes] = run.output.pop_dropped_entries();
      emit_action(RunReport{number, LogAppend{run.job.claim, std::exchange(lines, {}), first, last, bytes}, false});
    } while (run.output.has_dropped_entries());
  }
  has_pending_output_ = has_pending_output_ || run.output.has_pending_output();
  write_log(number, run);
}

// Posts the queued entries to the strand for the logs. Entries that arrive in the meantime are posted together.
void JobRuns::write_log(RunNumber number, Run& run) {
  auto work = run.job.log_spool ? run.job.log_spool->pop_write_task() : std::nullopt;
  if (!work) return;
  emit_action(RunInBackground{log_strand_name(run.job.context), [number, work = std::move(*work)] {
                                return Event(LogWritten{number, work()});
                              }});
}

void JobRuns::on(LogWritten& written) {
  Run* run = find(written.run);
  if (run == nullptr) {
    // The function of LogSpool::make_close_task() writes the remaining entries.
    const auto ending = ended_runs_.find(written.run);
    if (ending == ended_runs_.end() || written.result.notes.empty()) return;
    add_notes(ending->second.run, written.result.notes);
    return close_output(written.run, ending->second.run);
  }
  run->job.log_spool->on_write_done();
  add_notes(*run, written.result.notes);
  written.result.notes.empty() ? write_log(written.run, *run) : report_output(written.run, *run);
}

void JobRuns::flush_pending_output() {
  has_pending_output_ = false;
  for (auto& [number, run] : runs_) {
    const bool has_flushed = run.output.flush_partial_lines(now_.boot_ms, now_.unix_ms);
    if (has_flushed || run.output.has_pending_output()) report_output(number, run);
  }
}

// The end of runs and jobs.

void JobRuns::on(RunEnded& ended) {
  const RunNumber number = get_run_number(ended.run);
  Run* run = find(number);
  if (run == nullptr) return;
  Outcome& outcome = ended.outcome;
  if (outcome.status == RunStatus::unkillable) return report_unkillable(number, *run, outcome.reason);
  for (const auto& note : outcome.notes) run->output.add_note(note, now_.unix_ms);
  count_output(*run, outcome);
  if (run->is_returning && (outcome.status == RunStatus::cancelled || outcome.status == RunStatus::lost))
    return release_started_job(number, *run, "its agent stops", false);
  if (outcome.status != RunStatus::lost) return advance_stage(number, *run, std::move(outcome));
  if (outcome.never_started && outcome.setup_error) return release_for_shortage(number, *run, outcome);
  if (outcome.never_started && run->is_first_stage) {
    reject_start(run->job, {Code::unavailable, std::move(outcome.reason)});
    return reap_run(number);
  }
  release_started_job(number, *run, std::move(outcome.reason));
}

// The host lacks a resource that other hosts may have. This is not a fault of the job in any stage, so no delivery is
// counted.
void JobRuns::release_for_shortage(RunNumber number, Run& run, const Outcome& outcome) {
  if (run.is_first_stage) {
    release_job(run.job, outcome.reason);
    reap_run(number);
  } else {
    release_started_job(number, run, outcome.reason, false);
  }
  const ResourceShortage* shortage = find_shortage(outcome.setup_error->error);
  emit_action(LaunchBackoff{shortage == nullptr ? outcome.reason : describe_shortage(*shortage)});
}

// Moving from stage to stage can read and write files, so a conversation with a strand is called on the strand.
void JobRuns::advance_stage(RunNumber number, Run& run, Outcome outcome) {
  const auto& conversation = run.job.conversation;
  const bool is_last = run.stage + 1 >= run.job.specs.size();
  if (is_last || run.job.strand.empty() || !conversation->can_block_in_next_stage(outcome)) {
    StageAdvanced advanced{number, outcome, conversation->next_stage(outcome)};
    return on(advanced);
  }
  run.between_stages = true;
  const std::string& strand = run.job.strand;
  hang_detector_.on_request_sent(strand, now_.boot_ms);
  emit_action(RunInBackground{strand, [number, strand, conversation, outcome = std::move(outcome)] {
                                const bool has_next_stage = conversation->next_stage(outcome);
                                return Event(StageAdvanced{number, outcome, has_next_stage, strand});
                              }});
}

void JobRuns::on(StageAdvanced& advanced) {
  if (!advanced.strand.empty()) hang_detector_.on_request_answered(advanced.strand, now_.boot_ms);
  Run* run = find(advanced.run);
  if (run == nullptr) return;
  run->between_stages = false;
  if (advanced.has_next_stage) return launch(advanced.run, *run);
  EndedRun& ending =
      ended_runs_.try_emplace(advanced.run, EndedRun{std::move(*run), std::move(advanced.outcome), {}}).first->second;
  reap_run(advanced.run);
  write_archive(advanced.run, ending);
}

// The archive is completed on the strand of the logs, and then stored on that of the artifacts: a hanging disk of the
// logs must not block the artifacts of other jobs.
void JobRuns::write_archive(RunNumber number, EndedRun& ending) {
  const auto& spool = ending.run.job.log_spool;
  if (!spool || !spool->has_archive()) return store_artifacts(number, ending);
  ending.run.output.end_streams(now_.unix_ms);  // the archive contains the output, but no later notes
  if (!spool->is_used()) return store_artifacts(number, ending);
  ending.is_writing_archive = true;
  ending.requested_boot_ms = now_.boot_ms;
  ++pending_ends_;
  emit_action(RunInBackground{log_strand_name(ending.run.job.context), [number, write = spool->make_archive_task()] {
                                return Event(ArchiveWritten{number, write()});
                              }});
}

void JobRuns::on(ArchiveWritten& written) {
  const auto entry = ended_runs_.find(written.run);
  if (entry == ended_runs_.end() || !std::exchange(entry->second.is_writing_archive, false)) return;
  --pending_ends_;
  add_notes(entry->second.run, written.result.notes);
  store_artifacts(written.run, entry->second, std::move(written.result));
}

void JobRuns::store_artifacts(RunNumber number, EndedRun& ending, LogSpool::ArchiveResult archive) {
  const auto& artifacts = ending.run.job.artifacts;
  std::function<void(ArtifactSink&)> store_log;
  if (archive.file || archive.has_failed)
    store_log = [archive = std::move(archive), key = ending.run.job.claim.job_key](ArtifactSink& sink) {
      LogSpool::store_archive(archive, key, sink);
    };
  if (artifacts && (!artifacts->is_unused() || store_log)) {
    return emit_action(RunInBackground{disk_strand_name(ending.run.job.context),
                                       [number, work = artifacts->make_store_task(std::move(store_log))] {
                                         return Event(ArtifactsStored{number, work()});
                                       }});
  }
  ArtifactsStored no_artifacts{number, {}};
  on(no_artifacts);
}

void JobRuns::on(ArtifactsStored& stored) {
  const auto entry = ended_runs_.find(stored.run);
  if (entry == ended_runs_.end()) return;
  EndedRun& ending = entry->second;
  ending.artifacts = std::move(stored.result.artifacts);
  ending.dropped = std::move(stored.result.dropped);
  add_notes(ending.run, stored.result.notes);
  close_output(stored.run, ending.run);
  count_output(ending.run, ending.outcome);
  // A process chooses its own name, so the name can contain a secret; it is stored in the receipt too.
  if (auto& violation = ending.outcome.violation) violation->comm = ending.run.output.redact(violation->comm);
  close_log(stored.run, ending);
}

// The log is complete on the disk before the end is reported, so that a reader that sees the end can read all of it.
void JobRuns::close_log(RunNumber number, EndedRun& ending) {
  const auto& spool = ending.run.job.log_spool;
  if (!spool || !spool->is_used()) return finish(number, ending);
  emit_action(RunInBackground{log_strand_name(ending.run.job.context), [number, close = spool->make_close_task()] {
                                return Event(LogClosed{number, close()});
                              }});
  if (ending.is_log_hanging) return finish(number, ending);
  ending.is_closing_log = true;
  ending.requested_boot_ms = now_.boot_ms;
  ++pending_ends_;
}

void JobRuns::on(LogClosed& closed) {
  const auto entry = ended_runs_.find(closed.run);
  if (entry == ended_runs_.end() || !std::exchange(entry->second.is_closing_log, false)) return;
  --pending_ends_;
  if (!closed.result.notes.empty()) {
    add_notes(entry->second.run, closed.result.notes);
    close_output(closed.run, entry->second.run);
  }
  finish(closed.run, entry->second);
}

void JobRuns::finish(RunNumber number, EndedRun& ending) {
  const JobStart& job = ending.run.job;
  if (job.can_block_in_finish) {
    return emit_action(RunInBackground{job.strand, [number, conversation = job.conversation, outcome = ending.outcome] {
                                         return Event(EndComputed{number, conversation->finish(outcome)});
                                       }});
  }
  EndComputed finished{number, job.conversation->finish(ending.outcome)};
  auto access = ending.outcome.status == RunStatus::exit ? find_denied_access(finished.end, job.folders) : std::nullopt;
  if (!access) return on(finished);
  ending.end_without_cause = std::move(finished.end);
  ending.requested_boot_ms = now_.boot_ms;
  ++pending_ends_;
  emit_action(RunInBackground{folder_strand_name(access->folder.host_path), [number, access = std::move(*access)] {
                                return Event(CauseFound{number, find_cause(access)});
                              }});
}

void JobRuns::on(CauseFound& found) {
  const auto entry = ended_runs_.find(found.run);
  if (entry == ended_runs_.end()) return;
  EndComputed finished{found.run, std::move(*entry->second.end_without_cause)};
  if (!found.cause.empty()) finished.end.error += "; " + found.cause;
  on(finished);
}

// Sends the ends that a hanging disk withholds.
void JobRuns::release_hanging_ends() {
  std::vector<EndComputed> ends;
  std::vector<ArchiveWritten> archives;
  std::vector<LogClosed> logs;
  for (auto& [number, ending] : ended_runs_) {
    if (now_.boot_ms < ending.requested_boot_ms + HangDetector::kTimeoutMs) continue;
    if (ending.is_writing_archive || ending.is_closing_log) {
      log(LogLevel::warn, "worker", "{}: the disk of its log does not answer", ending.run.job.claim.job_key);
      ending.is_log_hanging = true;
      ending.run.job.log_spool->abandon();
    }
    if (ending.is_writing_archive) archives.push_back({number, {.has_failed = true}});
    if (ending.is_closing_log) logs.push_back({number});
    if (ending.end_without_cause) ends.push_back({number, std::move(*ending.end_without_cause)});
  }
  for (ArchiveWritten& written : archives) on(written);
  for (LogClosed& closed : logs) on(closed);
  for (EndComputed& end : ends) on(end);
}

void JobRuns::on(EndComputed& finished) {
  const auto entry = ended_runs_.find(finished.run);
  if (entry == ended_runs_.end()) return;
  if (entry->second.end_without_cause) --pending_ends_;
  emit_action(RunReport{finished.run, build_end_report(entry->second, std::move(finished.end)), true});
  ended_runs_.erase(entry);
}

void JobRuns::count_output(const Run& run, Outcome& outcome) {
  outcome.usage.stdout_bytes = run.output.redacted_bytes(LogStream::out);
  outcome.usage.stderr_bytes = run.output.redacted_bytes(LogStream::err);
  apply_output_limit(outcome, run.job.output_kill ? run.job.output_bytes : 0);
}

// Reports an unkillable run, once. This is not the end of the job, even if the job was cancelled or has exceeded its
// time limit: lease and slot are held until the run ends. The reason contains names that processes have chosen, so it
// is redacted.
void JobRuns::report_unkillable(RunNumber number, Run& run, const std::string& reason) {
  if (std::exchange(run.unkillable_reported, true)) return;
  log(LogLevel::error, "worker",
      "{}: unkillable on host {}: {}. Its slot is withheld. Check what the process waits for (a disk, a network file "
      "system, a debugger) or restart the host",
      append_trace_id(run.job.claim.job_key, run.job.claim.traceparent), host_name(), run.output.redact(reason));
  emit_action(RunReport{number, DetailUpdate{run.job.claim, "unkillable"}, false});
}

void JobRuns::close_output(RunNumber number, Run& run) {
  run.output.close(now_.unix_ms);
  report_output(number, run);
}

void JobRuns::add_notes(Run& run, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) run.output.add_note(line, now_.unix_ms);
}

EndReport JobRuns::build_end_report(EndedRun& ending, JobEnd end) {
  const Run& run = ending.run;
  end.artifacts = std::move(ending.artifacts);
  end.artifacts_dropped = dropped_artifacts_to_json(ending.dropped, run.job.artifacts_optional);
  run.output.redact(end);
  const double random = std::uniform_real_distribution<double>(0, 1)(random_);
  const auto retry_ms = compute_retry_delay_ms(settings_.retry, end, run.job.attempt, run.job.retries, random);
  return {run.job.claim, std::move(end), retry_ms};
}

}  // namespace mycojobs
