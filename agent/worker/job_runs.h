// What happens to jobs between their claim and their end: which begins, what it is sent and what it answers, which is
// killed, whether another stage follows, what is reported. No thread, no descriptor, no clock: step() takes what has
// happened and the moment, and answers what is to be done.
//
//   Start --> waits for a slot --Launch--> Launched --Bytes, AllRead, Answer--> RunEnded --> Over, Report
//     ^          |    (waiting_jobs.h)       |  ^             |                    |  '--> Report `unkillable`: goes on
//   intake       |                           |  '--Fence, Kill|                    '--go_on()--Launch--> the next stage
//                '--> Report: given back     '--> LaunchFailed: given back
//
// What may have to wait for somebody outside is asked for by Elsewhere, on a thread of its own: to begin a job (Begun;
// before the Launch; it can be killed meanwhile, and goes back if nobody answers: beginnings.h), to write what it
// leaves (Written; while it runs, and its channel is held if that waits for too long), to get from a stage to the next
// (WentOn), to keep what it left (Kept) and to read its end (Finished; between Over and the Report).
//
// Whoever drives it (worker/run_loop.h: the sandbox, the pipes, a thread) does what is answered at once, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "domain/retry.h"
#include "worker/beginnings.h"
#include "worker/output.h"
#include "worker/read_budget.h"
#include "worker/types.h"
#include "worker/waiting_jobs.h"

namespace mycojobs {

class JobRuns {
 public:
  struct Settings {
    std::uint32_t slots = 1;
    std::uint32_t grace_ms = 10000;  // between TERM and KILL
    RetryPolicy retry;
    ReadBudget::Settings reading = {};
  };
  struct Now {
    std::uint64_t boot_ms = 0;  // deadlines, waits
    std::uint64_t unix_ms = 0;  // of lines in logs
  };

  // What has happened. Runs that are not known are passed over; Start begins one.
  struct Fence {  // the run's lease was renewed
    RunNumber run;
    std::uint64_t boot_ms;
  };
  struct Kill {
    RunNumber run;
    KillReason reason;
  };
  struct ReturnJobs {};  // the agent leaves: all jobs are stopped and go back to their queues, without a delivery
  struct Answer {        // to an Ask
    RunNumber run;
    std::string json;
  };
  struct Launched {
    RunNumber run;
  };
  struct LaunchFailed {
    RunNumber run;
    std::string why;
  };
  struct Bytes {  // from one of its pipes
    RunNumber run;
    JobPipe pipe;
    std::string_view bytes;
  };
  struct Begun {  // what Start::begin answered
    RunNumber run;
    std::string lane;
    std::shared_ptr<ArtifactQueue> artifacts;  // that the conversation writes into
    Result<std::unique_ptr<Conversation>> conversation;
  };
  struct Written {
    RunNumber run;
    ArtifactQueue::Written what;
  };
  struct WentOn {
    RunNumber run;
    Outcome outcome;        // of the stage before
    bool on;                // false: it was the last one
    std::string lane = {};  // on which that was found out
  };
  struct Kept {
    RunNumber run;
    ArtifactQueue::Kept what;
  };
  struct Finished {
    RunNumber run;
    JobEnd end;
  };
  struct AllRead {  // a pipe was read until it was empty, or up to the limit of one iteration
    RunNumber run;
    JobPipe pipe = JobPipe::out;
  };
  struct Time {};  // or nothing but: to be given whenever other events have been, and when next_look_ms() is over
  // RunEnded: Bytes has had all of its pipes before.
  using Event = std::variant<Start, Fence, Kill, ReturnJobs, Answer, Launched, LaunchFailed, Bytes, AllRead, RunEnded,
                             Time, Begun, Written, WentOn, Kept, Finished>;

  // What is to be done. Runs of the sandbox have numbers of their own (RunSpec::run).
  struct Launch {  // Launched or LaunchFailed is to follow
    RunNumber run;
    RunSpec spec;
    int attachment;  // of what it is sent first (Conversation::attachment)
    bool converses;  // its calls are answered
  };
  struct Speak {  // say_next() may have something for its channel
    RunNumber run;
  };
  struct HoldChannel {  // while the run goes on; what is in the channel at its end is read all the same
    RunNumber run;
    bool hold;
  };
  struct PauseReading {  // stops reading a pipe of a run until a time
    RunNumber run;
    JobPipe pipe;
    std::uint64_t until_boot_ms;
  };
  struct KillRun {
    std::uint64_t sandbox_run;
    KillReason reason;
    std::uint32_t grace_ms;
  };
  struct MoveFence {
    std::uint64_t sandbox_run;
    std::uint64_t boot_ms;
  };
  struct Elsewhere {  // `work`, on this lane (worker/lanes.h); what it gives is an event for us
    std::string lane;
    std::function<Event()> work;
  };
  struct Over {  // no process of it is left, and nobody waits for an answer to it
    RunNumber run;
  };
  struct CannotLaunch {  // nothing should be claimed for a while
    std::string why;
  };
  struct SlotsStayBusy {};  // jobs that were claimed ahead went back: no more should be for a while
  using Action = std::variant<Launch, Speak, HoldChannel, PauseReading, KillRun, MoveFence, Outgoing, BrokerCall, Over,
                              CannotLaunch, SlotsStayBusy, CannotBegin, Elsewhere>;

