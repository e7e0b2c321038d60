// The state machine of the jobs of an agent from claim to end. It decides which jobs begin, which bytes a run receives,
// which runs are killed, whether another stage follows, and which reports are sent. step() takes an event and the
// current time, and returns the actions to perform. Uses no thread, no descriptor and no clock. Not thread-safe.
//
//   JobStart --> waiting --Launch--> launching --RunLaunched--> running --RunEnded--> ended
//
//   waiting     The job waits for a slot (prefetched_jobs.h). If it waits too long, it is released to its queue.
//   launching   LaunchFailed releases the job to its queue.
//   running     BytesReceived and PipesDrained report its output. Fence moves its fence, Kill ends it. A run that
//               cannot be killed is reported as `unkillable`.
//   ended       advance_stage() launches the next stage, or RunReaped and EndReport follow.
//
// Work that can block on a disk or a plugin is requested by the action RunInBackground and runs on another thread. Its
// result is one of these events:
//
//   PrepareFinished   the conversation was created, before the Launch. Until then the job can be killed; if the thread
//                     does not answer, the job is released (hang_detector.h). If inputs are on another runner,
//                     FetchInputs follows, and InputsFetched repeats the work or parks the job.
//   ArtifactsWritten  artifacts were written during the run. The channel is not read while too many bytes are queued.
//   StageAdvanced     the end of a stage was processed
//   ArtifactsStored   the artifacts of an ended run were stored
//   LogWritten        the log was written to the disk, during the run
//   ArchiveWritten    the archive of the log is complete, before the artifacts of an ended run are stored
//   LogClosed         the log on the disk is complete, before the end of the job is determined
//   EndComputed       the end of the job was determined, after RunReaped and before the EndReport
//   CauseFound        the cause of a denied access was looked for, which is added to the error of the end
//
// The caller (worker/runs/run_loop.h) owns the sandbox, the pipes and the threads. It performs the returned actions in
// order.
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

#include "jobs/retry.h"
#include "worker/runs/hang_detector.h"
#include "worker/runs/job_output.h"
#include "worker/runs/prefetched_jobs.h"
#include "worker/runs/read_budget.h"
#include "worker/worker_types.h"

namespace mycojobs {

class JobRuns {
 public:
  struct Settings {
    std::uint32_t slots = 1;
    std::uint32_t grace_ms = 10000;  // time between SIGTERM and SIGKILL
    RetryPolicy retry;
    ReadBudget::Settings read_budget = {};
    std::uint64_t holder_timeout_ms = 24ULL * 3600 * 1000;  // WorkerSettings::holder_timeout_ms
  };
  struct CurrentTime {
    std::uint64_t boot_ms = 0;  // time on CLOCK_BOOTTIME, for deadlines and waits
    std::uint64_t unix_ms = 0;  // wall clock, for the time stamps of log lines
  };

  // Events. An event for an unknown run is ignored, except JobStart, which creates a run.
  struct Fence {  // the lease of the run was renewed
    RunNumber run;
    std::uint64_t boot_ms;
  };
  struct Kill {
    RunNumber run;
    KillReason reason;
  };
  struct ReturnJobs {};    // the agent stops: all jobs are stopped and released, without counting a delivery
  struct BrokerAnswered {  // the reply to a BrokerCall
    RunNumber run;
    std::string json;
  };
  struct RunLaunched {
    RunNumber run;
  };
  struct LaunchFailed {
    RunNumber run;
    std::string reason;
  };
  struct BytesReceived {  // bytes from a pipe of the run
    RunNumber run;
    JobPipe pipe;
    std::string_view bytes;
  };
  struct PrepareFinished {  // the result of JobStart::create_conversation
    RunNumber run;
    std::string strand;
    std::shared_ptr<ArtifactQueue> artifacts;  // sink of the conversation; must outlive the conversation
    Result<std::unique_ptr<Conversation>> conversation;
  };
  struct InputsFetched {  // the answer to FetchInputs
    RunNumber run;
    InputsEnd end;
  };
  // The result of ArtifactQueue::pop_write_task().
  struct ArtifactsWritten {
    RunNumber run;
    ArtifactQueue::WriteResult result;
  };
  // The end of a stage was processed by the conversation.
  struct StageAdvanced {
    RunNumber run;
    Outcome outcome;  // outcome of the stage that ended
    bool has_next_stage;
    std::string strand = {};  // strand that processed the end; empty if it was the caller of step()
  };
  // The result of ArtifactQueue::make_store_task().
  struct ArtifactsStored {
    RunNumber run;
    ArtifactQueue::StoreResult result;
  };
  // The result of LogSpool::pop_write_task().
  struct LogWritten {
    RunNumber run;
    LogSpool::WriteResult result;
  };
  // The result of LogSpool::make_close_task().
  struct LogClosed {
    RunNumber run;
    LogSpool::WriteResult result = {};
  };
  // The result of LogSpool::make_archive_task().
  struct ArchiveWritten {
    RunNumber run;
    LogSpool::ArchiveResult result;
  };
  // The result of Conversation::finish().
  struct EndComputed {
    RunNumber run;
    JobEnd end;
  };
  // The result of find_cause() (denied_write.h).
  struct CauseFound {
    RunNumber run;
    std::string cause;
  };
  struct PipesDrained {  // a pipe was read until it was empty, or up to the limit of one iteration
    RunNumber run;
    JobPipe pipe = JobPipe::out;
  };
  struct TimePassed {};  // to be passed after other events, and when next_wakeup_ms() has elapsed
  // REQUIRES for RunEnded: all bytes of the run's pipes were passed before, unless the run is unkillable.
  using Event =
      std::variant<JobStart, Fence, Kill, ReturnJobs, BrokerAnswered, RunLaunched, LaunchFailed, BytesReceived,
                   PipesDrained, RunEnded, TimePassed, PrepareFinished, InputsFetched, ArtifactsWritten, StageAdvanced,
                   ArtifactsStored, LogWritten, ArchiveWritten, LogClosed, EndComputed, CauseFound>;

