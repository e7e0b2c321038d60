// The sandboxes whose process stays for more runs of one script (docs/warm.md): who serves which key, who rests, and
// for how long. A process belongs to one key; what is given back under a key is given to that key alone. The contexts
// that have any share the table: what is within its context's part stays, whatever others do. Only bookkeeping, for all
// zygotes of a launcher: Zygotes forks and ends them.
//
//   made --(its run)--> in use --back()--> resting --take()--> in use ...
//                          \                  `-- its time is over, the table is full, its family has another key, its
//                           `-- gone()            key is forgotten: given up
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "mycojobs/sandbox.h"

namespace mycojobs::sandbox {

class WarmTable {
 public:
  using Ids = std::vector<std::uint64_t>;  // of sandboxes that are to end now

  // most: in use and resting together, as far as resting ones can be given up for it. 0: none stays.
  explicit WarmTable(std::size_t most = 0) : most_(most) {}

  // The one of this key that has rested for the shortest time: it is in use now. Nothing: there is none.
  std::optional<std::uint64_t> take(const Warm&);
  // A new one, in use, for a run that found none. Gives up those that are too many: of the context that has most, and
  // more than its part, those that have rested longest.
  Ids made(std::uint64_t id, const Warm&, Id context);
  // A run of this family comes: what rests of it under another key holds secrets that are not what they were.
  Ids renewed(const Warm&);
  // No process of this key serves another run: those in use leave after theirs.
  Ids forget(const std::string& key);
  bool may_stay(std::uint64_t id) const;  // after its run
  // It has left its run, and rests. False: it is not to stay.
  bool back(std::uint64_t id, std::uint64_t now_boot_ms);
  void gone(std::uint64_t id);
  // Those whose time is over; and when to ask again.
  Ids expired(std::uint64_t now_boot_ms);
  std::optional<std::uint64_t> next_expiry() const;
  std::size_t size() const { return all_.size(); }
  std::size_t resting() const { return resting_.size(); }

 private:
  struct Process {
    Warm warm;
    Id context = 0;
    bool rests = false, leaves = false;  // leaves: after its run
    std::uint64_t until_boot_ms = 0;
    std::list<std::uint64_t>::iterator place = {};  // if it rests
  };
  std::uint64_t give_up(std::list<std::uint64_t>::iterator);
  std::size_t over(Id context) const;  // how many it has beyond its part of the table
  std::list<std::uint64_t>::iterator dispensable();

  std::size_t most_;
  std::unordered_map<std::uint64_t, Process> all_;
  std::map<Id, std::size_t> held_;                       // by contexts that have any, resting and in use
  std::list<std::uint64_t> resting_;                     // the one that has rested longest first
  std::unordered_map<std::string, std::string> newest_;  // key of a family that has a process
};

}  // namespace mycojobs::sandbox
