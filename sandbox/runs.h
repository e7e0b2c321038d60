// All runs of a launcher: their set-up as far as it is the launcher's, their deadlines, their end.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "sandbox/filter_cache.h"
#include "sandbox/idmap.h"
#include "sandbox/run.h"

namespace mycojobs::sandbox {

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

  Runs(Loop&, Cgroups&, Ended, Stuck);
  void on_confined(Confined confined) { confined_ = std::move(confined); }
  // Nothing is left of it and its sandbox: it is removed afterwards.
  void on_gone(Confined gone) { gone_ = std::move(gone); }
  // Its run has been reported, and the sandbox is idle. False: it is not wanted.
  void on_turned(std::function<bool(Run&)> turned) { turned_ = std::move(turned); }
  // Its zygote has not answered for a time.
  void on_silent(Confined silent) { silent_ = std::move(silent); }
  // It has a socket in its own network for the proxy. What is missing, or empty.
  void on_listening(std::function<std::string(Run&, const Fd&)> listening) { listening_ = std::move(listening); }
  void configure(const RunsSettings& settings) { settings_ = settings; }

  Run& add(const RunSpec&, Fd out, Fd err, Fd channel);
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
  // False: what the zygote says is not true, and it is not to be trusted any more.
  bool forked(Run&, const Forked&, Fd pidfd, pid_t zygote);
  bool reaped(Run&, const Reaped&);  // likewise
  void end(Run&);                    // with the reason that is recorded, else lost

  void kill(Run&, KillReason, std::uint32_t grace_ms);
  void fence(Run&, std::uint64_t boot_ms);

 private:
  Run& create(const RunSpec&, Fd out, Fd err, Fd channel);
  Fork fork_request(Run&) const;
  Result<std::vector<Fd>> grants_of(Run&, Fork&);
  int send_start(Run&, Fd& out, Fd& err, Fd& channel);
  void begin_clocks(Run&);
  void send_kill(Run&);
  void main_ended(Run&, const MainEnded&);
  bool turn_over(Run&);
  static RunUsage usage_of_turn(const Run&, RunUsage);
  void close(Run&);
  void watch_cpu(Run&);
  void watch_cpu_in(Run&, std::uint64_t left_us);
  void kill_init_at(Run&, std::uint64_t boot_ms);
  void judge_survivor(Run&);
  void set_fence(Run&, std::uint64_t boot_ms);
  void read_status(Run&);
  void watch_listener(Run&);
  void read_listener(Run&, std::uint32_t epoll_events);
  void answer_counted(Run&, const seccomp_notif&);
  std::vector<std::string> layers_of(const Run&) const;
  std::optional<std::uint32_t> take_uid();

  Loop& loop_;
  Cgroups& cgroups_;
  Ended ended_;
  Stuck stuck_;
  Confined confined_, silent_, gone_;
  std::function<std::string(Run&, const Fd&)> listening_;
  std::function<bool(Run&)> turned_;
  RunsSettings settings_;
  FilterCache filters_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Run>> runs_;
  std::unordered_map<std::uint64_t, std::uint64_t> named_;
  std::unordered_set<std::uint32_t> uids_;
  std::uint32_t next_uid_ = 0;
  std::uint64_t next_ = 1;
};

}  // namespace mycojobs::sandbox
