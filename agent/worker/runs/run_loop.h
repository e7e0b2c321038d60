// The thread that owns the sandbox: one epoll for the launcher and for every pipe of a run. JobRuns
// (worker/runs/job_runs.h) decides what happens to runs; the loop passes events to it and performs the actions that it
// returns. While the thread waits, start() runs the step on the thread of the caller, so that no thread has to be woken
// to start a job.
//
//   start, fence, kill, answer --\                 /--> sandbox: launch, kill, fence
//   pipes of runs (job_pipes.h) --> JobRuns::step() --> pipes: requests, answers
//   ends of runs: the sandbox ---/ ^              \--> callbacks: reports, calls of scripts
//                                  '-- results --- strands: work that can block
//
// Where a read of a pipe can block (job_pipes.h), the pipes of the run are read by a strand that is reserved for the
// run. The strand may be blocked for as long as the job lives; the end of the run unblocks the strand.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/liveness_counter.h"
#include "base/mailbox.h"
#include "base/strands/mount_table.h"
#include "base/strands/strand_pool.h"
#include "base/thread.h"
#include "base/timer_fd.h"
#include "worker/runs/job_pipes.h"
#include "worker/runs/job_runs.h"
#include "worker/runs/launcher_monitor.h"
#include "worker/runs/run_rate.h"
#include "worker/runs/warm_secrets.h"
#include "worker/worker_types.h"

namespace mycojobs {

class RunLoop {
 public:
  struct Callbacks {  // called on the thread of the loop, or within start(); they must not block or call start()
    std::function<void(RunReport)> on_report;  // receives a report
    // Receives a call of a script. The reply is later passed to answer().
    std::function<void(BrokerCall)> on_call = [](const BrokerCall&) {};
    std::function<void(RunNumber)> on_run_reaped = [](RunNumber) {};  // the run needs no more answers
    std::function<void(StartRejected)> on_start_rejected = [](const StartRejected&) {};
    std::function<void()> on_slots_freed = [] {};        // ending_count() has grown, so slots have become free
    std::function<void()> on_readiness_changed = [] {};  // the result of unready_reason() has changed
    WarmSecrets::IsCurrent has_current_secrets = [](Id, const std::vector<Secret>&) { return true; };
    // Fetches inputs from other runners. on_end is called once, by any thread.
    using OnInputsEnd = std::function<void(InputsEnd)>;
    std::function<void(RunNumber, std::vector<MissingInput>, OnInputsEnd on_end)> fetch_inputs =
        [](RunNumber, const std::vector<MissingInput>&, const OnInputsEnd& on_end) {
          on_end({FetchStatus::failed, 0, "this agent fetches no files"});
        };
    std::function<void(RunNumber)> cancel_fetch = [](RunNumber) {};  // the files are not needed any more
  };
  // run_rate: receives the times at which runs end; must outlive the loop.
  RunLoop(std::unique_ptr<Sandbox>, const Clock&, const WorkerSettings&, RunRate& run_rate, Callbacks);
  ~RunLoop() { stop(); }
  const Result<void>& started() const { return started_; }  // an error if the thread could not be created
  void stop();  // Ends the sandbox and all jobs. Waits for functions that strands are executing.

  // The following functions are thread-safe. Unknown runs are ignored. If more jobs are started than there are slots,
  // the later jobs wait.
  void start(JobStart);
  void fence(RunNumber run, std::uint64_t fence_boot_ms) { posted_events_.post(JobRuns::Fence{run, fence_boot_ms}); }
  void kill(RunNumber run, KillReason reason) { posted_events_.post(JobRuns::Kill{run, reason}); }
  void answer(RunNumber run, std::string reply_json) {
    posted_events_.post(JobRuns::BrokerAnswered{run, std::move(reply_json)});
  }
  void return_jobs() { posted_events_.post(JobRuns::ReturnJobs{}); }
  // Returns false while there is no launcher, and for a while after a run could not be started. No jobs should be
  // claimed then.
  bool can_start_runs() const { return launcher_.can_start_runs(clock_.boot_ms()); }
  // See LauncherMonitor::unavailable_reason().
  std::string unready_reason() const { return launcher_.unavailable_reason(clock_.boot_ms()); }
  std::size_t ending_count() const { return ending_count_; }  // see JobRuns::ending_count()
  void wake() { posted_events_.wake(); }                      // Causes one iteration of the loop.
  const LivenessCounter& liveness() const { return liveness_; }

