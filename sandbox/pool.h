// The idle sandboxes of one zygote: forked, confined, waiting for a run, so that setting one up is off the path of a
// job. Prewarmed ones have served none yet; reused ones come back (runs.h) after a run that has left nothing behind.
// Only bookkeeping: Zygotes forks and ends them.
//
// Size: doubled when a run finds none (up to the most), shrunk by what was never needed for a while, one at least once
// a run has come. Shape: the limits that they are set up with, those of the runs that come; a run that differs, or is
// granted anything, is set up for itself alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_set>
#include <vector>

#include "mycojobs/sandbox.h"

namespace mycojobs::sandbox {

class Pool {
 public:
  // memory_by_group: the limit of memory can be changed when a sandbox gets its run.
  explicit Pool(std::size_t most = 0, bool memory_by_group = false) : most_(most), memory_by_group_(memory_by_group) {}

  // A sandbox that is set up as this run needs it; it is not the pool's any more. Nothing: none is ready.
  std::optional<std::uint64_t> take(const RunSpec&);
  // How many to fork now, and like what.
  std::size_t wanted() const;
  const RunSpec& shape() const { return *shape_; }

  void forming(std::uint64_t id) { forming_.insert(id); }
  void ready(std::uint64_t id);  // it is confined
  void gone(std::uint64_t id);   // it has ended
  // It serves such a run now, and comes back afterwards if that leaves nothing in it.
  void lend(std::uint64_t id, const RunSpec&);
  // It is ready again after such a run. False: it is not wanted, or has another shape than is wanted.
  bool back(std::uint64_t id, const RunSpec&);
  void taken_gone(std::uint64_t id);  // it was in use, and does not come back
  // Many in a row have ended by themselves before a run came: the next would as well.
  bool hopeless() const { return failures_ >= kMostFailures; }
  void count(SandboxCounts& into) const {
    into.ready += static_cast<std::uint32_t>(ready_.size());
    into.forming += static_cast<std::uint32_t>(forming_.size());
    into.lent += static_cast<std::uint32_t>(lent_.size());
  }
  // Every few seconds: gives back those that are too many.
  std::vector<std::uint64_t> tend();
  std::vector<std::uint64_t> give_up();  // none can be set up in this shape: gives back all, and takes it no more
  std::vector<std::uint64_t> clear();    // gives back all, and wants no more

 private:
  static constexpr unsigned kMostFailures = 8;
  bool alike(const RunSpec&, const RunSpec&) const;
  bool serves(const RunSpec&) const;
  void learn(const RunSpec&);
  void retire_all();

  std::size_t most_, target_ = 1, lowest_ = 0;
  std::size_t most_lent_ = 0;  // since the last tend(): as many come back at once, and are wanted again
  bool memory_by_group_;
  std::optional<RunSpec> shape_, other_, hopeless_;  // other: that of the last run which differed
  unsigned failures_ = 0;                            // ended in the pool since one was taken
  unsigned misfits_ = 0;                             // runs in a row that were like `other_`
  std::deque<std::uint64_t> ready_;
  std::unordered_set<std::uint64_t> forming_, lent_, retired_;  // retired: of a former shape, to be given back
};

}  // namespace mycojobs::sandbox
