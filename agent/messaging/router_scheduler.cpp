#include "messaging/router_scheduler.h"

#include <algorithm>
#include <utility>

#include "store/job_fields.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kMaxClaimBatch = 8;
// Maximum number of queues in one claim, which blocks other clients of the server while it runs.
constexpr std::size_t kMaxHostQueues = 64, kMaxUnknownHostQueues = 16;

}  // namespace

std::uint32_t RouterSlots::available_slots(const std::string& host) const {
  const auto position = used_slots_.find(host);
  const std::uint32_t used = position == used_slots_.end() ? 0 : position->second;
  return used < free_ ? (free_ - used + 1) / 2 : 0;
}

void RouterSlots::acquire_slot(const std::string& host) {
  ++used_slots_[host];
  --free_;
}

void RouterSlots::release_slot(const std::string& host) {
  ++free_;
  if (--used_slots_[host] == 0) used_slots_.erase(host);
}

void RouterQueues::update_queues(std::map<std::string, std::string> hosts_by_queue,
                                 const std::vector<std::string>& queue_names) {
  hosts_by_queue_ = std::move(hosts_by_queue);
  unknown_host_queues_.clear();
  for (const std::string& queue : queue_names) {
    if (queue.starts_with(kRouterHostQueueKey) && !hosts_by_queue_.contains(queue))
      unknown_host_queues_.push_back(queue);
  }
}

bool RouterQueues::can_claim_shared_queue(const RouterSlots& slots) const {
  return slots.free() > 0 && (skipped_host_.empty() || slots.available_slots(skipped_host_) > 0);
}

RouterQueues::ClaimPlan RouterQueues::next_claims(const RouterSlots& slots) {
  ClaimPlan plan;
  if (slots.free() == 0) return plan;
  plan.max_jobs = std::min(kMaxClaimBatch, slots.free());
  auto entry = hosts_by_queue_.upper_bound(last_served_queue_);
  for (std::size_t i = 0; i < hosts_by_queue_.size() && plan.queues.size() < kMaxHostQueues; ++i, ++entry) {
    if (entry == hosts_by_queue_.end()) entry = hosts_by_queue_.begin();
    const std::uint32_t available = slots.available_slots(entry->second);
    if (available == 0) continue;
    plan.queues.push_back(entry->first);
    plan.max_jobs = std::min(plan.max_jobs, available);
  }
  // kRouterQueueKey is last, so that jobs that will be refused do not delay others. A job is released if its host has
  // no free slot.
  if (can_claim_shared_queue(slots)) {
    skipped_host_.clear();
    plan.queues.emplace_back(kRouterQueueKey);
  }
  for (std::size_t i = 0; i < std::min(unknown_host_queues_.size(), kMaxUnknownHostQueues); ++i)
    plan.queues.push_back(unknown_host_queues_[next_unknown_host_++ % unknown_host_queues_.size()]);
  return plan;
}

void RouterQueues::record_claims(const ClaimPlan& plan, const std::vector<std::string>& claimed_queues) {
  for (const auto* queues : {&claimed_queues, &plan.queues}) {
    const auto position = std::find_if(queues->rbegin(), queues->rend(),
                                       [&](const std::string& entry) { return is_known_host_queue(entry); });
    if (position == queues->rend()) continue;
    last_served_queue_ = *position;
    return;
  }
}

}  // namespace mycojobs
