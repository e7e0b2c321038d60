#include "sandbox/launcher/sandbox_pool.h"

#include <algorithm>
#include <utility>

namespace mycojobs::sandbox {
namespace {

constexpr unsigned kMaxConsecutiveMisses = 8;

}  // namespace

// Wall and CPU time are enforced by the launcher and may differ.
bool SandboxPool::has_same_shape(const RunSpec& a, const RunSpec& b) const {
  Limits limits = a.limits;
  limits.wall_ms = b.limits.wall_ms;
  limits.cpu_ms = b.limits.cpu_ms;
  if (memory_by_group_) limits.memory_bytes = b.limits.memory_bytes;
  return limits == b.limits;
}

bool SandboxPool::can_serve(const RunSpec& spec) const {
  return shape_ && !spec.learn && spec.grants == Grants{} && has_same_shape(spec, *shape_);
}

void SandboxPool::update_shape(const RunSpec& spec) {
  if (spec.learn || spec.grants != Grants{} || max_ready_ == 0 ||
      (rejected_shape_ && has_same_shape(spec, *rejected_shape_)))
    return;
  if (!shape_) {
    shape_ = spec;
    return;
  }
  consecutive_misses_ = candidate_shape_ && has_same_shape(spec, *candidate_shape_) ? consecutive_misses_ + 1 : 1;
  candidate_shape_ = spec;
  if (consecutive_misses_ < kMaxConsecutiveMisses) return;
  shape_ = spec;
  consecutive_misses_ = 0;
  retire_all();
}

void SandboxPool::retire_all() {
  retired_.insert(starting_.begin(), starting_.end());
  retired_.insert(ready_.begin(), ready_.end());
  starting_.clear();
  ready_.clear();
  in_use_.clear();
}

std::optional<std::uint64_t> SandboxPool::acquire(const RunSpec& spec) {
  if (!can_serve(spec)) return update_shape(spec), std::nullopt;
  consecutive_misses_ = 0;
  if (ready_.empty()) {
    target_size_ = std::min(max_ready_, target_size_ * 2);
    ready_low_water_ = 0;
    return {};
  }
  failures_ = 0;
  const std::uint64_t id = ready_.front();
  ready_.pop_front();
  ready_low_water_ = std::min(ready_low_water_, ready_.size());
  return id;
}

std::size_t SandboxPool::missing_count() const {
  const std::size_t existing = ready_.size() + starting_.size() + in_use_.size();
  const std::size_t target = shape_ ? std::min(max_ready_, target_size_) : 0;
  return target > existing ? target - existing : 0;
}

void SandboxPool::mark_ready(std::uint64_t id) {
  if (starting_.erase(id) > 0) ready_.push_back(id);
}

void SandboxPool::mark_in_use(std::uint64_t id, const RunSpec& spec) {
  if (can_serve(spec)) in_use_.insert(id);
  max_in_use_ = std::max(max_in_use_, in_use_.size());
}

bool SandboxPool::return_sandbox(std::uint64_t id, const RunSpec& spec) {
  if (in_use_.erase(id) == 0 || !can_serve(spec) ||
      ready_.size() >= (max_ready_ == 0 ? 0 : std::max(max_ready_, max_in_use_)))
    return false;
  ready_.push_back(id);
  return true;
}

void SandboxPool::on_in_use_ended(std::uint64_t id) { in_use_.erase(id); }

void SandboxPool::on_ended(std::uint64_t id) {
  retired_.erase(id);
  if (starting_.erase(id) + std::erase(ready_, id) > 0) ++failures_;
}

std::vector<std::uint64_t> SandboxPool::shrink_to_need() {
  std::vector<std::uint64_t> sandboxes(retired_.begin(), retired_.end());
  target_size_ = std::max<std::size_t>(1, target_size_ - std::min(target_size_, (ready_low_water_ + 1) / 2));
  const std::size_t max_kept = std::max(target_size_, std::exchange(max_in_use_, in_use_.size()));
  while (ready_.size() > max_kept) {
    sandboxes.push_back(ready_.back());
    ready_.pop_back();
  }
  ready_low_water_ = ready_.size();
  return sandboxes;
}

std::vector<std::uint64_t> SandboxPool::reject_shape() {
  rejected_shape_ = std::exchange(shape_, std::nullopt);
  candidate_shape_.reset();
  consecutive_misses_ = failures_ = 0;
  retire_all();
  return {retired_.begin(), retired_.end()};
}

std::vector<std::uint64_t> SandboxPool::clear() {
  max_ready_ = 0;
  retire_all();
  return {retired_.begin(), retired_.end()};
}

}  // namespace mycojobs::sandbox