 private:
  void loop();
  void step(JobRuns::Event);
  void perform(JobRuns::Launch&);
  void perform(JobRuns::WriteChannel&);
  void perform(JobRuns::PauseChannel&);
  void perform(JobRuns::PauseReading&);
  void perform(JobRuns::KillRun&);
  void perform(JobRuns::MoveFence&);
  void perform(RunReport&);
  void perform(BrokerCall&);
  void perform(JobRuns::RunReaped&);
  void perform(JobRuns::LaunchBackoff&);
  void perform(JobRuns::ClaimBackoff&);
  void perform(StartRejected&);
  void perform(JobRuns::RunInBackground&);
  void perform(JobRuns::FetchInputs&);
  void perform(JobRuns::CancelFetch&);
  struct BackgroundRead {
    RunNumber run;
    JobPipe pipe;
    std::string bytes;
  };
  void post_to_strand(const std::string& strand, StrandPool::Work);
  std::string find_strand_group(const std::string& strand);
  bool can_reads_block(const RunSpec&) const;
  std::string find_free_reading_strand() const;
  void read_in_background(RunNumber, JobPipes&, JobPipe, const std::string& strand);
  void on_background_read(BackgroundRead&);
  void on_pipe(RunNumber, JobPipes&, JobPipe);
  void read_pipe(RunNumber, JobPipes&, JobPipe);
  void drain_pipes(RunNumber, JobPipes&);
  void on_run_ended(RunEnded&);
  void abandon_pipes(RunNumber);
  void record_metrics(const RunEnded&);
  void record_span(const RunEnded&, const JobStart&, std::uint64_t setup_us);
  void send_run_span(RunNumber, const std::optional<std::string>& detail);
  void publish_sandbox_counts();
  void watch_output();
  void resume_reading();
  void publish_ending_count();
  void restart_launcher();
  void end_outdated_warm_processes();
  int timeout_ms() const;
  int runs_timeout_ms() const;  // without the pauses of pipes
  void wait(std::unique_lock<std::mutex>&, std::span<epoll_event>& events);
  void shorten_wait();  // Ends the wait of the thread earlier if needed.

  // Held during an iteration of the loop and in start(), but not while the thread waits. Guards the members below that
  // are not thread-safe themselves.
  std::mutex step_mutex_;
  std::unique_ptr<Sandbox> sandbox_;
  const Clock& clock_;
  Callbacks callbacks_;
  RunRate& run_rate_;
  std::shared_ptr<Metrics> metrics_;
  std::shared_ptr<Traces> traces_;
  SandboxCounts published_counts_;
  Mailbox<JobRuns::Event> posted_events_;
  Fd epoll_;
  TimerFd timer_;
  std::uint64_t wait_end_ms_ = 0;  // end of the current wait of the thread, on CLOCK_BOOTTIME
  int watched_sandbox_fd_ = -1;
  WarmSecrets warm_secrets_;
  JobRuns runs_;
  std::unordered_map<RunNumber, JobPipes> pipes_;
  const std::set<Id> folder_contexts_;  // WorkerSettings::folder_contexts
  const std::string state_dir_;         // WorkerSettings::state_dir
  // Names of the strands that read the pipes of a run in place of the loop.
  std::unordered_map<RunNumber, std::string> reading_strands_;
  // Ends that are reported after the last background read of the run.
  std::unordered_map<RunNumber, RunEnded> deferred_ends_;
  Mailbox<BackgroundRead> background_reads_;
  struct EndedSpan {
    std::string traceparent, span_key;
    Span span;
  };
  std::unordered_map<RunNumber, EndedSpan> ended_spans_;  // spans of runs until the end of the job is known
  bool has_missing_threads_ = false;                      // whether a strand waits for a thread
  bool has_unwatched_output_ = false;                     // whether the output of a run is not in the epoll set yet
  std::uint64_t resume_at_ms_ = UINT64_MAX;               // end of the first pause of a pipe
  LauncherMonitor launcher_;
  LivenessCounter liveness_;
  MountTable mounts_;
  StrandPool strands_;
  std::atomic<std::size_t> ending_count_{0};
  std::atomic<bool> stop_{false};
  Result<void> started_;
  std::thread thread_;
};

}  // namespace mycojobs
