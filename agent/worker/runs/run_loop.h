// The thread that owns the sandbox: one epoll for the launcher and for every pipe of a run. JobRuns
// (worker/runs/job_runs.h) decides what happens to runs; the loop passes events to it and performs the actions that it
// returns. While the thread waits, start() runs the step on the thread of the caller, so that no thread has to be woken
// to start a job.
//
//   start, fence, kill, answer --\                 /--> sandbox: launch, kill, fence
//   pipes of runs (job_pipes.h) --> JobRuns::step() --> pipes: requests, answers
//   ends of runs: the sandbox ---/ ^              \--> callbacks: reports, calls of scripts
//                                  '-- results --- strands.h: work that can block
//
// Where a read of a pipe can block (job_pipes.h), the pipes of the run are read by a lane that is reserved for the run.
// The lane may be blocked for as long as the job lives; the end of the run unblocks it.
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
#include "base/thread.h"
#include "base/timer_fd.h"
#include "worker/runs/job_pipes.h"
#include "worker/runs/job_runs.h"
#include "worker/runs/launcher_monitor.h"
#include "worker/runs/run_rate.h"
#include "worker/runs/strands.h"
#include "worker/runs/warm_secrets.h"
#include "worker/worker_types.h"

namespace mycojobs {

class RunLoop {
 public:
  struct Callbacks {  // called on the thread of the loop, or within start(); they must not block or call start()
    std::function<void(RunReport)> post;  // receives a report
    // Receives a call of a script. The reply is passed to answer() later.
    std::function<void(BrokerCall)> ask = [](const BrokerCall&) {};
    std::function<void(RunNumber)> forget = [](RunNumber) {};  // the run needs no more answers
    std::function<void(StartRejected)> cannot_begin = [](const StartRejected&) {};
    std::function<void()> ending = [] {};  // endings() has grown, so slots have become free
    std::function<void()> paused = [] {};  // the result of why_not_ready() has changed
    WarmSecrets::IsCurrent has_secrets = [](Id, const std::vector<Secret>&) { return true; };
  };
  // pace: receives the times at which runs end; must outlive the loop.
  RunLoop(std::unique_ptr<Sandbox>, const Clock&, const WorkerSettings&, RunRate& pace, Callbacks);
  ~RunLoop() { stop(); }
  const Result<void>& started() const { return started_; }  // error: the thread could not be created
  void stop();  // Ends the sandbox and all jobs. Waits for functions that lanes are executing.

  // The following functions are thread-safe. Unknown runs are ignored. If more jobs are started than there are slots,
  // the others wait.
  void start(JobStart);
  void fence(RunNumber run, std::uint64_t fence_boot_ms) { orders_.post(JobRuns::Fence{run, fence_boot_ms}); }
  void kill(RunNumber run, KillReason reason) { orders_.post(JobRuns::Kill{run, reason}); }
  void answer(RunNumber run, std::string reply_json) {
    orders_.post(JobRuns::BrokerAnswered{run, std::move(reply_json)});
  }
  void return_jobs() { orders_.post(JobRuns::ReturnJobs{}); }
  // Returns false while there is no launcher, and for a while after a run could not be started: claim nothing then.
  bool ready() const { return launcher_.may_start(clock_.boot_ms()); }
  std::string why_not_ready() const {
    return launcher_.unavailable_reason(clock_.boot_ms());
  }                                                 // see LauncherWatch::unavailable_reason()
  std::size_t endings() const { return endings_; }  // see JobRuns::endings()
  void wake() { orders_.wake(); }                   // Causes one iteration of the loop.
  const LivenessCounter& pulse() const { return liveness_; }

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
  struct BackgroundRead {
    RunNumber run;
    JobPipe pipe;
    std::string bytes;
  };
  bool may_block_reads(const RunSpec&) const;
  std::string free_reading_lane() const;
  void read_in_background(RunNumber, JobPipes&, JobPipe, const std::string& strand);
  void on_background_read(BackgroundRead&);
  void on_pipe(RunNumber, JobPipes&, JobPipe);
  void read_pipe(RunNumber, JobPipes&, JobPipe);
  void read_rest(RunNumber, JobPipes&);
  void on_end(RunEnded&);
  void abandon_pipes(RunNumber);
  void count(const RunEnded&);
  void trace(const RunEnded&, const JobStart&, std::uint64_t setup_us);
  void set_run_span(RunNumber, const std::optional<std::string>& detail);
  void count_sandboxes();
  void listen_to_output();
  void resume_reading();
  void publish_ending_count();
  void restart_launcher();
  void forget_outdated();
  int timeout_ms() const;
  int timeout_of_runs_ms() const;  // without the pauses of pipes
  void wait(std::unique_lock<std::mutex>&, std::span<epoll_event>& events);
  void wake_in_time();  // Wakes the thread if its wait ends too late.

  // Held during an iteration of the loop and in start(), but not while the thread waits. Guards the members below that
  // are not thread-safe themselves.
  std::mutex turn_;
  std::unique_ptr<Sandbox> sandbox_;
  const Clock& clock_;
  Callbacks callbacks_;
  RunRate& pace_;
  std::shared_ptr<Metrics> metrics_;
  std::shared_ptr<Traces> traces_;
  SandboxCounts counted_;
  Mailbox<JobRuns::Event> orders_;
  Fd epoll_;
  TimerFd alarm_;
  std::uint64_t waits_until_ms_ = 0;  // end of the current wait of the thread, on CLOCK_BOOTTIME
  int watched_sandbox_ = -1;
  WarmSecrets warm_secrets_;
  JobRuns runs_;
  std::unordered_map<RunNumber, JobPipes> pipes_;
  const std::set<Id> folder_contexts_;                        // WorkerSettings::folder_contexts
  std::unordered_map<RunNumber, std::string> reading_lanes_;  // lanes that read the pipes of a run in place of the loop
  std::unordered_map<RunNumber, RunEnded> ends_behind_reads_;  // reported after the last background read of the run
  Mailbox<BackgroundRead> background_reads_;
  struct EndedSpan {
    std::string traceparent, of;
    Span span;
  };
  std::unordered_map<RunNumber, EndedSpan> ended_spans_;  // spans of runs until the end of the job is known
  bool lacks_threads_ = false;                            // a lane has no thread yet
  bool unheard_ = false;                                  // the output of a run is not in the epoll set yet
  std::uint64_t resume_at_ms_ = UINT64_MAX;               // end of the first pause of a pipe
  LauncherWatch launcher_;
  LivenessCounter liveness_;
  StrandPool strands_;
  std::atomic<std::size_t> endings_{0};
  std::atomic<bool> stop_{false};
  Result<void> started_;
  std::thread thread_;
};

}  // namespace mycojobs
