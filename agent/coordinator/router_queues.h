// How a router (router.h) shares its places between supervisors, and which queues it asks next. Pure; one thread.
//
// A supervisor never has more places than are free. One alone has half of them; the next one gets half of the rest; and
// one that answers slowly, or never, leaves room for those that come after it. What has no place waits in its queue,
// unclaimed: it can be cancelled and times out as any job that waits, and another router may take it. Each host has a
// queue of its own (router_queue(), store/job_fields.h), so that nobody else's jobs stand behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mycojobs {

// Hosts by host_of_address() (domain/host.h).
class RouterPlaces {
 public:
  explicit RouterPlaces(std::uint32_t all) : free_(all) {}
  std::uint32_t free() const { return free_; }
  // How many more it may have now, whoever else takes as many at the same time.
  std::uint32_t room_of(const std::string& host) const;
  void take(const std::string& host);
  void leave(const std::string& host);

 private:
  std::uint32_t free_;
  std::map<std::string, std::uint32_t> taken_;
};

class RouterQueues {
 public:
  struct Ask {
    std::vector<std::string> queues;
    std::uint32_t max_jobs = 0;  // so many fit, from whichever of the queues they come
    bool operator==(const Ask&) const = default;
  };

  // of_hosts: queue to host, of the supervisors that have a record; names: of queues, whichever there are. Those of
  // hosts that nobody has a record of are asked too, since their jobs are to be refused, but a few at a time: anybody
  // who writes flows can name hosts.
  void look(std::map<std::string, std::string> of_hosts, const std::vector<std::string>& names);
  bool knows(const std::string& queue) const { return of_hosts_.contains(queue); }
  // Hosts take turns. No queues: there is no place for anybody whose jobs might come.
  Ask next(const RouterPlaces&);
  // came: the queues that jobs have come from, in the order of these.
  void answered(const Ask&, const std::vector<std::string>& came);
  // The first job of kRouterQueue is this host's, which has no room: that queue is left alone until it has.
  void hold_back(std::string host) { held_back_ = std::move(host); }
  bool waits(const RouterPlaces&) const;  // for entries of kRouterQueue

 private:
  std::map<std::string, std::string> of_hosts_;
  std::vector<std::string> strangers_;
  std::string after_;  // whose turn was the last
  std::size_t next_stranger_ = 0;
  std::string held_back_;
};

}  // namespace mycojobs