  // Actions. A `sandbox_run` is the number of the run in the sandbox (RunSpec::run); see get_run_number().
  struct Launch {  // start a stage; the answer is RunLaunched or LaunchFailed
    RunNumber run;
    RunSpec spec;
    int attachment;    // descriptor to send with the first message (Conversation::attachment)
    bool makes_calls;  // whether the run makes calls and waits for their answers
  };
  struct WriteChannel {  // call next_channel_bytes(), which may return bytes for the channel
    RunNumber run;
  };
  struct PauseChannel {  // stop or resume reading the channel; the end of the run reads the remaining bytes in any case
    RunNumber run;
    bool is_held;
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
  // Execute `work` on this strand (base/strands/strand_pool.h), and pass the returned event to step().
  struct RunInBackground {
    std::string strand;
    std::function<Event()> work;
  };
  struct FetchInputs {  // fetch files from other runners; the answer is InputsFetched
    RunNumber run;
    std::vector<MissingInput> files;
  };
  struct CancelFetch {  // the job of a FetchInputs was released
    RunNumber run;
  };
  struct RunReaped {  // no process of the run is left: release its pipes and drop its pending calls
    RunNumber run;
  };
  struct LaunchBackoff {  // the sandbox cannot start runs: claim nothing for a while
    std::string reason;
  };
  struct ClaimBackoff {};  // jobs that were claimed ahead were released: claim nothing ahead for a while
  using Action =
      std::variant<Launch, WriteChannel, PauseChannel, PauseReading, KillRun, MoveFence, RunReport, BrokerCall,
                   RunReaped, LaunchBackoff, ClaimBackoff, StartRejected, RunInBackground, FetchInputs, CancelFetch>;

  JobRuns(Settings, std::uint64_t seed);  // seed: randomizes the pauses before retries

  std::vector<Action> step(Event, CurrentTime);
  // Returns the next bytes for the channel of the run, or an empty text if there are none now. REQUIRES: all previous
  // bytes were sent.
  std::string next_channel_bytes(RunNumber);
  // Returns the number of jobs that have no process left and still wait for the report of their end.
  std::size_t ending_count() const { return ended_runs_.size(); }
  const JobStart* find_job(RunNumber) const;  // Returns null if the run has no slot.
  // Returns the time in ms after which TimePassed must be passed if there is no other event, or no value if it need not
  // be passed.
  std::optional<std::uint64_t> next_wakeup_ms() const;

  // Returns the run that a run of the sandbox belongs to. In the sandbox, each stage is a run of its own.
  static RunNumber get_run_number(std::uint64_t sandbox_run) {
    return sandbox_run & ((std::uint64_t{1} << kStageShift) - 1);
  }
  static std::size_t get_stage(std::uint64_t sandbox_run) { return sandbox_run >> kStageShift; }

