// All runs of a launcher: the launcher's part of their set-up, their deadlines and their end. Single-threaded
// (EventLoop).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/fd.h"
#include "sandbox/cgroup.h"
#include "sandbox/host_limits.h"
#include "sandbox/launcher/event_loop.h"
#include "sandbox/launcher/file_owners.h"
#include "sandbox/launcher/reported_calls.h"
#include "sandbox/messages.h"
#include "sandbox/seccomp/filter.h"

namespace mycojobs::sandbox {

// The job's ends of a run's pipes. The launcher forwards them and reads none of them.
struct JobPipeEnds {
  Fd out, err, channel, requests;
};

// State of one run in the launcher.
//
//   waiting --fork()--> forking --RunForked--> alive --InitReaped--> ended
//      \  \                \                      \--zygote dies-/
//       \  \                `-- any failure: setup_error ------>/
//        \  `- adopt(): an idle sandbox, forked before, serves this run
//         `- any failure: setup_error -------------------------->/
//
// An alive sandbox consists of an init with its namespaces, groups, ids and filter, and a job below it that waits or
// runs. It is idle without a run: prewarmed before its first run, or reused. A run that leaves nothing behind is
// reported, and its sandbox serves a later run with the same limits (RunTable::reuse_sandbox()).
//
// The sandbox of a warm run is set up for this run only. Its process may stay (RunTable::keep_process()) and is then
// idle too, for a run with the same key.
struct SandboxRun {
  std::uint64_t id = 0;  // assigned by the launcher and never reused; zygotes use it
  RunSpec spec;          // while idle: parameters of the set-up or of the last run
  bool is_canary = false;
  bool is_idle = false;            // prewarmed, or reused after a run; no client waits for its end
  std::uint32_t max_runs = 1;      // number of runs that the sandbox may serve
  std::uint32_t run_index = 0;     // number of the current run, from 0
  bool is_warm = false;            // one process serves all runs
  bool keeps_process = false;      // the process stays after the run that is being reported
  bool has_job_ended = false;      // in the current run
  bool is_usage_complete = false;  // init has counted all processes of the current run
  std::uint64_t sandbox_user_us = 0, sandbox_system_us = 0;  // CPU time of the sandbox when the current run began
  std::uint64_t zygote_id = 0;                               // 0 before the zygote is assigned
  JobPipeEnds pipe_ends;                                     // closed after they were sent to the job
  std::vector<Fd> folders;                                   // opened granted folders, until the run is forked
  Fd status;                                                 // messages of init
  Fd start;                                                  // socket to which Start is sent
  Fd listener;                                               // seccomp notifications of the run's filter
  Fd pidfd;                                                  // of init
  // A timerfd that is readable after the fence. It is set here and watched by init too, so that the fence is enforced
  // even if the launcher is stopped. It is set before a run starts; init disables it at the end of each run, before it
  // reports the end.
  Fd fence_clock;
  // The fence was changed during this run, so fence_clock must be disarmed again before the sandbox is reused: init may
  // have disarmed it before the change.
  bool was_fence_moved = false;
  Fd canary_answer;  // pipe that the canary job writes to
  EventLoop::Watch status_watch = 0, listener_watch = 0;
  EventLoop::Timer wall_timer, cpu_timer, fence_timer, grace_timer, kill_timer, listener_timer;
  std::optional<std::uint32_t> uid;
  bool has_group = false;
  bool is_forked = false;
  bool is_kill_requested = false;  // kill the sandbox as soon as its pidfd is known
  std::uint64_t created_us = 0, started_us = 0;
  int landlock_abi = 0;
  bool is_confined = false;
  bool was_reported_unkillable = false;
  bool has_outcome = false;                     // the first recorded reason is final: outcome.status does not change
  PolicyRecorder policy_recorder;               // used only with RunSpec::learn
  std::unique_ptr<CountedCalls> counted_calls;  // null until the current run makes such a call
  Outcome outcome;
};

inline constexpr const char* kNoFreeUid = "all ids of sandbox.uid_range are in use: use fewer slots or more ids";

// Maximum length of a step name, which an untrusted child sends.
inline constexpr std::size_t kMaxStepName = 64;

// Functions that record the reason of the run's end. They have no effect if a reason is already recorded.
void set_outcome(SandboxRun&, RunStatus, std::string reason);
void set_setup_error(SandboxRun&, std::string step, int error, std::string remedy = {});
void set_not_started(SandboxRun&, std::string reason);  // status lost; no code of the run was executed
// Also names in outcome.setup_error the resource that the host lacks.
void set_not_started(SandboxRun&, std::string reason, SetupError shortage);
void set_outcome_by_wait_status(SandboxRun&, int wait_status);
void set_killed(SandboxRun&, KillReason);

// Applies the counters of the run's group. If the main process or init ended by itself, an out-of-memory kill is
// recorded as the reason: its signal looks like any other, and the kill of a child may not be visible at all.
void apply_usage(SandboxRun&, const RunUsage&);

struct RunsSettings {
  IdRange ids;
  FileOwners owners;
  bool has_memory_cgroup = false, has_pids_cgroup = false;
  std::uint32_t unkillable_ms = 0;     // time after SIGKILL at which a run is reported as unkillable
  std::uint32_t max_sandbox_runs = 1;  // maximum number of runs of a sandbox
  std::vector<std::string> disabled_steps;
};

class RunTable {
 public:
  using RunHandler = std::function<void(SandboxRun&)>;
  using OnUnkillable = std::function<void(const SandboxRun&, Outcome)>;
  using Warn = std::function<void(const std::string&)>;

