// All runs of a launcher: the launcher's part of their set-up, their deadlines and their end. Single-threaded (Loop).
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
#include "sandbox/idmap.h"
#include "sandbox/loop.h"
#include "sandbox/messages.h"
#include "sandbox/policy.h"
#include "sandbox/reported_calls.h"

namespace mycojobs::sandbox {

// The job's ends of a run's pipes. The launcher forwards them and reads none of them.
struct JobEnds {
  Fd out, err, channel, requests;
};

// State of one run in the launcher.
//
//   waiting --fork()--> forking --Forked--> alive --Reaped--> ended
//      \  \                \                   \--zygote dies-/
//       \  \                `-- any failure: setup_error --->/
//        \  `- adopt(): an idle sandbox, forked before, serves this run
//         `- any failure: setup_error ----------------------->/
//
// An alive sandbox consists of an init with its namespaces, groups, ids and filter, and a job below it that waits or
// runs. It is idle without a run: prewarmed before its first run, or reused. A run that leaves nothing behind is
// reported, and its sandbox serves a later run with the same limits (Runs::turn_over()).
//
// The sandbox of a warm run is set up for this run only. Its process may stay (Runs::stay()) and is then idle too, for
// a run with the same key.
struct Run {
  std::uint64_t id = 0;  // assigned by the launcher and never reused; zygotes use it
  RunSpec spec;          // of an idle sandbox: the limits it was set up with
  bool canary = false;
  bool idle = false;            // prewarmed, or reused after a run; no client waits for its end
  std::uint32_t runs = 1;       // maximum number of runs
  std::uint32_t turn = 0;       // number of served runs
  bool warm = false;            // one process serves all runs
  bool stays = false;           // the process stays after the run that is being reported
  bool main_ended = false;      // of this turn
  bool usage_complete = false;  // init has counted all processes of this turn
  std::uint64_t sandbox_user_us = 0, sandbox_system_us = 0;  // CPU time of the sandbox when the turn began
  std::uint64_t zygote = 0;                                  // id of its zygote; 0: none yet
  JobEnds ends;                                              // closed after they were sent to the job
  std::vector<Fd> folders;                                   // opened granted folders, until the run is forked
  Fd status, start, listener, pidfd;
  // A timerfd that is readable after the fence. It is set here and watched by init too, so that the fence is enforced
  // even if the launcher is stopped. It is set before a run starts; init disables it at the end of each run, before it
  // reports the end.
  Fd fence_clock;
  bool fence_moved = false;  // in this turn: the clock may have been set after init disabled it
  Fd canary_answer;
  Loop::Watch status_watch = 0, listener_watch = 0;
  Loop::Timer wall, cpu, fence, grace, killing, listening;
  std::optional<std::uint32_t> uid;
  bool has_group = false;
  bool forked = false;
  bool kill_wanted = false;  // kill the sandbox as soon as its pidfd is known
  std::uint64_t made_us = 0, started_us = 0;
  int landlock_abi = 0;
  bool confined = false;
  bool stuck = false;                     // was reported as unkillable
  bool decided = false;                   // the first recorded reason is final: outcome.status does not change
  Learning learning;                      // only of a run with `learn`
  std::unique_ptr<CountedCalls> counted;  // of this turn; null: no such call yet
  Outcome outcome;
};

// Maximum length of a step name, which an untrusted child sends.
inline constexpr std::size_t kMostStepName = 64;

// These functions have no effect if a reason is already recorded.
void decide(Run&, RunStatus, std::string reason);
void decide_setup_error(Run&, std::string step, int error, std::string remedy = {});
void decide_unstarted(Run&, std::string why);  // status lost; no code of the run was executed
// As above: the host lacks a resource, named in outcome.setup_error.
void decide_unstarted(Run&, std::string why, SetupError shortage);
void decide_by_wait_status(Run&, int wait_status);
void decide_killed(Run&, KillReason);

// Applies the counters of the run's group. If the main process or init ended by itself, an out-of-memory kill takes
// precedence: it looks like any other signal, and the kill of a child may not be visible at all.
void judge_usage(Run&, const RunUsage&);

struct RunsSettings {
  IdRange ids;
  bool memory_cgroup = false, pids_cgroup = false;
  std::uint32_t unkillable_ms = 0;  // after SIGKILL
  std::uint32_t sandbox_runs = 1;   // maximum number of runs of a sandbox
  std::vector<std::string> leave_out;
};

class Runs {
 public:
  using Ended = std::function<void(Run&)>;                 // the run has its outcome; its sandbox may continue
  using Stuck = std::function<void(const Run&, Outcome)>;  // unkillable; the run is not removed
  using Confined = std::function<void(Run&)>;              // the sandbox waits for its start, or has received it
  using Warn = std::function<void(const std::string&)>;