 private:
  static constexpr unsigned kStageShift = 56;
  struct Run {
    JobStart job;
    RunOutput output;
    ReadBudget read_budget;
    std::uint64_t frames = 0;  // number of frames that read_budget was charged for
    std::size_t stage = 0;
    bool is_first_stage = true;       // whether `stage` is the first that was launched; its number can be above 0
    bool has_begun = false;           // whether a stage has begun
    std::uint64_t fence_boot_ms = 0;  // the latest fence that was received
    // The only strong reference to the function that a strand will execute. Without it, the strand does nothing.
    std::shared_ptr<decltype(JobStart::create_conversation)> conversation_factory = {};
    std::uint64_t requested_boot_ms = 0;         // time at which conversation_factory was posted first
    bool is_fetching = false;                    // whether FetchInputs was emitted and not answered
    std::uint32_t fetches = 0;                   // number of FetchInputs
    std::vector<std::string> input_jobs = {};    // keys of the jobs that stored the files of FetchInputs
    std::optional<KillReason> kill_reason = {};  // set if a kill was requested
    bool is_returning = false;                   // whether the job is released to its queue when it has stopped
    bool output_limit_exceeded = false;          // whether the limit was exceeded
    bool unkillable_reported = false;            // whether the run was reported as unkillable
    bool is_channel_held = false;                // whether the channel is not read, since artifacts wait for the disk
    // Whether the run is between two stages: another thread uses the conversation, and the run has no process.
    bool between_stages = false;
  };
  struct EndedRun {  // a job without processes that waits for the report of its end
    Run run;
    Outcome outcome;
    std::string artifacts;
    std::vector<DroppedArtifact> dropped = {};
    // Set while a strand looks for the cause of a denied access (denied_write.h). The disk may hang; then this is sent.
    std::optional<JobEnd> end_without_cause = {};
    // Whether a strand completes the archive of the log, or closes the log on the disk. After a time, the end is sent
    // anyway.
    bool is_writing_archive = false, is_closing_log = false;
    bool is_log_hanging = false;  // whether the disk of the log did not answer in time
    std::uint64_t requested_boot_ms = 0;
  };
  static std::uint64_t sandbox_run(RunNumber run, std::size_t stage) {
    return run | std::uint64_t{stage} << kStageShift;
  }
  bool has_slot() const { return runs_.size() < settings_.slots; }
  Run* find(RunNumber);

  void on(JobStart&);
  void on(Fence&);
  void on(Kill&);
  void on(ReturnJobs&);
  void on(BrokerAnswered&);
  void on(RunLaunched&);
  void on(LaunchFailed&);
  void on(BytesReceived&);
  void on(PipesDrained&);
  void on(RunEnded&);
  void on(TimePassed&);
  void on(PrepareFinished&);
  void on(InputsFetched&);
  void on(ArtifactsWritten&);
  void on(StageAdvanced&);
  void on(ArtifactsStored&);
  void on(LogWritten&);
  void on(ArchiveWritten&);
  void on(LogClosed&);
  void on(EndComputed&);
  void on(CauseFound&);

  void begin(JobStart);
  void begin_in_background(RunNumber, Run&);
  void fetch_inputs(RunNumber, Run&, std::vector<MissingInput>);
  void reject_start(const JobStart&, Error);
  void release_hanging_jobs();
  void release_hanging_ends();
  void launch(RunNumber, Run&);
  void start_waiting_jobs();
  void release_job(const JobStart&, const std::string& reason);
  void release_waiting_jobs(const std::string& reason);
  void release_for_shortage(RunNumber, Run&, const Outcome&);
  void release(RunNumber, const ClaimRef&, std::string reason, bool counts_delivery);
  void kill_run(RunNumber, Run&, KillReason);
  void process_channel(RunNumber, Run&, std::string_view bytes);
  void report_output(RunNumber, Run&);
  void flush_pending_output();
  void report_unkillable(RunNumber, Run&, const std::string& reason);
  void close_output(RunNumber, Run&);
  void add_notes(Run&, const std::vector<std::string>& lines);
  void write_artifacts(RunNumber, Run&);
  void write_log(RunNumber, Run&);
  void close_log(RunNumber, EndedRun&);
  void write_archive(RunNumber, EndedRun&);
  void store_artifacts(RunNumber, EndedRun&, LogSpool::ArchiveResult = {});
  void advance_stage(RunNumber, Run&, Outcome);
  void finish(RunNumber, EndedRun&);
  static void count_output(const Run&, Outcome&);
  EndReport build_end_report(EndedRun&, JobEnd);
  void reap_run(RunNumber);
  // Releases the job to its queue after a stage may have begun. counts_delivery: whether the delivery counts. REQUIRES:
  // no process of the run is left.
  void release_started_job(RunNumber, Run&, std::string reason, bool counts_delivery = true);
  template <class ActionType>
  void emit_action(ActionType action) {
    actions_.emplace_back(std::move(action));
  }

  Settings settings_;
  std::mt19937_64 random_;
  std::unordered_map<RunNumber, Run> runs_;  // runs with a slot
  std::unordered_map<RunNumber, EndedRun> ended_runs_;
  std::size_t pending_ends_ = 0;  // ended runs with end_without_cause, is_writing_archive or is_closing_log
  PrefetchedJobs waiting_;
  HangDetector hang_detector_;       // detects strands that do not answer
  bool has_pending_output_ = false;  // whether a line may be waiting for its end, or for the rate of the tail
  CurrentTime now_;                  // time of the current step
  std::vector<Action> actions_;
};

}  // namespace mycojobs