  // `on_run_ended` is called when a run has its outcome; its sandbox may continue. `on_unkillable` is called when
  // SIGKILL has had no effect; the run stays in the table.
  RunTable(EventLoop&, Cgroups&, HostChildren&, RunHandler on_run_ended, OnUnkillable on_unkillable);
  // Called when the sandbox is confined. The sandbox waits for Start, or has received it.
  void on_confined(RunHandler handler) { on_confined_ = std::move(handler); }
  // Called when the run and its sandbox have ended, before the run is removed.
  void on_sandbox_ended(RunHandler handler) { on_sandbox_ended_ = std::move(handler); }
  // Called when a run has ended and its process could serve another one. Returns false if the process must end.
  void on_keep_process(std::function<bool(const SandboxRun&)> predicate) { can_keep_process_ = std::move(predicate); }
  // Called when a run was reported and its sandbox is idle. Returns false if the sandbox is not needed.
  void on_idle(std::function<bool(SandboxRun&)> handler) { on_idle_ = std::move(handler); }
  // Called when the run's zygote does not answer.
  void on_zygote_unresponsive(RunHandler handler) { on_zygote_unresponsive_ = std::move(handler); }
  // Called with the socket in the run's network on which the proxy accepts. Returns the problem, or an empty text.
  void on_listening(std::function<std::string(SandboxRun&, const Fd&)> handler) { on_listening_ = std::move(handler); }
  void configure(const RunsSettings& settings) { settings_ = settings; }

  SandboxRun& add(const RunSpec&, JobPipeEnds);
  SandboxRun& add_canary(const std::string& host, ContextId context);
  SandboxRun& add_prewarmed(const RunSpec& shape);  // copies host, context and limits
  SandboxRun* find(std::uint64_t id);
  SandboxRun* find_by_run(std::uint64_t run);  // by RunSpec::run

