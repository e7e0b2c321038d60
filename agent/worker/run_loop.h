// The thread that owns the sandbox: one epoll for the launcher and for every pipe of a run. What becomes of runs is
// decided by JobRuns (worker/job_runs.h); this tells it what happens here, and does what it answers. While the thread
// waits, whoever brings a job takes its turn and starts it: nobody has to be woken for that.
//
//   start, fence, kill, answer --\                 /--> sandbox: launch, kill, fence
//   pipes of runs (job_pipes.h) --> JobRuns::step() --> pipes: requests, answers
//   ends of runs: the sandbox --/ |                \--> callbacks: reports, questions
//   what was done elsewhere <--lanes.h: what may have to wait for somebody outside
//
// The pipes of a run that can make a read wait (job_pipes.h) are read by a lane that the run has for itself. The lane
// waits as long as the job does; the end of the run frees both.
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

#include "base/alarm.h"
#include "base/fd.h"
#include "base/mailbox.h"
#include "base/pulse.h"
#include "base/thread.h"
#include "mycojobs/clock.h"
#include "worker/job_pipes.h"
#include "worker/job_runs.h"
#include "worker/lanes.h"
#include "worker/launcher_watch.h"
#include "worker/pace.h"
#include "worker/types.h"
#include "worker/warm_secrets.h"

namespace mycojobs {

class RunLoop {
 public:
  struct Callbacks {                                                 // any thread may be behind them
    std::function<void(Outgoing)> post;                              // takes a report
    std::function<void(BrokerCall)> ask = [](const BrokerCall&) {};  // answered with answer(), sooner or later
    std::function<void(RunNumber)> forget = [](RunNumber) {};        // no answer is wanted any more
    std::function<void(CannotBegin)> cannot_begin = [](const CannotBegin&) {};
    std::function<void()> ending = [] {};  // endings() has grown: there are slots that nobody uses
    std::function<void()> paused = [] {};  // why_not_ready() has changed
    WarmSecrets::Has has_secrets = [](Id, const std::vector<SecretValue>&) { return true; };
  };
  // Says in `pace` how fast runs end. It outlives this.
  RunLoop(std::unique_ptr<Sandbox>, const Clock&, const WorkerSettings&, Pace& pace, Callbacks);
  ~RunLoop() { stop(); }
  const Result<void>& started() const { return started_; }  // error: there is no thread for it
  void stop();  // leaves at once: the launcher ends with the sandbox, and every job with it

  // Any thread. Unknown runs are ignored. More than there are slots begin one after the other.
  void start(Start);
  void fence(RunNumber run, std::uint64_t fence_boot_ms) { orders_.post(JobRuns::Fence{run, fence_boot_ms}); }
  void kill(RunNumber run, KillReason reason) { orders_.post(JobRuns::Kill{run, reason}); }
  void answer(RunNumber run, std::string reply_json) { orders_.post(JobRuns::Answer{run, std::move(reply_json)}); }
  void return_jobs() { orders_.post(JobRuns::ReturnJobs{}); }
  // False while no launcher can be had, and for a while after a run could not be started: claim nothing.
  bool ready() const { return launcher_.may_start(clock_.boot_ms()); }
  std::string why_not_ready() const { return launcher_.why_not(clock_.boot_ms()); }  // any thread
  std::size_t endings() const { return endings_; }                                   // any thread: JobRuns::endings()
  void wake() { orders_.wake(); }                                                    // any thread: come round once
  const Pulse& pulse() const { return pulse_; }                                      // any thread

 private:
  void loop();
  void step(JobRuns::Event);
  void perform(JobRuns::Launch&);
  void perform(JobRuns::Speak&);
  void perform(JobRuns::HoldChannel&);
  void perform(JobRuns::PauseReading&);
  void perform(JobRuns::KillRun&);
  void perform(JobRuns::MoveFence&);
  void perform(Outgoing&);
  void perform(BrokerCall&);
  void perform(JobRuns::Over&);
  void perform(JobRuns::CannotLaunch&);
  void perform(JobRuns::SlotsStayBusy&);
  void perform(CannotBegin&);
  void perform(JobRuns::Elsewhere&);
  struct BackgroundRead {
    RunNumber run;
    JobPipe pipe;
    std::string bytes;
  };
  bool may_block_reads(const RunSpec&) const;
  std::string free_reading_lane() const;
  void read_in_background(RunNumber, JobPipes&, JobPipe, const std::string& lane);
  void on_background_read(BackgroundRead&);
  void on_pipe(RunNumber, JobPipes&, JobPipe);
  void read_pipe(RunNumber, JobPipes&, JobPipe);
  void read_rest(RunNumber, JobPipes&);
  void on_end(RunEnded&);
  void count(const RunEnded&);
  void trace(const RunEnded&, const Start&, std::uint64_t setup_us);
  void tell_run(RunNumber, const std::optional<std::string>& detail);
  void count_sandboxes();
  void listen_to_output();
  void resume_reading();
  void tell_endings();
  void revive_sandbox();
  void forget_outdated();
  int timeout_ms() const;
  int timeout_of_runs_ms() const;  // without the pauses of pipes
  void wait(std::unique_lock<std::mutex>&, std::span<epoll_event>& events);
  void wake_in_time();  // the thread, if it waits for too long

  // Held by whoever takes a turn, all but while the thread waits. It guards what follows.
  std::mutex turn_;
  std::unique_ptr<Sandbox> sandbox_;
  const Clock& clock_;
  Callbacks callbacks_;
  Pace& pace_;
  std::shared_ptr<Metrics> metrics_;
  std::shared_ptr<Traces> traces_;
  SandboxCounts counted_;
  Mailbox<JobRuns::Event> orders_;
  Fd epoll_;
  Alarm alarm_;
  std::uint64_t waits_until_ms_ = 0;  // the thread, on the clock's boot time
  int watched_sandbox_ = -1;
  WarmSecrets warm_secrets_;
  JobRuns runs_;
  std::unordered_map<RunNumber, JobPipes> pipes_;
  const std::set<Id> folder_contexts_;                         // of WorkerSettings
  std::unordered_map<RunNumber, std::string> reading_lanes_;   // of runs whose pipes the loop does not read
  std::unordered_map<RunNumber, RunEnded> ends_behind_reads_;  // reported after the last background read of the run
  Mailbox<BackgroundRead> background_reads_;
  struct EndedSpan {
    std::string traceparent, of;
    Span span;
  };
  std::unordered_map<RunNumber, EndedSpan> ended_spans_;  // until their jobs' ends are known
  bool lacks_threads_ = false;                            // a lane waits for its thread
  bool unheard_ = false;                                  // there is a run whose output is not waited for yet
  std::uint64_t resume_at_ms_ = UINT64_MAX;               // the first pause of a pipe is over
  LauncherWatch launcher_;
  Pulse pulse_;
  Lanes lanes_;
  std::atomic<std::size_t> endings_{0};
  std::atomic<bool> stop_{false};
  Result<void> started_;
  std::thread thread_;
};

}  // namespace mycojobs
