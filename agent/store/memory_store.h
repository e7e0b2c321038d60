// The store in memory: for tests of everything above the port, and for simulation. Any number of stores and waiters
// share one server, from any thread; it must outlive them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "mycojobs/clock.h"
#include "mycojobs/store.h"

namespace mycojobs {

class MemoryDatabase;

// What a call meets: nothing, an error before it did anything, an error after it did everything (the reply is lost).
enum class Fault { none, before, after };

class MemoryServer final : public StoreFactory {
 public:
  explicit MemoryServer(const Clock& clock);  // unix_ms() is the store's time
  ~MemoryServer() override;

  Result<std::unique_ptr<Store>> open() override;
  Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                              const std::string& topic) override;

  // Asked before each call of a Store, with the name of its function. Under the lock: must not call back.
  void set_faults(std::function<Fault(std::string_view call)>);

  // What plain clients of a Redis do.
  void push(Id context, const std::string& queue, const std::string& entry);
  void put_text(Id context, const std::string& key, const std::string& text);  // a key of the wrong type
  void erase(Id context, const std::string& key);
  void publish(const std::string& topic, const std::string& text);

 private:
  friend class MemoryStore;
  friend class MemoryWaiter;
  MemoryDatabase& database(Id context);  // under the lock, its time set

  const Clock& clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<Fault(std::string_view)> faults_;
  std::map<Id, std::unique_ptr<MemoryDatabase>> databases_;
  std::multimap<std::string, std::deque<std::string>*> subscribers_;  // by topic
};

}  // namespace mycojobs
