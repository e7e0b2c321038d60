// Deployments that wait for a turn in a round of the coordinator. Owners are served round-robin, and the deployments of
// an owner in the order in which they were added, so an owner with many deployments does not delay the other owners.
// Not thread-safe.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/records.h"

namespace mycojobs {

class OwnerTurns {
 public:
  // Has no effect if the deployment waits already.
  void add(Id owner, const std::string& deployment) {
    if (waiting_.insert(deployment).second) queues_[owner].push_back(deployment);
  }
  // Removes and returns the next deployment of this owner.
  std::optional<std::string> pop(Id owner) {
    const auto queue = queues_.find(owner);
    if (queue == queues_.end()) return std::nullopt;
    std::string name = std::move(queue->second.front());
    queue->second.pop_front();
    if (queue->second.empty()) queues_.erase(queue);
    waiting_.erase(name);
    return name;
  }
  // Returns the owners with a waiting deployment.
  std::vector<Id> owners() const {
    std::vector<Id> all;
    for (const auto& [owner, queue] : queues_) all.push_back(owner);
    return all;
  }
  bool any_waits() const { return !queues_.empty(); }
  void clear() {
    queues_.clear();
    waiting_.clear();
  }

 private:
  std::map<Id, std::deque<std::string>> queues_;  // without empty queues
  std::set<std::string> waiting_;
};

}  // namespace mycojobs
