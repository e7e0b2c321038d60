// Bookkeeping of the sandboxes whose process serves several runs of one script (docs/warm.md), for all zygotes of a
// launcher; Zygotes forks and ends them. A process belongs to one key and serves only runs of that key. The table is
// divided among the contexts that have processes: processes within the share of their context are not displaced by
// other contexts.
//
//   add() --> in use --return_process()--> idle --acquire()--> in use ...
//                \                             `-- time-out, full table, new key of the family, or retired key:
//                 `-- remove_process()            discarded
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sandbox/sandbox.h"

namespace mycojobs::sandbox {

class WarmTable {
 public:
  using Ids = std::vector<std::uint64_t>;  // sandboxes that must end now

  // `max` is the number of processes in use and idle above which idle processes are discarded. With 0 no process
  // becomes idle after its run.
  explicit WarmTable(std::size_t max = 0) : max_processes_(max) {}

  // Returns the process of this key that has been idle for the shortest time and marks it as in use. Returns nullopt if
  // no process of the key is idle.
  std::optional<std::uint64_t> acquire(const WarmReuse&);
  // Adds a new process in use. If the table is over its limit, discards processes of the context that exceeds its share
  // most, beginning with the process that has been idle for the longest time.
  Ids add(std::uint64_t id, const WarmReuse&, ContextId context);
  // A run of this family has arrived: discards idle processes with another key, since their secrets are outdated.
  Ids discard_outdated(const WarmReuse&);
  // Processes of this key serve no further run: processes in use end after their run, and idle processes are
  // discarded.
  Ids retire_key(const std::string& key);
  bool can_become_idle(std::uint64_t id) const;  // when its run has ended
  // The process has finished its run and becomes idle. Returns false if it must end.
  bool return_process(std::uint64_t id, std::uint64_t now_boot_ms);
  void remove_process(std::uint64_t id);
  // Discards the processes that have been idle for WarmReuse::idle_ms. next_expiry() is the next time to call this
  // function.
  Ids discard_expired(std::uint64_t now_boot_ms);
  std::optional<std::uint64_t> next_expiry() const;
  std::size_t size() const { return processes_.size(); }
  std::size_t idle_count() const { return idle_.size(); }

 private:
  struct Process {
    WarmReuse warm;
    ContextId context = 0;
    bool is_idle = false, is_retired = false;  // a retired process ends after its run
    std::uint64_t expires_boot_ms = 0;
    std::list<std::uint64_t>::iterator position = {};  // only while idle
  };
  std::uint64_t remove_at(std::list<std::uint64_t>::iterator);
  std::size_t count_processes_over_share(ContextId context) const;  // number of processes beyond the context's share
  std::list<std::uint64_t>::iterator find_eviction_candidate();

  std::size_t max_processes_;
  std::unordered_map<std::uint64_t, Process> processes_;
  std::map<ContextId, std::size_t> counts_by_context_;        // number of processes, idle and in use
  std::list<std::uint64_t> idle_;                             // idle for the longest time first
  std::unordered_map<std::string, std::string> newest_keys_;  // key of the newest process, by family
};

}  // namespace mycojobs::sandbox
