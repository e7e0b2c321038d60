// Distribution of the slots of a router (router.h) between supervisors, and the choice of the queues to claim from
// next. No side effects. Not thread-safe.
//
// A supervisor holds at most as many slots as remain free: the first supervisor half of all slots, the second one half
// of the rest. So a supervisor that answers slowly or never leaves slots for the others. A job without a slot stays in
// its queue, unclaimed: it can be cancelled, it times out like any queued job, and another router may claim it. Each
// host has a queue of its own (router_queue(), store/job_fields.h), so that its jobs do not block jobs of other hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mycojobs {

// Slots in use by host. Host names are those of host_of_address() (net/host.h).
class RouterSlots {
 public:
  explicit RouterSlots(std::uint32_t all) : free_(all) {}
  std::uint32_t free() const { return free_; }
  // Returns how many more slots the host may take now.
  std::uint32_t available_slots(const std::string& host) const;
  void acquire_slot(const std::string& host);
  void release_slot(const std::string& host);

 private:
  std::uint32_t free_;
  std::map<std::string, std::uint32_t> taken_;
};

class RouterQueues {
 public:
  struct ClaimPlan {
    std::vector<std::string> queues;
    std::uint32_t max_jobs = 0;  // maximum number of jobs from all queues together
    bool operator==(const ClaimPlan&) const = default;
  };

  // of_hosts: host by queue, for the supervisors that have a record. names: all router queues. The queues of hosts
  // without a record are polled as well, since their jobs must be refused, but only a few at a time: any author of a
  // flow can name hosts.
  void update_queues(std::map<std::string, std::string> of_hosts, const std::vector<std::string>& names);
  bool knows(const std::string& queue) const { return of_hosts_.contains(queue); }
  // Returns the next queues to claim from; hosts are served round-robin. The list is empty if no host has a free slot.
  ClaimPlan next(const RouterSlots&);
  // came: the queues of the claimed jobs, in the order of the jobs.
  void record_claims(const ClaimPlan&, const std::vector<std::string>& came);
  // Reports that the first job of kRouterQueue is for a host without a free slot. That queue is skipped until the host
  // has one.
  void skip_host(std::string host) { held_back_ = std::move(host); }
  bool waits(const RouterSlots&) const;  // Returns whether new entries of kRouterQueue can be claimed.

 private:
  std::map<std::string, std::string> of_hosts_;
  std::vector<std::string> unknown_hosts_;
  std::string after_;  // host that was served last
  std::size_t next_unknown_host_ = 0;
  std::string held_back_;
};

}  // namespace mycojobs
