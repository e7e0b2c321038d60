#include "messaging/router_scheduler.h"

#include <algorithm>
#include <utility>

#include "store/job_fields.h"

namespace mycojobs {
namespace {

constexpr std::uint32_t kMaxClaimBatch = 8;
// Maximum number of queues in one claim, which blocks other clients of the server while it runs.
constexpr std::size_t kMaxHostsBatch = 64, kMaxUnknownHostsBatch = 16;

}  // namespace

std::uint32_t RouterSlots::available_slots(const std::string& host) const {
  const auto found = taken_.find(host);
  const std::uint32_t taken = found == taken_.end() ? 0 : found->second;
  return taken < free_ ? (free_ - taken + 1) / 2 : 0;
}

void RouterSlots::acquire_slot(const std::string& host) {
  ++taken_[host];
  --free_;
}

void RouterSlots::release_slot(const std::string& host) {
  ++free_;
  if (--taken_[host] == 0) taken_.erase(host);
}

void RouterQueues::update_queues(std::map<std::string, std::string> of_hosts, const std::vector<std::string>& names) {
  of_hosts_ = std::move(of_hosts);
  unknown_hosts_.clear();
  for (const std::string& name : names) {
    if (name.starts_with(kRouterQueues) && !of_hosts_.contains(name)) unknown_hosts_.push_back(name);
  }
}

bool RouterQueues::waits(const RouterSlots& places) const {
  return places.free() > 0 && (held_back_.empty() || places.available_slots(held_back_) > 0);
}

RouterQueues::ClaimPlan RouterQueues::next(const RouterSlots& places) {
  ClaimPlan ask;
  if (places.free() == 0) return ask;
  ask.max_jobs = std::min(kMaxClaimBatch, places.free());
  auto each = of_hosts_.upper_bound(after_);
  for (std::size_t i = 0; i < of_hosts_.size() && ask.queues.size() < kMaxHostsBatch; ++i, ++each) {
    if (each == of_hosts_.end()) each = of_hosts_.begin();
    const std::uint32_t room = places.available_slots(each->second);
    if (room == 0) continue;
    ask.queues.push_back(each->first);
    ask.max_jobs = std::min(ask.max_jobs, room);
  }
  // kRouterQueue is last, so that jobs that will be refused do not delay others. A job is released if its host has no
  // free slot.
  if (waits(places)) {
    held_back_.clear();
    ask.queues.emplace_back(kRouterQueue);
  }
  for (std::size_t i = 0; i < std::min(unknown_hosts_.size(), kMaxUnknownHostsBatch); ++i)
    ask.queues.push_back(unknown_hosts_[next_unknown_host_++ % unknown_hosts_.size()]);
  return ask;
}

void RouterQueues::record_claims(const ClaimPlan& asked, const std::vector<std::string>& came) {
  for (const auto* all : {&came, &asked.queues}) {
    const auto last = std::find_if(all->rbegin(), all->rend(), [&](const std::string& each) { return knows(each); });
    if (last == all->rend()) continue;
    after_ = *last;
    return;
  }
}

}  // namespace mycojobs
