// Waits on a server in this process, in real time, with one condition variable for everything.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/memory/memory_server.h"

namespace mycojobs {

class MemoryWaiter final : public Waiter {
 public:
  MemoryWaiter(MemoryServer&, const std::vector<std::pair<Id, std::string>>& queues, const std::string& topic);
  ~MemoryWaiter() override;
  MemoryWaiter(const MemoryWaiter&) = delete;
  MemoryWaiter& operator=(const MemoryWaiter&) = delete;

  Result<Woken> wait(std::uint32_t timeout_ms, bool for_work) override;
  void set_paused(Id context, const std::vector<std::string>& queues) override;
  void wake() override;

 private:
  bool has_work() const;  // under the server's lock

  MemoryServer& server_;
  const std::vector<std::pair<Id, std::string>> queues_;
  std::map<Id, std::set<std::string>> paused_;
  MemoryServer::Heard hints_;
  MemoryServer::Heard announced_;  // on mj:wake; like RedisWaiter, a wait that is not for work passes over it
  bool called_ = false;
};

}  // namespace mycojobs
