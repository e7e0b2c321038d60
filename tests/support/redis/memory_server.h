// An in-process Redis server for tests and simulations. The stores on top are those of the product, with its scripts.
// Any number of stores and waiters share one server; the server must outlive them. Thread-safe. With one thread and a
// fixed clock everything is deterministic except the ids that the store generates.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "store/redis/redis_link.h"
#include "store/store.h"
#include "support/redis/memory_redis.h"

namespace mycojobs {

// A fault that is injected into a call. before: the call fails and has no effect. after: the call is executed, but its
// reply is lost.
enum class Fault { none, before, after };

// A script or command that a store is about to send.
struct ServerCall {
  std::string_view name;    // name of the script in scripts/, or of the command ("HSET")
  std::uint64_t write = 0;  // number among the calls that can write, from 1; 0 for a read-only call
  operator std::string_view() const { return name; }
};

class MemorySubscription;

class MemoryServer final : public StoreFactory {
 public:
  explicit MemoryServer(const Clock& clock);  // unix_ms() is the result of TIME

  Result<std::unique_ptr<Store>> open() override;
  Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                              const std::string& topic) override;
  Result<std::unique_ptr<HintSubscription>> subscribe(Id context, const HintTopics&, HintListener&) override;
  Result<std::unique_ptr<ObjectStore>> open_objects() override;
  Result<std::unique_ptr<FlowStore>> open_flows() override;
  Result<std::unique_ptr<WorkflowStore>> open_workflows() override;
  std::unique_ptr<Link> open_link(Id context);

  // `faults` is called before each script and command of a store, but not for plain clients. The server's lock is held,
  // so `faults` must not call the server.
  void set_faults(std::function<Fault(const ServerCall&)> faults);
  // The largest number of steps (memory_redis.h) of one call, by the name of the script or command.
  std::map<std::string, std::uint64_t, std::less<>> max_steps() const;
  std::uint64_t writes() const;  // number of received calls that can write, including failed calls

  // Number of entries that were ever added to a stream, and the number that it still contains.
  struct Entries {
    std::uint64_t added = 0, kept = 0;
    bool operator==(const Entries&) const = default;
  };
  Entries entries(Id context, std::string_view stream) const;

  // The data of all databases and the number of writes. Excludes received notifications and blocked waits.
  struct Snapshot {
    memory::Databases databases;
    std::uint64_t writes = 0;
  };
  Snapshot snapshot() const;
  void restore(Snapshot);

  // Commands of other Redis clients, which do not use the store. Error replies are returned as replies.
  Reply run_command(Id context, const std::vector<std::string>& words);
  void push(Id context, const std::string& queue, const std::string& entry);
  void put_text(Id context, const std::string& key, const std::string& text);
  void erase(Id context, const std::string& key);
  void publish(const std::string& topic, const std::string& text);

 private:
  friend class MemoryLink;
  friend class MemoryWaiter;
  friend class MemorySubscription;
  using PublicationQueue = std::deque<std::string>;
  using Until = std::chrono::steady_clock::time_point;

  // Executes one step under the lock and applies the injected fault. If the reply is nil, the step is repeated after
  // each change until `until`.
  Result<Reply> perform(const memory::CommandKind&, Until until, const std::function<memory::MemoryReply()>& step);
  void report_changed_keys();  // reports changed keys to the subscriptions; requires the lock
  std::size_t publish_to_subscribers(std::string_view channel, std::string_view text);  // requires the lock

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  memory::MemoryRedis redis_;
  std::function<Fault(const ServerCall&)> faults_;
  std::uint64_t writes_ = 0;
  std::map<std::string, std::uint64_t, std::less<>> most_steps_;
  std::multimap<std::string, PublicationQueue*, std::less<>> subscribers_;  // by channel
  std::list<MemorySubscription*> subscriptions_;
};

}  // namespace mycojobs
