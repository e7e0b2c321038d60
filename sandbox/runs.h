// All runs of a launcher: their set-up as far as it is the launcher's, their deadlines, their end.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "sandbox/idmap.h"
#include "sandbox/run.h"

namespace mycojobs::sandbox {

// Ids with this bit are the launcher's own throw-away runs.
inline constexpr std::uint64_t kCanaryBit = 1ULL << 63;

struct RunsSettings {
  IdRange ids;
  bool memory_cgroup = false, pids_cgroup = false;
  std::uint32_t unkillable_ms = 0;  // after KILL
};

class Runs {
 public:
  using Ended = std::function<void(Run&)>;                 // the run is removed afterwards
  using Stuck = std::function<void(const Run&, Outcome)>;  // unkillable; the run stays
  using Warn = std::function<void(const std::string&)>;

  Runs(Loop&, Cgroups&, Ended, Stuck);
  void configure(const RunsSettings& settings) { settings_ = settings; }

  Run& add(const RunSpec&, Fd out, Fd err, Fd channel);
  Run& add_canary(const std::string& host, Id context);
  Run* find(std::uint64_t id);
  bool empty() const { return runs_.empty(); }

  // Makes the run's group, ids and sockets, asks the zygote. False: it failed and has ended.
  bool fork(Run&, int zygote_control);
  // False: what the zygote says is not true, and it is not to be trusted any more.
  bool forked(Run&, const Forked&, Fd pidfd, pid_t zygote);
  void reaped(Run&, const Reaped&);
  void end(Run&);  // with the reason that is recorded, else lost

  void kill(Run&, KillReason, std::uint32_t grace_ms);
  void fence(Run&, std::uint64_t boot_ms);

 private:
  void send_kill(Run&);
  void kill_init_at(Run&, std::uint64_t boot_ms);
  void judge_survivor(Run&);
  void set_fence(Run&, std::uint64_t boot_ms);
  void read_status(Run&);
  void read_listener(Run&, std::uint32_t epoll_events);
  std::vector<std::string> layers_of(const Run&) const;
  std::optional<std::uint32_t> take_uid();

  Loop& loop_;
  Cgroups& cgroups_;
  Ended ended_;
  Stuck stuck_;
  RunsSettings settings_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Run>> runs_;
  std::unordered_set<std::uint32_t> uids_;
  std::uint32_t next_uid_ = 0;
  std::uint64_t next_canary_ = kCanaryBit;
};

}  // namespace mycojobs::sandbox
