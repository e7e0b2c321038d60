#include "sandbox/launcher/sandbox_pool.h"

#include <algorithm>
#include <utility>

namespace mycojobs::sandbox {
namespace {

constexpr unsigned kMisfitsToChange = 8;

}  // namespace

// Wall and CPU time are enforced by the launcher and may differ.
bool SandboxPool::has_same_shape(const RunSpec& a, const RunSpec& b) const {
  Limits limits = a.limits;
  limits.wall_ms = b.limits.wall_ms;
  limits.cpu_ms = b.limits.cpu_ms;
  if (memory_by_group_) limits.memory_bytes = b.limits.memory_bytes;
  return limits == b.limits;
}

bool SandboxPool::serves(const RunSpec& spec) const {
  return shape_ && !spec.learn && spec.grants == Grants{} && has_same_shape(spec, *shape_);
}

void SandboxPool::update_shape(const RunSpec& spec) {
  if (spec.learn || spec.grants != Grants{} || most_ == 0 || (hopeless_ && has_same_shape(spec, *hopeless_))) return;
  if (!shape_) {
    shape_ = spec;
    return;
  }
  misfits_ = other_ && has_same_shape(spec, *other_) ? misfits_ + 1 : 1;
  other_ = spec;
  if (misfits_ < kMisfitsToChange) return;
  shape_ = spec;
  misfits_ = 0;
  retire_all();
}

void SandboxPool::retire_all() {
  retired_.insert(forming_.begin(), forming_.end());
  retired_.insert(ready_.begin(), ready_.end());
  forming_.clear();
  ready_.clear();
  lent_.clear();
}

std::optional<std::uint64_t> SandboxPool::take(const RunSpec& spec) {
  if (!serves(spec)) return update_shape(spec), std::nullopt;
  misfits_ = 0;
  if (ready_.empty()) {
    target_ = std::min(most_, target_ * 2);
    lowest_ = 0;
    return {};
  }
  failures_ = 0;
  const std::uint64_t id = ready_.front();
  ready_.pop_front();
  lowest_ = std::min(lowest_, ready_.size());
  return id;
}

std::size_t SandboxPool::wanted() const {
  const std::size_t there = ready_.size() + forming_.size() + lent_.size();
  const std::size_t target = shape_ ? std::min(most_, target_) : 0;
  return target > there ? target - there : 0;
}

void SandboxPool::ready(std::uint64_t id) {
  if (forming_.erase(id) > 0) ready_.push_back(id);
}

void SandboxPool::mark_in_use(std::uint64_t id, const RunSpec& spec) {
  if (serves(spec)) lent_.insert(id);
  most_lent_ = std::max(most_lent_, lent_.size());
}

bool SandboxPool::return_sandbox(std::uint64_t id, const RunSpec& spec) {
  if (lent_.erase(id) == 0 || !serves(spec) || ready_.size() >= (most_ == 0 ? 0 : std::max(most_, most_lent_)))
    return false;
  ready_.push_back(id);
  return true;
}

void SandboxPool::on_in_use_ended(std::uint64_t id) { lent_.erase(id); }

void SandboxPool::on_ended(std::uint64_t id) {
  retired_.erase(id);
  if (forming_.erase(id) + std::erase(ready_, id) > 0) ++failures_;
}

std::vector<std::uint64_t> SandboxPool::adjust_size() {
  std::vector<std::uint64_t> leave(retired_.begin(), retired_.end());
  target_ = std::max<std::size_t>(1, target_ - std::min(target_, (lowest_ + 1) / 2));
  const std::size_t keep = std::max(target_, std::exchange(most_lent_, lent_.size()));
  while (ready_.size() > keep) {
    leave.push_back(ready_.back());
    ready_.pop_back();
  }
  lowest_ = ready_.size();
  return leave;
}

std::vector<std::uint64_t> SandboxPool::reject_shape() {
  hopeless_ = std::exchange(shape_, std::nullopt);
  other_.reset();
  misfits_ = failures_ = 0;
  retire_all();
  return {retired_.begin(), retired_.end()};
}

std::vector<std::uint64_t> SandboxPool::clear() {
  most_ = 0;
  retire_all();
  return {retired_.begin(), retired_.end()};
}

}  // namespace mycojobs::sandbox
