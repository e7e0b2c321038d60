// A coordinator on a host without free threads keeps running, reports which context is not served, and serves it later.
#include <gtest/gtest.h>

#include <memory>

#include "base/clock.h"
#include "base/thread.h"
#include "coordinator/coordinator.h"
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

}  // namespace
}  // namespace mycojobs