  // Assigns the user id of the run; fork() does so for a run without folders. Returns false if all ids are in use.
  bool assign_uid(SandboxRun&);
  FileOwner get_job_ids(const SandboxRun& run) const {
    return settings_.owners.get_job_ids(run.spec.context, *run.uid);
  }
  // Creates the run's group, ids and sockets, and sends ForkRequest to the zygote. Returns false if this failed and the
  // run has ended.
  bool fork(SandboxRun&, int zygote_control);
  // Starts the waiting run in the idle sandbox; the entry of the waiting run is removed. Returns false if the sandbox
  // has ended or will end; the run then still waits.
  bool adopt(SandboxRun& idle, SandboxRun& waiting);
  void discard(SandboxRun& idle) { send_kill(idle); }  // asynchronous
  // Records a failed set-up as an error of the job, or as an unstarted run if the host lacks a resource. With `limited`
  // the run's own limits were in force and may be the reason.
  void fail_setup(SandboxRun&, const std::string& step, int error, std::string remedy = {}, bool limited = false) const;
  // True if this process has free descriptors for its runs. Checked before a run is forked: a later message with too
  // many descriptors would fail the run, or all runs of its zygote.
  bool has_descriptors() const;
  bool can_prewarm() const;  // idle sandboxes leave half of the descriptors to runs
  // Returns false if the zygote's message is inconsistent; the zygote must not be trusted any more.
  bool on_forked(SandboxRun&, const RunForked&, Fd pidfd, pid_t zygote);
  // Returns false if the zygote's message is inconsistent, as on_forked().
  bool on_reaped(SandboxRun&, const InitReaped&);
  // Ends the run and its sandbox. A run without a recorded reason is lost.
  void finish_run(SandboxRun&);

  void kill(SandboxRun&, KillReason, std::uint32_t grace_ms);
  void fence(SandboxRun&, std::uint64_t boot_ms);

 private:
  SandboxRun& create(const RunSpec&, JobPipeEnds);
  ForkRequest build_fork_request(SandboxRun&) const;
  bool is_host_shortage(const SandboxRun&, int error, bool limited) const;
  Result<std::vector<Fd>> prepare_grants(SandboxRun&, ForkRequest&);  // moves the run's folders
  static int send_start(SandboxRun&, JobPipeEnds&);
  void start_clocks(SandboxRun&);
  void send_kill(SandboxRun&);
  void on_job_ended(SandboxRun&, const JobEnded&);
  void end_idle_process(SandboxRun&);
  bool reuse_sandbox(SandboxRun&);
  bool keep_process(SandboxRun&);
  bool is_clean_after_run(SandboxRun&);
  void make_idle(SandboxRun&, const RunUsage& peaks);
  static RunUsage subtract_earlier_usage(const SandboxRun&, RunUsage);
  void close(SandboxRun&);
  void check_cpu_limit(SandboxRun&);
  void schedule_cpu_check(SandboxRun&, std::uint64_t remaining_us);
  void schedule_init_kill(SandboxRun&, std::uint64_t boot_ms);
  void check_unkillable(SandboxRun&);
  void set_fence(SandboxRun&, std::uint64_t boot_ms);
  static int set_fence_clock(SandboxRun&, std::uint64_t boot_ms);
  void read_status(SandboxRun&);
  void watch_listener(SandboxRun&);
  void read_listener(SandboxRun&, std::uint32_t epoll_events);
  void answer_counted(SandboxRun&, const seccomp_notif&);
  std::vector<std::string> list_layers(const SandboxRun&) const;
  std::optional<std::uint32_t> allocate_uid();

  EventLoop& loop_;
  Cgroups& cgroups_;
  HostChildren& children_;
  RunHandler on_run_ended_;
  OnUnkillable on_unkillable_;
  RunHandler on_confined_, on_zygote_unresponsive_, on_sandbox_ended_;
  std::function<std::string(SandboxRun&, const Fd&)> on_listening_;
  std::function<bool(SandboxRun&)> on_idle_;
  std::function<bool(const SandboxRun&)> can_keep_process_;
  RunsSettings settings_;
  FilterCache filters_;
  std::unordered_map<std::uint64_t, std::unique_ptr<SandboxRun>> runs_;
  std::unordered_map<std::uint64_t, std::uint64_t> ids_by_run_;  // SandboxRun::id by RunSpec::run
  std::unordered_set<std::uint32_t> uids_;                       // user ids in use
  std::uint32_t next_uid_ = 0;
  std::uint64_t next_id_ = 1;
};

}  // namespace mycojobs::sandbox
