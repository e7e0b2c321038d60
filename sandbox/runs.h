// All runs of a launcher: their set-up as far as it is the launcher's, their deadlines, their end.
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

// The job's ends of a run's pipes. The launcher passes them on and reads none of them.
struct JobEnds {
  Fd out, err, channel, requests;
};

// One run as the launcher sees it, and what becomes of it.
//
//   waiting --fork()--> forking --Forked--> alive --Reaped--> ended
//      \  \                \                   \--zygote dies-/
//       \  \                `-- any failure: setup_error --->/
//        \  `- adopt(): an idle sandbox, forked before, serves this run
//         `- any failure: setup_error ----------------------->/
//
// alive is a sandbox: an init with its namespaces, groups, ids and filter, and a job below it that waits or runs. It is
// idle while it has no run: prewarmed ahead of its first one, or reused. For a run that leaves nothing behind is
// reported, and its sandbox serves a later run that is like it (Runs::turn_over()).
//
// The sandbox of a warm run is set up for it alone. Its process may stay (Runs::stay()): then it is idle too, for a run
// with the same key.
struct Run {
  std::uint64_t id = 0;  // the launcher's own name for it, never used twice: what zygotes know
  RunSpec spec;          // of an idle sandbox: what it has been set up for
  bool canary = false;
  bool idle = false;            // without a run, prewarmed or left by one: nobody waits for its end
  std::uint32_t runs = 1;       // that it may serve
  std::uint32_t turn = 0;       // runs that it has served
  bool warm = false;            // its process serves them all
  bool stays = false;           // and goes on after the run that is being reported
  bool main_ended = false;      // of this turn
  bool usage_complete = false;  // init has counted all processes of this turn
  std::uint64_t sandbox_user_us = 0, sandbox_system_us = 0;  // CPU of the sandbox when the turn began
  std::uint64_t zygote = 0;                                  // which one has it; 0: none yet
  JobEnds ends;                                              // closed here once the job has been sent them
  std::vector<Fd> folders;                                   // that it is granted, opened; until it is forked
  Fd status, start, listener, pidfd;
  // Readable when the fence has passed: a timerfd that is set here, and that init has too and watches, so that the
  // fence holds though the launcher stands still. Set before a run is started; init stops it at the end of each, before
  // it reports that.
  Fd fence_clock;
  bool fence_moved = false;  // in this turn: what has been set may be later than that stop
  Fd canary_answer;
  Loop::Watch status_watch = 0, listener_watch = 0;
  Loop::Timer wall, cpu, fence, grace, killing, listening;
  std::optional<std::uint32_t> uid;
  bool has_group = false;
  bool forked = false;
  bool kill_wanted = false;  // KILL as soon as there is something to kill
  std::uint64_t made_us = 0, started_us = 0;
  int landlock_abi = 0;
  bool confined = false;
  bool stuck = false;                     // has been reported as unkillable
  bool decided = false;                   // the first recorded reason wins: outcome.status is final
  Learning learning;                      // of a run that learns
  std::unique_ptr<CountedCalls> counted;  // of this turn; null: there was none yet
  Outcome outcome;
};

// Bytes of the name of a step, which a child says.
inline constexpr std::size_t kMostStepName = 64;

// Each does nothing if a reason is recorded already.
void decide(Run&, RunStatus, std::string reason);
void decide_setup_error(Run&, std::string step, int error, std::string remedy = {});
void decide_unstarted(Run&, std::string why);  // lost, and nothing of it has run
// The same: this host is out of a resource, as outcome.setup_error says.
void decide_unstarted(Run&, std::string why, SetupError shortage);
void decide_by_wait_status(Run&, int wait_status);
void decide_killed(Run&, KillReason);

// What the run's group counted. If the main process ended by itself, or init did, memory has the last word, since the
// kernel's kill looks like any other, and that of a child may look like nothing at all.
void judge_usage(Run&, const RunUsage&);

struct RunsSettings {
  IdRange ids;
  bool memory_cgroup = false, pids_cgroup = false;
  std::uint32_t unkillable_ms = 0;  // after KILL
  std::uint32_t sandbox_runs = 1;   // that a sandbox may serve
  std::vector<std::string> leave_out;
};

class Runs {
 public:
  using Ended = std::function<void(Run&)>;                 // has its outcome; its sandbox may go on
  using Stuck = std::function<void(const Run&, Outcome)>;  // unkillable; the run stays
  using Confined = std::function<void(Run&)>;              // it waits for its start, or has it already
  using Warn = std::function<void(const std::string&)>;

  Runs(Loop&, Cgroups&, HostChildren&, Ended, Stuck);
  void on_confined(Confined confined) { confined_ = std::move(confined); }
  // Nothing is left of it and its sandbox: it is removed afterwards.
  void on_gone(Confined gone) { gone_ = std::move(gone); }
  // The run has ended and its process could serve another one. False: that is not wanted.
  void on_staying(std::function<bool(const Run&)> staying) { staying_ = std::move(staying); }
  // Its run has been reported, and the sandbox is idle. False: it is not wanted.
  void on_turned(std::function<bool(Run&)> turned) { turned_ = std::move(turned); }
  // Its zygote has not answered for a time.
  void on_silent(Confined silent) { silent_ = std::move(silent); }
  // It has a socket in its own network for the proxy. What is missing, or empty.
  void on_listening(std::function<std::string(Run&, const Fd&)> listening) { listening_ = std::move(listening); }
  void configure(const RunsSettings& settings) { settings_ = settings; }

  Run& add(const RunSpec&, JobEnds);
  Run& add_canary(const std::string& host, Id context);
  Run& add_prewarmed(const RunSpec& like);  // host, context, limits
  Run* find(std::uint64_t id);
  Run* find_named(std::uint64_t run);  // by RunSpec::run

  // Makes the run's group, ids and sockets, asks the zygote. False: it failed and has ended.
  bool fork(Run&, int zygote_control);
  // The idle sandbox serves the waiting run, whose own entry is forgotten, and starts it. False: the sandbox has ended
  // or will, and the run waits as before.
  bool adopt(Run& idle, Run& waiting);
  void discard(Run& idle) { send_kill(idle); }  // it ends later
  // The set-up of the run has failed: an error of the job, or, if the host is out of a resource, a run that has not
  // begun. limited: the run's own limits were in force and may be the reason.
  void fail_setup(Run&, const std::string& step, int error, std::string remedy = {}, bool limited = false) const;
  // Whether this process has room for the descriptors of its runs. Checked before a run is forked: a message whose
  // descriptors did not fit later would cost the run, or all runs of its zygote.
  bool has_descriptors() const;
  bool may_prewarm() const;  // sandboxes without a run leave half of the descriptors to runs
  // False: what the zygote says is not true, and it is not to be trusted any more.
  bool forked(Run&, const Forked&, Fd pidfd, pid_t zygote);
  bool reaped(Run&, const Reaped&);  // likewise
  void end(Run&);                    // with the reason that is recorded, else lost

  void kill(Run&, KillReason, std::uint32_t grace_ms);
  void fence(Run&, std::uint64_t boot_ms);

 private:
  Run& create(const RunSpec&, JobEnds);
  Fork fork_request(Run&) const;
  bool is_host_shortage(const Run&, int error, bool limited) const;
  Result<std::vector<Fd>> grants_of(Run&, Fork&);  // takes its folders
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