  Runs(Loop&, Cgroups&, HostChildren&, Ended, Stuck);
  void on_confined(Confined confined) { confined_ = std::move(confined); }
  // Called when the run and its sandbox have ended, before the run is removed.
  void on_gone(Confined gone) { gone_ = std::move(gone); }
  // Called when a run has ended and its process could serve another one. Returns false if the process must end.
  void on_staying(std::function<bool(const Run&)> staying) { staying_ = std::move(staying); }
  // Called when a run was reported and its sandbox is idle. Returns false if the sandbox is not needed.
  void on_turned(std::function<bool(Run&)> turned) { turned_ = std::move(turned); }
  // Called when the run's zygote does not answer.
  void on_silent(Confined silent) { silent_ = std::move(silent); }
  // Called with the socket in the run's network on which the proxy accepts. Returns the problem, or an empty text.
  void on_listening(std::function<std::string(Run&, const Fd&)> listening) { listening_ = std::move(listening); }
  void configure(const RunsSettings& settings) { settings_ = settings; }

  Run& add(const RunSpec&, JobEnds);
  Run& add_canary(const std::string& host, Id context);
  Run& add_prewarmed(const RunSpec& like);  // copies host, context and limits
  Run* find(std::uint64_t id);
  Run* find_named(std::uint64_t run);  // by RunSpec::run

  // Creates the run's group, ids and sockets, and sends Fork to the zygote. Returns false if this failed and the run
  // has ended.
  bool fork(Run&, int zygote_control);
  // Starts the waiting run in the idle sandbox; the entry of the waiting run is removed. Returns false if the sandbox
  // has ended or will end; the run then still waits.
  bool adopt(Run& idle, Run& waiting);
  void discard(Run& idle) { send_kill(idle); }  // asynchronous
  // Records a failed set-up: an error of the job, or an unstarted run if the host lacks a resource. limited: the run's
  // own limits were in force and may be the reason.
  void fail_setup(Run&, const std::string& step, int error, std::string remedy = {}, bool limited = false) const;
  // True if this process has free descriptors for its runs. Checked before a run is forked: a later message with too
  // many descriptors would fail the run, or all runs of its zygote.
  bool has_descriptors() const;
  bool may_prewarm() const;  // idle sandboxes leave half of the descriptors to runs
  // Returns false if the zygote's message is inconsistent; the zygote must not be trusted any more.
  bool forked(Run&, const Forked&, Fd pidfd, pid_t zygote);
  bool reaped(Run&, const Reaped&);  // same return value
  void end(Run&);                    // with the recorded reason, otherwise lost

  void kill(Run&, KillReason, std::uint32_t grace_ms);
  void fence(Run&, std::uint64_t boot_ms);

 private:
  Run& create(const RunSpec&, JobEnds);
  Fork fork_request(Run&) const;
  bool is_host_shortage(const Run&, int error, bool limited) const;
  Result<std::vector<Fd>> grants_of(Run&, Fork&);  // moves the run's folders
  static int send_start(Run&, JobEnds&);
  void begin_clocks(Run&);
  void send_kill(Run&);
  void main_ended(Run&, const MainEnded&);
  void ended_resting(Run&);
  bool turn_over(Run&);
  bool stay(Run&);
  bool left_as_it_came(Run&);
  void rest(Run&, const RunUsage& peaks);
  static RunUsage usage_of_turn(const Run&, RunUsage);
  void close(Run&);
  void watch_cpu(Run&);
  void watch_cpu_in(Run&, std::uint64_t left_us);
  void kill_init_at(Run&, std::uint64_t boot_ms);
  void judge_survivor(Run&);
  void set_fence(Run&, std::uint64_t boot_ms);
  static int set_fence_clock(Run&, std::uint64_t boot_ms);
  void read_status(Run&);
  void watch_listener(Run&);
  void read_listener(Run&, std::uint32_t epoll_events);
  void answer_counted(Run&, const seccomp_notif&);
  std::vector<std::string> layers_of(const Run&) const;
  std::optional<std::uint32_t> take_uid();

  Loop& loop_;
  Cgroups& cgroups_;
  HostChildren& children_;
  Ended ended_;
  Stuck stuck_;
  Confined confined_, silent_, gone_;
  std::function<std::string(Run&, const Fd&)> listening_;
  std::function<bool(Run&)> turned_;
  std::function<bool(const Run&)> staying_;
  RunsSettings settings_;
  FilterCache filters_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Run>> runs_;
  std::unordered_map<std::uint64_t, std::uint64_t> named_;
  std::unordered_set<std::uint32_t> uids_;
  std::uint32_t next_uid_ = 0;
  std::uint64_t next_ = 1;
};

}  // namespace mycojobs::sandbox
