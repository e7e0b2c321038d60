// The idle sandboxes of one zygote: forked, confined and waiting for a run, so that set-up does not delay a job.
// Prewarmed sandboxes have served no run; reused ones return after a run that left nothing behind (runs.h). Bookkeeping
// only: Zygotes forks and ends the sandboxes.
//
// Size: doubled when a run finds no sandbox (up to the maximum), reduced by the number that was not needed for some
// time, at least one after the first run. Shape: the limits with which sandboxes are set up, taken from the runs; a run
// with other limits or with grants receives a sandbox of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_set>
#include <vector>

#include "sandbox/sandbox.h"

namespace mycojobs::sandbox {

class SandboxPool {
 public:
  // memory_by_group: the memory limit of a sandbox can be changed when it receives its run.
  explicit SandboxPool(std::size_t max = 0, bool memory_by_group = false)
      : most_(max), memory_by_group_(memory_by_group) {}

  // Removes and returns a sandbox with the limits of this run; nullopt: none is ready.
  std::optional<std::uint64_t> take(const RunSpec&);
  // Number of sandboxes to fork now; shape() has their limits.
  std::size_t wanted() const;
  const RunSpec& shape() const { return *shape_; }

  void forming(std::uint64_t id) { forming_.insert(id); }
  void ready(std::uint64_t id);     // the sandbox is confined
  void on_ended(std::uint64_t id);  // the sandbox has ended
  // The sandbox serves this run, and returns with return_sandbox() if the run leaves nothing behind.
  void mark_in_use(std::uint64_t id, const RunSpec&);
  // The sandbox is ready again after this run. Returns false if it is not needed or has an outdated shape.
  bool return_sandbox(std::uint64_t id, const RunSpec&);
  void on_in_use_ended(std::uint64_t id);  // a sandbox in use has ended
  // Many sandboxes in a row have ended before a run arrived: further ones would fail too.
  bool has_failed_permanently() const { return failures_ >= kMaxFailures; }
  void count(SandboxCounts& into) const {
    into.ready += static_cast<std::uint32_t>(ready_.size());
    into.forming += static_cast<std::uint32_t>(forming_.size());
    into.lent += static_cast<std::uint32_t>(lent_.size());
  }
  // Called every few seconds: returns the sandboxes to end.
  std::vector<std::uint64_t> adjust_size();
  std::vector<std::uint64_t>
  reject_shape();                      // this shape cannot be set up: returns all sandboxes and rejects the shape
  std::vector<std::uint64_t> clear();  // returns all sandboxes and disables the pool

 private:
  static constexpr unsigned kMaxFailures = 8;
  bool has_same_shape(const RunSpec&, const RunSpec&) const;
  bool serves(const RunSpec&) const;
  void update_shape(const RunSpec&);
  void retire_all();

  std::size_t most_, target_ = 1, lowest_ = 0;
  std::size_t most_lent_ = 0;  // maximum since the last adjust_size(); this many may return and be needed again
  bool memory_by_group_;
  std::optional<RunSpec> shape_, other_, hopeless_;  // other: of the last run with other limits
  unsigned failures_ = 0;                            // sandboxes that ended in the pool since the last take()
  unsigned misfits_ = 0;                             // consecutive runs like `other_`
  std::deque<std::uint64_t> ready_;
  std::unordered_set<std::uint64_t> forming_, lent_, retired_;  // retired: of an outdated shape, to be ended
};

}  // namespace mycojobs::sandbox