  JobRuns(Settings, std::uint64_t seed);  // of the pauses before retries

  std::vector<Action> step(Event, Now);
  // What goes down the run's channel once all before it has gone; empty: nothing now.
  std::string say_next(RunNumber);
  // Jobs that have no process any more, and wait for others until their end can be reported.
  std::size_t endings() const { return endings_.size(); }
  const Start* job_of(RunNumber) const;  // null: it has no slot
  // How soon Time has something to do without other events; nothing: never.
  std::optional<std::uint64_t> next_look_ms() const;

  // The run that a run of the sandbox belongs to: each stage is one of its own there.
  static RunNumber number_of(std::uint64_t sandbox_run) {
    return sandbox_run & ((std::uint64_t{1} << kStageShift) - 1);
  }
  static std::size_t stage_of(std::uint64_t sandbox_run) { return sandbox_run >> kStageShift; }

 private:
  static constexpr unsigned kStageShift = 56;
  struct Run {
    Start job;
    RunOutput output;
    ReadBudget reading;
    std::uint64_t frames = 0;  // of its conversation, charged to `reading`
    std::size_t stage = 0;
    bool began = false;                                      // a stage of it has
    std::uint64_t fence_boot_ms = 0;                         // the last one
    std::shared_ptr<decltype(Start::begin)> beginning = {};  // on a lane, which passes it over if the run has gone
    std::uint64_t asked_boot_ms = 0;                         // when it was handed over
    std::optional<KillReason> killed = {};                   // somebody wants it to end
    bool returned = false;                                   // it goes back to its queue once it has been stopped
    bool output_over = false;                                // it wrote more than it may
    bool withheld = false;                                   // unkillable, and reported
    bool held = false;                                       // its channel: what it leaves waits for the disk
    bool between = false;  // two stages: its conversation is another thread's, and it has no process
  };
  struct Ending {  // no process of it is left, and its end is not reported yet
    Run run;
    Outcome outcome;
    std::string artifacts;
    std::vector<DroppedArtifact> dropped = {};
  };
  static std::uint64_t sandbox_run(RunNumber run, std::size_t stage) {
    return run | std::uint64_t{stage} << kStageShift;
  }
  bool has_slot() const { return runs_.size() < settings_.slots; }
  Run* find(RunNumber);

  void on(Start&);
  void on(Fence&);
  void on(Kill&);
  void on(ReturnJobs&);
  void on(Answer&);
  void on(Launched&);
  void on(LaunchFailed&);
  void on(Bytes&);
  void on(AllRead&);
  void on(RunEnded&);
  void on(Time&);
  void on(Begun&);
  void on(Written&);
  void on(WentOn&);
  void on(Kept&);
  void on(Finished&);

  void begin(Start);
  void begin_elsewhere(RunNumber, Run&);
  void cannot_begin(const Start&, Error);
  void give_back_hanging();
  void launch(RunNumber, Run&);
  void begin_waiting();
  void give_back(const Start&, const std::string& why);
  void give_back_waiting(const std::string& why);
  void return_for_shortage(RunNumber, Run&, const Outcome&);
  void release(RunNumber, const ClaimRef&, std::string reason, bool ran);
  void kill_run(RunNumber, Run&, KillReason);
  void listen(RunNumber, Run&, std::string_view bytes);
  void pass_on_output(RunNumber, Run&);
  void flush_partials();
  void withhold(RunNumber, Run&, const std::string& reason);
  void close_output(RunNumber, Run&);
  void note(Run&, const std::vector<std::string>& lines);
  void write_artifacts(RunNumber, Run&);
  void keep_artifacts(RunNumber, Ending&);
  void go_on(RunNumber, Run&, Outcome);
  void finish(RunNumber, Ending&);
  static void count_output(const Run&, Outcome&);
  EndReport end_of(Ending&, JobEnd);
  void over(RunNumber);
  // Back to its queue: a stage of it may have begun, and no process is left. counted: as a delivery.
  void drop(RunNumber, Run&, std::string why, bool counted = true);
  template <class One>
  void act(One action) {
    actions_.emplace_back(std::move(action));
  }

  Settings settings_;
  std::mt19937_64 chance_;
  std::unordered_map<RunNumber, Run> runs_;  // that have a slot
  std::unordered_map<RunNumber, Ending> endings_;
  WaitingJobs waiting_;
  Beginnings beginnings_;  // of jobs that are begun elsewhere
  bool partials_ = false;  // a line may wait for its end
  Now now_;                // of this step
  std::vector<Action> actions_;
};

}  // namespace mycojobs
