// The idle sandboxes of one zygote: forked, confined and waiting for a run, so that set-up does not delay a job.
// Prewarmed sandboxes have served no run; reused ones return after a run that left nothing behind (runs.h). Bookkeeping
// only: Zygotes forks and ends the sandboxes.
//
// The size of the pool is doubled when a run finds no sandbox (up to the maximum), and reduced by the number that was
// not needed for some time. After the first run it is at least one. All sandboxes of the pool are set up with the same
// limits, the shape of the pool, which is taken from the runs. A run with other limits or with grants receives a
// sandbox of its own.
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
  // With `memory_by_group` the memory limit of a sandbox can be changed when the sandbox receives its run.
  explicit SandboxPool(std::size_t max = 0, bool memory_by_group = false)
      : max_ready_(max), memory_by_group_(memory_by_group) {}

  // Removes and returns a sandbox with the limits of this run. Returns nullopt if no such sandbox is ready.
  std::optional<std::uint64_t> acquire(const RunSpec&);
  // Number of sandboxes to fork now; shape() has their limits.
  std::size_t missing_count() const;
  const RunSpec& shape() const { return *shape_; }

  void add_starting(std::uint64_t id) { starting_.insert(id); }
  void mark_ready(std::uint64_t id);  // the sandbox is confined
  void on_ended(std::uint64_t id);    // the sandbox has ended
  // The sandbox serves this run, and returns with return_sandbox() if the run leaves nothing behind.
  void mark_in_use(std::uint64_t id, const RunSpec&);
  // The sandbox is ready again after this run. Returns false if it is not needed or has an outdated shape.
  bool return_sandbox(std::uint64_t id, const RunSpec&);
  void on_in_use_ended(std::uint64_t id);  // a sandbox in use has ended
  // Many sandboxes in a row have ended before a run arrived: further ones would fail too.
  bool has_failed_permanently() const { return failures_ >= kMaxFailures; }
  void add_counts(SandboxCounts& counts) const {
    counts.ready += static_cast<std::uint32_t>(ready_.size());
    counts.starting += static_cast<std::uint32_t>(starting_.size());
    counts.in_use += static_cast<std::uint32_t>(in_use_.size());
  }
  // Called every few seconds: returns the sandboxes to end.
  std::vector<std::uint64_t> shrink_to_need();
  // Called when no sandbox of this shape can be set up: rejects the shape and returns the sandboxes to end.
  std::vector<std::uint64_t> reject_shape();
  // Disables the pool and returns the sandboxes to end.
  std::vector<std::uint64_t> clear();

 private:
  static constexpr unsigned kMaxFailures = 8;
  bool has_same_shape(const RunSpec&, const RunSpec&) const;
  bool can_serve(const RunSpec&) const;
  void update_shape(const RunSpec&);
  void retire_all();

  std::size_t max_ready_, target_size_ = 1, ready_low_water_ = 0;
  std::size_t max_in_use_ = 0;  // maximum since the last shrink_to_need(); this many may return and be needed again
  bool memory_by_group_;
  std::optional<RunSpec> shape_, rejected_shape_;
  std::optional<RunSpec> candidate_shape_;  // limits of the last run that did not fit shape_
  unsigned failures_ = 0;                   // sandboxes that ended in the pool since the last acquire()
  unsigned consecutive_misses_ = 0;         // runs like `candidate_shape_`
  std::deque<std::uint64_t> ready_;
  // Sandboxes in retired_ have an outdated shape and are to be ended.
  std::unordered_set<std::uint64_t> starting_, in_use_, retired_;
};

}  // namespace mycojobs::sandbox
