// What a run has written on its way into the log, and its end.
#include <unistd.h>

#include <algorithm>
#include <iterator>

#include "base/log.h"
#include "worker/run_loop.h"

namespace mycojobs {
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
