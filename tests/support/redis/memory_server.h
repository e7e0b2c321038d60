// Redis in this process, for tests and for simulation: the store that runs over it is the very RedisStore, with the
// very scripts. Any number of stores and waiters share one server, from any thread; it must outlive them. With one
// thread and a given clock everything but the ids that the store makes up is the same each time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mycojobs/clock.h"
#include "mycojobs/store.h"
#include "store/link.h"
#include "support/redis/memory_redis.h"

namespace mycojobs {

// What a call meets: nothing, an error before it did anything, an error after it did everything (the reply is lost).
enum class Fault { none, before, after };

// A script or command that a store is about to send.
struct ServerCall {
  std::string_view name;    // of the script, as in scripts/; else of the command: "HSET"
  std::uint64_t write = 0;  // its number among those that can change anything, from 1; 0: it only reads
  operator std::string_view() const { return name; }
};

class MemoryServer final : public StoreFactory {
 public:
  explicit MemoryServer(const Clock& clock);  // unix_ms() is the server's TIME

  Result<std::unique_ptr<Store>> open() override;
  Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                              const std::string& topic) override;
  Result<std::unique_ptr<ObjectStore>> open_objects() override;
  Result<std::unique_ptr<FlowStore>> open_flows() override;
  Result<std::unique_ptr<WorkflowStore>> open_workflows() override;
  std::unique_ptr<Link> open_link(Id context);

  // Asked before each script and command of a store; not for plain clients. Under the lock: must not call back.
  void set_faults(std::function<Fault(const ServerCall&)> faults);
  // The most steps (memory_redis.h) of one call, by the name of its script or command.
  std::map<std::string, std::uint64_t, std::less<>> most_steps() const;
  std::uint64_t writes() const;  // how many calls that can change anything have come, those with a fault among them

  // How many entries a stream has had, and how many of them it still has.
  struct Entries {
    std::uint64_t added = 0, kept = 0;
    bool operator==(const Entries&) const = default;
  };
  Entries entries(Id context, std::string_view stream) const;

  // The data of all databases and the number of writes. Not what waiters have heard, nor what is waited for.
  struct Snapshot {
    memory::Databases databases;
    std::uint64_t writes = 0;
  };
  Snapshot snapshot() const;
  void restore(Snapshot);

  // What plain clients of a Redis do. An error is a reply too.
  Reply plain(Id context, const std::vector<std::string>& words);
  void push(Id context, const std::string& queue, const std::string& entry);
  void put_text(Id context, const std::string& key, const std::string& text);
  void erase(Id context, const std::string& key);
  void publish(const std::string& topic, const std::string& text);

 private:
  friend class MemoryLink;
  friend class MemoryWaiter;
  using Heard = std::deque<std::string>;
  using Until = std::chrono::steady_clock::time_point;

  // One step under the lock, with the fault that the test asked for. A nil reply: again after each change, until then.
  Result<Reply> perform(const memory::CommandKind&, Until until, const std::function<memory::Answer()>& step);
  std::size_t tell(std::string_view channel, std::string_view text);  // under the lock

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  memory::MemoryRedis redis_;
  std::function<Fault(const ServerCall&)> faults_;
  std::uint64_t writes_ = 0;
  std::map<std::string, std::uint64_t, std::less<>> most_steps_;
  std::multimap<std::string, Heard*, std::less<>> subscribers_;  // by channel
};

}  // namespace mycojobs
