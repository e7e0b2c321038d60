#include "worker/runs/job_runs.h"

#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "base/shortage.h"
#include "model/trace_context.h"
#include "worker/runs/object_call.h"
#include "worker/runs/strands.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kCheckStrandsMs = 500;
constexpr const char* kWhyGivenBack = "cancelled before it began";

Error hung(const std::string& strand) {
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

JobRuns::JobRuns(Settings settings, std::uint64_t seed) : settings_(settings), chance_(seed) {}

std::vector<JobRuns::Action> JobRuns::step(Event event, CurrentTime now) {
  now_ = now;
  std::visit([this](auto& each) { on(each); }, event);
  return std::exchange(actions_, {});
}

JobRuns::Run* JobRuns::find(RunNumber number) {
  const auto found = runs_.find(number);
  return found == runs_.end() ? nullptr : &found->second;
}

const JobStart* JobRuns::job_of(RunNumber number) const {
  const auto found = runs_.find(number);
  return found == runs_.end() ? nullptr : &found->second.job;
}

std::string JobRuns::next_channel_bytes(RunNumber number) {
  Run* run = find(number);
  return run == nullptr || run->between ? std::string() : run->job.conversation->take_output();
}

// A coarse interval: each waiting job or line is checked a little later than at its exact time, so that one wake-up
// serves all of them.
std::optional<std::uint64_t> JobRuns::next_wakeup_ms() const {
  if (waiting_.empty() && !partials_) return beginnings_.empty() ? std::nullopt : std::optional(kCheckStrandsMs);
  return std::min(RunOutput::kPartialMs, PrefetchedJobs::kTimeoutMs);
}

// Start of jobs.

void JobRuns::on(JobStart& start) {
  if (waiting_.empty() && has_slot()) return begin(std::move(start));
  waiting_.add(std::move(start), now_.boot_ms);
}

void JobRuns::on(TimePassed& /*time*/) {
  if (!beginnings_.empty()) release_hanging_jobs();
  start_waiting_jobs();
  if (partials_) flush_partials();
}

void JobRuns::start_waiting_jobs() {
  while (!waiting_.empty() && has_slot()) begin(waiting_.next(now_.boot_ms));
  if (!waiting_.is_overdue(now_.boot_ms)) return;
  emit_action(ClaimBackoff{});
  release_waiting_jobs("the slots of its runner stay busy");
}

void JobRuns::begin(JobStart start) {
  if (start.begin && beginnings_.hangs(start.strand, now_.boot_ms)) return reject_start(start, hung(start.strand));
  const RunNumber number = start.run;
  const std::uint64_t output_bytes = start.output_bytes;
  auto redactor = start.redactor;
  if (redactor && start.artifacts) start.artifacts->set_redactor(redactor);
  const ReadBudget reading(settings_.reading, redactor != nullptr, start.calls_objects);
  const auto place =
      runs_.try_emplace(number, Run{std::move(start), RunOutput(output_bytes, std::move(redactor)), reading});
  Run& run = place.first->second;
  run.fence_boot_ms = run.job.specs.front().fence_boot_ms;
  if (!run.job.begin) return launch(number, run);
  begin_in_background(number, run);
}

void JobRuns::begin_in_background(RunNumber number, Run& run) {
  const std::string& strand = run.job.strand;
  run.beginning = std::make_shared<decltype(JobStart::begin)>(std::move(run.job.begin));
  run.asked_boot_ms = now_.boot_ms;
  beginnings_.request_sent(strand, now_.boot_ms);
  emit_action(
      RunInBackground{strand, [number, strand, waiting = std::weak_ptr(run.beginning), artifacts = run.job.artifacts] {
                        const auto begin = waiting.lock();
                        return Event(PrepareFinished{number, strand, artifacts,
                                                     begin ? (*begin)() : fail(Code::conflict, kWhyGivenBack)});
                      }});
}

void JobRuns::on(PrepareFinished& prepared) {
  beginnings_.request_answered(prepared.strand, now_.boot_ms);
  Run* run = find(prepared.run);
  if (run == nullptr) return;  // the job was killed or released while its conversation was created
  run->beginning.reset();
  if (prepared.conversation) {
    run->job.conversation = std::move(*prepared.conversation);
    run->job.extend_deadline(now_.boot_ms - run->asked_boot_ms);
    return launch(prepared.run, *run);
  }
  reject_start(run->job, std::move(prepared.conversation).error());
  runs_.erase(prepared.run);
}

// Releases the jobs of lanes that do not answer, since another agent may be able to run them: jobs that have not begun,
// and jobs between two stages. New jobs of such a lane are refused until the lane answers.
void JobRuns::release_hanging_jobs() {
  for (auto each = runs_.begin(); each != runs_.end();) {
    auto& [number, run] = *each++;
    const JobStart& job = run.job;
    if ((job.conversation && !run.between) || !beginnings_.hangs(job.strand, now_.boot_ms)) continue;
    if (run.between) {
      drop(number, run, hung(job.strand).message);
    } else {
      reject_start(job, hung(job.strand));
      runs_.erase(number);
    }
  }
}

void JobRuns::reject_start(const JobStart& job, Error error) {
  const bool is_of_caller = job.executor != nullptr && job.executor->is_paused(job.context, job.caller);
  emit_action(StartRejected{job.run, job.claim, job.queue, job.attempt, job.retries, std::move(error), is_of_caller});
}

// Starts the first or the next stage.
void JobRuns::launch(RunNumber number, Run& run) {
  run.stage = run.job.conversation->stage();
  run.held = false;
  RunSpec spec = run.job.specs.at(run.stage);
  spec.run = sandbox_run(number, run.stage);
  spec.fence_boot_ms = run.fence_boot_ms;
  // A stage that begins after the deadline gets the shortest time limit, since 0 means no limit.
  if (const std::uint64_t deadline = run.job.deadline_boot_ms; deadline > 0) {
    const std::uint64_t left = deadline > now_.boot_ms ? deadline - now_.boot_ms : 1;
    spec.limits.wall_ms = spec.limits.wall_ms == 0 ? left : std::min(spec.limits.wall_ms, left);
  }
  emit_action(Launch{number, std::move(spec), run.job.conversation->attachment(), run.job.calls_objects});
}

void JobRuns::on(RunLaunched& launched) {
  Run* run = find(launched.run);
  if (run == nullptr) return;
  run->began = true;
  if (run->killed) return kill_run(launched.run, *run, *run->killed);  // between two stages: no request is sent
  emit_action(WriteChannel{launched.run});
}

void JobRuns::on(LaunchFailed& failed) {
  Run* run = find(failed.run);
  if (run == nullptr) return;
  if (run->began) {  // the launcher died between two stages
    return drop(failed.run, *run, std::move(failed.why));
  }
  // No process of the job has run, so no delivery is counted.
  release_job(run->job, failed.why);
  runs_.erase(failed.run);
  emit_action(LaunchBackoff{std::move(failed.why)});
}

void JobRuns::reap_run(RunNumber number) {
  runs_.erase(number);
  emit_action(RunReaped{number});
}

// Releases the job and deletes its artifacts. Deleting can take as long as writing, so it is done on the lane of the
// disk.
void JobRuns::drop(RunNumber number, Run& run, std::string why, bool counted) {
  close_output(number, run);
  release(number, run.job.claim, std::move(why), counted);
  if (const auto& artifacts = run.job.artifacts; artifacts && !artifacts->is_untouched())
    emit_action(RunInBackground{disk_strand_name(run.job.context),
                                [gone = artifacts->abort_write()] { return Event(TimePassed{}); }});
  reap_run(number);
}

// Release of jobs to their queues. release() is for jobs that may have run, and logs the reason.

void JobRuns::release(RunNumber number, const ClaimRef& claim, std::string reason, bool ran) {
  log(LogLevel::warn, "worker", "{}: back to its queue: {}", in_trace(claim.job_key, claim.traceparent), reason);
  emit_action(RunReport{number, Release{claim, std::move(reason), ran}, true});
}

// Releases a job that has not begun, without counting a delivery. If the job is to be cancelled, the store ends it.
void JobRuns::release_job(const JobStart& job, const std::string& why) {
  emit_action(RunReport{job.run, Release{job.claim, why, false}, true});
}

void JobRuns::release_waiting_jobs(const std::string& why) {
  while (const auto job = waiting_.take_last()) release_job(*job, why);
}

// Leases and kills.

void JobRuns::on(Fence& fence) {
  Run* run = find(fence.run);
  if (run == nullptr) return waiting_.fence(fence.run, fence.boot_ms);
  run->fence_boot_ms = fence.boot_ms;
  if (run->job.conversation) emit_action(MoveFence{sandbox_run(fence.run, run->stage), fence.boot_ms});
}

void JobRuns::on(Kill& kill) {
  if (Run* run = find(kill.run)) {
    kill_run(kill.run, *run, kill.reason);
  } else if (const auto job = waiting_.take(kill.run)) {
    release_job(*job, kWhyGivenBack);
  }
}

// A job that is already being cancelled is not marked as returned, so it ends as cancelled.
void JobRuns::on(ReturnJobs& /*all*/) {
  for (auto run = runs_.begin(); run != runs_.end();) {
    const auto each = run++;  // kill_run() erases a job that has not begun
    each->second.returned = !each->second.killed;
    kill_run(each->first, each->second, KillReason::cancelled);
  }
  release_waiting_jobs("its agent stops");
}

void JobRuns::kill_run(RunNumber number, Run& run, KillReason reason) {
  if (!run.job.conversation) {  // do not wait for `begin`, which may be blocked on its lane
    release_job(run.job, kWhyGivenBack);
    runs_.erase(number);
    return;
  }
  if (!run.killed || (run.between && reason == KillReason::fenced)) run.killed = reason;
  if (run.between) return;  // on(RunLaunched) kills the next stage
  emit_action(
      KillRun{sandbox_run(number, run.stage), reason, reason == KillReason::cancelled ? settings_.grace_ms : 0});
}

// Output, calls and answers of runs.

void JobRuns::on(BytesReceived& read) {
  Run* run = find(read.run);
  if (run == nullptr || run->between) return;
  if (read.pipe == JobPipe::channel) return process_channel(read.run, *run, read.bytes);
  run->reading.charge(read.pipe, read.bytes.size(), 0, now_.boot_ms);
  const LogStream stream = read.pipe == JobPipe::out ? LogStream::out : LogStream::err;
  const std::string_view clean = run->output.feed(stream, read.bytes, now_.unix_ms);
  Conversation& conversation = *run->job.conversation;
  stream == LogStream::err ? conversation.on_stderr(clean) : conversation.on_stdout(clean);
}

void JobRuns::process_channel(RunNumber number, Run& run, std::string_view bytes) {
  Conversation& conversation = *run.job.conversation;
  conversation.feed(bytes);
  const std::uint64_t frames = conversation.frames();
  run.reading.charge(JobPipe::channel, bytes.size(), frames - std::min(frames, run.frames), now_.boot_ms);
  run.frames = frames;
  note(run, conversation.take_notes());
  write_artifacts(number, run);
  bool refused = false;
  for (std::string& call : conversation.take_calls()) {
    refused = refused || !run.job.calls_objects;
    if (run.job.calls_objects) {
      emit_action(BrokerCall{number, run.job.context, run.job.caller, run.job.claim, std::move(call)});
    } else {  // not parsed: the script host of this executor makes no calls, so the call is forged
      conversation.answer(error_answer("null", {Code::denied, "only scripts of the type osis have the object store"}));
    }
  }
  if (refused) emit_action(WriteChannel{number});
}

// Posts the queued artifacts to the lane of the disk. If the disk hangs and the queue is full, the channel is not read,
// and the job blocks as soon as the channel is full.
void JobRuns::write_artifacts(RunNumber number, Run& run) {
  if (!run.job.artifacts) return;
  ArtifactQueue& artifacts = *run.job.artifacts;
  if (auto work = artifacts.next())
    emit_action(RunInBackground{disk_strand_name(run.job.context), [number, work = std::move(*work)] {
                                  return Event(ArtifactsWritten{number, work()});
                                }});
  if (const bool full = artifacts.is_full(); full != std::exchange(run.held, full))
    emit_action(PauseChannel{number, full});
}

void JobRuns::on(ArtifactsWritten& written) {
  Run* run = find(written.run);
  const auto ending = endings_.find(written.run);
  if (run == nullptr && ending == endings_.end()) return;
  Run& of = run != nullptr ? *run : ending->second.run;
  of.job.artifacts->done(written.what);
  note(of, written.what.notes);
  if (run == nullptr) return;  // the work of finish() writes the rest
  write_artifacts(written.run, of);
  pass_on_output(written.run, of);
}

void JobRuns::on(BrokerAnswered& answer) {
  Run* run = find(answer.run);
  if (run == nullptr || run->between) return;  // the stage that asked has ended
  run->job.conversation->answer(answer.json);
  emit_action(WriteChannel{answer.run});
}

// The output limit is checked once for each iteration of the run loop. A job can exceed the limit by the bytes that one
// iteration reads, plus the content of the pipes.
void JobRuns::on(PipesDrained& read) {
  Run* run = find(read.run);
  if (run == nullptr) return;
  if (run->job.output_kill && run->output.bytes() > run->job.output_bytes && !std::exchange(run->output_over, true))
    kill_run(read.run, *run, KillReason::output_limit);
  pass_on_output(read.run, *run);
  if (const std::uint64_t at = run->reading.resume_at_ms(read.pipe, now_.boot_ms); at > 0)
    emit_action(PauseReading{read.run, read.pipe, at});
}

void JobRuns::pass_on_output(RunNumber number, Run& run) {
  for (std::vector<Log>& lines : run.output.take())
    emit_action(RunReport{number, LogAppend{run.job.claim, std::move(lines)}, false});
  partials_ = partials_ || run.output.has_partial();
}

void JobRuns::flush_partials() {
  partials_ = false;
  for (auto& [number, run] : runs_) {
    if (run.output.flush_partial(now_.boot_ms, now_.unix_ms)) pass_on_output(number, run);
    partials_ = partials_ || run.output.has_partial();
  }
}

// The end of runs and jobs.

void JobRuns::on(RunEnded& ended) {
  const RunNumber number = number_of(ended.run);
  Run* run = find(number);
  if (run == nullptr) return;
  Outcome& outcome = ended.outcome;
  if (outcome.status == RunStatus::unkillable) return report_unkillable(number, *run, outcome.reason);
  for (const auto& note : outcome.notes) run->output.note(note, now_.unix_ms);
  count_output(*run, outcome);
  if (run->returned && (outcome.status == RunStatus::cancelled || outcome.status == RunStatus::lost))
    return drop(number, *run, "its agent stops", false);
  if (outcome.status != RunStatus::lost) return advance_stage(number, *run, std::move(outcome));
  if (outcome.unstarted && outcome.setup_error) return return_for_shortage(number, *run, outcome);
  if (outcome.unstarted && run->stage == 0) {
    reject_start(run->job, {Code::unavailable, std::move(outcome.reason)});
    return reap_run(number);
  }
  drop(number, *run, std::move(outcome.reason));
}

// The host lacks a resource that other hosts may have. This is not a fault of the job in any stage, so no delivery is
// counted.
void JobRuns::return_for_shortage(RunNumber number, Run& run, const Outcome& outcome) {
  if (run.stage == 0) {
    release_job(run.job, outcome.reason);
    reap_run(number);
  } else {
    drop(number, run, outcome.reason, false);
  }
  const ResourceShortage* shortage = find_shortage(outcome.setup_error->error);
  emit_action(LaunchBackoff{shortage == nullptr ? outcome.reason : describe_shortage(*shortage)});
}

// Moving from stage to stage can read and write files, so a conversation with a lane is called there.
void JobRuns::advance_stage(RunNumber number, Run& run, Outcome outcome) {
  const auto& conversation = run.job.conversation;
  const bool is_last = run.stage + 1 >= run.job.specs.size();
  if (is_last || run.job.strand.empty() || outcome.status != RunStatus::ok) {
    StageAdvanced went{number, outcome, conversation->next_stage(outcome)};
    return on(went);
  }
  run.between = true;
  const std::string& strand = run.job.strand;
  beginnings_.request_sent(strand, now_.boot_ms);
  emit_action(RunInBackground{strand, [number, strand, conversation, outcome = std::move(outcome)] {
                                const bool goes_on = conversation->next_stage(outcome);
                                return Event(StageAdvanced{number, outcome, goes_on, strand});
                              }});
}

void JobRuns::on(StageAdvanced& went) {
  if (!went.strand.empty()) beginnings_.request_answered(went.strand, now_.boot_ms);
  Run* run = find(went.run);
  if (run == nullptr) return;
  run->between = false;
  if (went.on) return launch(went.run, *run);
  EndedRun& ending =
      endings_.try_emplace(went.run, EndedRun{std::move(*run), std::move(went.outcome), {}}).first->second;
  reap_run(went.run);
  store_artifacts(went.run, ending);
}

void JobRuns::store_artifacts(RunNumber number, EndedRun& ending) {
  if (const auto& artifacts = ending.run.job.artifacts; artifacts && !artifacts->is_untouched()) {
    return emit_action(RunInBackground{disk_strand_name(ending.run.job.context), [number, work = artifacts->finish()] {
                                         return Event(ArtifactsStored{number, work()});
                                       }});
  }
  ArtifactsStored none{number, {}};
  on(none);
}

void JobRuns::on(ArtifactsStored& kept) {
  const auto found = endings_.find(kept.run);
  if (found == endings_.end()) return;
  EndedRun& ending = found->second;
  ending.artifacts = std::move(kept.what.artifacts);
  ending.dropped = std::move(kept.what.dropped);
  note(ending.run, kept.what.notes);
  close_output(kept.run, ending.run);
  count_output(ending.run, ending.outcome);
  // A process chooses its own name, so the name can contain a secret; it is stored in the receipt too.
  if (auto& violation = ending.outcome.violation) violation->comm = ending.run.output.redact(violation->comm);
  finish(kept.run, ending);
}

void JobRuns::finish(RunNumber number, EndedRun& ending) {
  const JobStart& job = ending.run.job;
  if (job.finish_waits) {
    return emit_action(RunInBackground{job.strand, [number, conversation = job.conversation, outcome = ending.outcome] {
                                         return Event(EndComputed{number, conversation->finish(outcome)});
                                       }});
  }
  EndComputed finished{number, job.conversation->finish(ending.outcome)};
  on(finished);
}

void JobRuns::on(EndComputed& finished) {
  const auto found = endings_.find(finished.run);
  if (found == endings_.end()) return;
  emit_action(RunReport{finished.run, end_of(found->second, std::move(finished.end)), true});
  endings_.erase(found);
}

void JobRuns::count_output(const Run& run, Outcome& outcome) {
  outcome.usage.stdout_bytes = run.output.bytes(LogStream::out);
  outcome.usage.stderr_bytes = run.output.bytes(LogStream::err);
  apply_output_limit(outcome, run.job.output_kill ? run.job.output_bytes : 0);
}

// Reports an unkillable run, once. This is not the end of the job, even if the job was cancelled or has exceeded its
// time limit: lease and slot are kept until the run ends. The reason contains names that processes have chosen, so it
// is redacted.
void JobRuns::report_unkillable(RunNumber number, Run& run, const std::string& reason) {
  if (std::exchange(run.withheld, true)) return;
  log(LogLevel::error, "worker",
      "{}: unkillable on host {}: {}. Its slot is withheld. Check what the process waits for (a disk, a network file "
      "system, a debugger) or restart the host",
      in_trace(run.job.claim.job_key, run.job.claim.traceparent), host_name(), run.output.redact(reason));
  emit_action(RunReport{number, DetailUpdate{run.job.claim, "unkillable"}, false});
}

void JobRuns::close_output(RunNumber number, Run& run) {
  run.output.close(now_.unix_ms);
  pass_on_output(number, run);
}

void JobRuns::note(Run& run, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) run.output.note(line, now_.unix_ms);
}

EndReport JobRuns::end_of(EndedRun& ending, JobEnd end) {
  const Run& run = ending.run;
  end.artifacts = std::move(ending.artifacts);
  end.artifacts_dropped = dropped_json(ending.dropped, run.job.artifacts_optional);
  run.output.redact(end);
  const double chance = std::uniform_real_distribution<double>(0, 1)(chance_);
  const auto again = retry_after(settings_.retry, end, run.job.attempt, run.job.retries, chance);
  return {run.job.claim, std::move(end), again};
}

}  // namespace mycojobs
