// A coordinator on a host without free threads keeps running, reports which context is not served, and serves it later.
// The number of threads does not depend on the number of contexts. A server that hangs delays only its own contexts.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>

#include "base/clock.h"
#include "base/thread.h"
#include "coordinator/coordinator.h"
#include "store/redis/redis_flows.h"
#include "store/redis/store_connection.h"
#include "support/process.h"
#include "support/redis/memory_server.h"

namespace mycojobs {
namespace {

using test::eventually;

class CoordinatorThreads : public ::testing::Test {
 protected:
  std::unique_ptr<Coordinator> make_coordinator(std::vector<Id> contexts) {
    CoordinatorSettings settings;
    settings.contexts = std::move(contexts);
    settings.discover_ms = 10;
    return std::make_unique<Coordinator>(server_, clock_, settings);
  }
  SystemClock clock_;
  MemoryServer server_{clock_};
};

TEST_F(CoordinatorThreads, ContextsAreServedOnceThreadsCanBeCreated) {
  for (const std::vector<Id>& contexts : {std::vector<Id>{1, 2}, std::vector<Id>{}}) {
    const auto coordinator = make_coordinator(contexts);
    EXPECT_EQ(coordinator->unready_reason(), "it is starting");
    {
      const SimulatedThreadShortage shortage;
      const auto started = coordinator->start_threads();
      ASSERT_TRUE(started) << started.error().message;
      coordinator->is_healthy();
      if (!contexts.empty()) {
        const std::string reason = coordinator->unready_reason();
        EXPECT_EQ(reason.rfind("context 1 cannot be served: no thread can be started", 0), 0U) << reason;
      }
    }
    EXPECT_TRUE(eventually([&] {
      coordinator->is_healthy();
      return coordinator->unready_reason().empty();
    })) << coordinator->unready_reason();
  }
}

std::size_t count_threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(threads), end(threads)));
}

bool has_leader(MemoryServer& server, Id context) {
  return server.run_command(context, {"EXISTS", "mj:coordinator"}).number() == 1;
}

TEST_F(CoordinatorThreads, ManyContextsShareTheThreads) {
  std::vector<Id> contexts;
  for (Id context = 1; context <= 60; ++context) contexts.push_back(context);
  const std::size_t threads_before = count_threads();
  const auto coordinator = make_coordinator(contexts);
  ASSERT_TRUE(coordinator->start_threads());
  for (const Id context : contexts) EXPECT_TRUE(eventually([&] { return has_leader(server_, context); })) << context;
  EXPECT_LE(count_threads() - threads_before, 20U);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(eventually([&] { return coordinator->is_healthy(); }));
  coordinator->stop();
  for (const Id context : contexts) EXPECT_FALSE(has_leader(server_, context)) << "the leadership was not released";
}

// Contexts 2 and 4 have a server of their own.
class TwoServers final : public StoreFactory {
 public:
  TwoServers(MemoryServer& first, MemoryServer& second) : first_(first), second_(second) {}
  Result<std::unique_ptr<Store>> open() override {
    return std::make_unique<Store>(std::make_unique<StoreConnection>(open_link()));
  }
  Result<std::unique_ptr<Waiter>> open_waiter(const std::vector<std::pair<Id, std::string>>& queues,
                                              const std::string& topic) override {
    return get_server(queues.front().first).open_waiter(queues, topic);
  }
  Result<std::unique_ptr<HintSubscription>> subscribe(Id context, const HintTopics& topics,
                                                      HintListener& listener) override {
    return get_server(context).subscribe(context, topics, listener);
  }
  std::string server_name(Id context) const override { return context % 2 == 0 ? "second" : "first"; }
  Result<std::unique_ptr<ObjectStore>> open_objects() override { return first_.open_objects(); }
  Result<std::unique_ptr<FlowStore>> open_flows() override { return make_redis_flows(open_link()); }
  Result<std::unique_ptr<WorkflowStore>> open_workflows() override { return first_.open_workflows(); }

 private:
  OpenLink open_link() {
    return [this](Id context) -> Result<std::unique_ptr<Link>> { return get_server(context).open_link(context); };
  }
  MemoryServer& get_server(Id context) { return context % 2 == 0 ? second_ : first_; }
  MemoryServer &first_, &second_;
};

TEST_F(CoordinatorThreads, ServerThatHangsDelaysNoOtherServer) {
  MemoryServer second(clock_);
  TwoServers servers(server_, second);
  CoordinatorSettings settings;
  settings.contexts = {2, 4, 1, 3};
  settings.lease_ms = 300;
  Coordinator coordinator(servers, clock_, settings);
  ASSERT_TRUE(coordinator.start_threads());
  for (const Id context : {2, 4}) ASSERT_TRUE(eventually([&] { return has_leader(second, context); })) << context;
  std::promise<void> promise;
  const std::shared_future<void> released(promise.get_future());
  std::atomic<bool> has_call{false};
  second.set_faults([&, released](const ServerCall&) {
    has_call = true;
    released.wait();
    return Fault::none;
  });
  ASSERT_TRUE(eventually([&] { return has_call.load(); }));
  for (const Id context : {1, 3}) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(eventually([&] { return has_leader(server_, context); })) << "the leadership is renewed";
      server_.erase(context, "mj:coordinator");
    }
  }
  EXPECT_TRUE(eventually([&] { return !coordinator.is_healthy(); })) << "the loops of contexts 2 and 4 hang";
  promise.set_value();
  EXPECT_TRUE(eventually([&] { return has_leader(second, 2) && has_leader(second, 4) && coordinator.is_healthy(); }));
}

}  // namespace
}  // namespace mycojobs
