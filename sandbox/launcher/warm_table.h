// Bookkeeping of the sandboxes whose process serves several runs of one script (docs/warm.md), for all zygotes of a
// launcher; Zygotes forks and ends them. A process belongs to one key and serves only runs of that key. The table is
// divided among the contexts that have processes: processes within the share of their context are not displaced by
// other contexts.
//
//   made --(its run)--> in use --return_process()--> resting --take()--> in use ...
//                          \                  `-- time-out, full table, new key of its family, or forgotten key:
//                           `-- gone()            discarded
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

  // most: maximum number in use and resting, as far as resting ones can be discarded. 0: no process stays.
  explicit WarmTable(std::size_t max = 0) : most_(max) {}

  // Returns the process of this key that has rested for the shortest time, which is then in use; nullopt: none.
  std::optional<std::uint64_t> take(const Warm&);
  // Adds a new process in use. If the table is over its limit, discards the longest resting processes of the context
  // that exceeds its share most.
  Ids made(std::uint64_t id, const Warm&, ContextId context);
  // A run of this family has arrived: discards resting processes with another key, since their secrets are outdated.
  Ids renewed(const Warm&);
  // Processes of this key serve no further run: those in use end after their run.
  Ids forget(const std::string& key);
  bool can_rest(std::uint64_t id) const;  // after its run
  // The process has finished its run and rests. Returns false if it must end.
  bool return_process(std::uint64_t id, std::uint64_t now_boot_ms);
  void gone(std::uint64_t id);
  // Returns the processes whose time is over; next_expiry() is the next time to call this.
  Ids expired(std::uint64_t now_boot_ms);
  std::optional<std::uint64_t> next_expiry() const;
  std::size_t size() const { return all_.size(); }
  std::size_t resting() const { return resting_.size(); }

 private:
  struct Process {
    Warm warm;
    ContextId context = 0;
    bool rests = false, leaves = false;  // leaves: ends after its run
    std::uint64_t until_boot_ms = 0;
    std::list<std::uint64_t>::iterator place = {};  // only while resting
  };
  std::uint64_t give_up(std::list<std::uint64_t>::iterator);
  std::size_t processes_over_share(ContextId context) const;  // number of processes beyond the context's share
  std::list<std::uint64_t>::iterator eviction_candidate();

  std::size_t most_;
  std::unordered_map<std::uint64_t, Process> all_;
  std::map<ContextId, std::size_t> held_;                // resting and in use, by context
  std::list<std::uint64_t> resting_;                     // longest resting first
  std::unordered_map<std::string, std::string> newest_;  // by family: the key of its newest process
};

}  // namespace mycojobs::sandbox
