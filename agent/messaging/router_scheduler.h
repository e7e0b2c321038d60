// Distributes the slots of a router (router.h) between remote supervisors, and selects the queues from which jobs are
// claimed next. No side effects. Not thread-safe.
//
// A supervisor may use at most as many slots as stay free: the first supervisor uses up to half of all slots, the
// second a quarter, and so on. So a slow supervisor does not block jobs for other supervisors. A job without a slot
// stays in its queue, where it can be cancelled, can time out, or can be claimed by another router. Each host has a
// queue of its own (router_queue(), store/job_fields.h), so that its jobs do not block jobs of other hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mycojobs {

// The slots in use, by host. Host names are those of extract_host() (net/host.h).
class RouterSlots {
 public:
  explicit RouterSlots(std::uint32_t slot_count) : free_(slot_count) {}
  std::uint32_t free() const { return free_; }
  // Returns the number of slots that the host may acquire now.
  std::uint32_t available_slots(const std::string& host) const;
  void acquire_slot(const std::string& host);
  void release_slot(const std::string& host);

 private:
  std::uint32_t free_;
  std::map<std::string, std::uint32_t> used_slots_;
};

// The queues of a router: one queue for each host, and the queue kRouterQueueKey, which all hosts share.
class RouterQueues {
 public:
  struct ClaimPlan {
    std::vector<std::string> queues;
    std::uint32_t max_jobs = 0;  // for all queues together
    bool operator==(const ClaimPlan&) const = default;
  };

  // hosts_by_queue has the hosts of the supervisors that have a record. queue_names are all router queues. The queues
  // of hosts without a record are polled as well, since their jobs must be refused, but only a few at a time: any
  // author of a flow can name hosts.
  void update_queues(std::map<std::string, std::string> hosts_by_queue, const std::vector<std::string>& queue_names);
  // Returns whether the queue belongs to a host with a record.
  bool is_known_host_queue(const std::string& queue) const { return hosts_by_queue_.contains(queue); }
  // Returns whether there are queues besides kRouterQueueKey.
  bool has_host_queues() const { return !hosts_by_queue_.empty() || !unknown_host_queues_.empty(); }
  // Returns the next queues to claim from; hosts are served round-robin. The list is empty if no host has a free slot.
  ClaimPlan next_claims(const RouterSlots&);
  // Reports the result of a claim, so that the next plan starts with another host. claimed_queues are the queues of the
  // claimed jobs, in the order of the jobs.
  void record_claims(const ClaimPlan&, const std::vector<std::string>& claimed_queues);
  // Skips kRouterQueueKey until the host has a free slot. Call it if the first job of that queue is for a host without
  // a free slot.
  void skip_shared_queue(std::string host) { skipped_host_ = std::move(host); }
  // Returns whether new entries of kRouterQueueKey can be claimed.
  bool can_claim_shared_queue(const RouterSlots&) const;

 private:
  std::map<std::string, std::string> hosts_by_queue_;
  std::vector<std::string> unknown_host_queues_;  // queues of hosts without a record
  std::string last_served_queue_;
  std::size_t next_unknown_host_ = 0;
  // Host of the first job in the shared queue, for which no slot was free. Empty if the shared queue is not skipped.
  std::string skipped_host_;
};

}  // namespace mycojobs
