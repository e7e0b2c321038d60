// 20 clients change the same workflow instance concurrently: an operation that can succeed once succeeds exactly once.
#include <gmock/gmock.h>

#include <algorithm>
#include <barrier>
#include <functional>
#include <optional>
#include <thread>

#include "worlds/world_stage.h"

namespace mycojobs {
namespace {

using testing::IsEmpty;

constexpr int kWriters = 20;

class DeploymentParallelWriters : public testing::Test {
 protected:
  using Change = std::function<Result<void>(const service::WorkflowStores&, int writer)>;

  void SetUp() override {
    for (int i = 0; i < kWriters; ++i) {
      stores_.push_back(stage_.server.open().value());
      deployments_.push_back(stage_.server.open_workflows().value());
    }
    ASSERT_TRUE(stage_.apply());
  }
  // Returns the number of accepted changes, after the coordinator has processed all of them.
  int at_once(const Change& change) {
    std::vector<std::optional<Result<void>>> answers(kWriters);
    std::barrier begin(kWriters);
    std::vector<std::thread> threads;
    for (int i = 0; i < kWriters; ++i) {
      threads.emplace_back([&, i] {
        const auto at = static_cast<std::size_t>(i);
        begin.arrive_and_wait();
        answers[at] = change({*stores_[at], *deployments_[at]}, i);
      });
    }
    for (std::thread& each : threads) each.join();
    EXPECT_TRUE(stage_.play());
    return static_cast<int>(
        std::count_if(answers.begin(), answers.end(), [](const auto& each) { return each->has_value(); }));
  }
  int facts(const std::string& kind) {
    const auto all = stage_.journal();
    return static_cast<int>(
        std::count_if(all.begin(), all.end(), [&](const WorkflowFact& fact) { return fact_kind(fact) == kind; }));
  }
  void begin_order(int id, const std::string& how) {
    stage_.place_order(id, how);
    ASSERT_TRUE(stage_.play());
  }

  static inline const service::InstanceReference kOrder{"order", "1"};
  WorldStage stage_;
  std::vector<std::unique_ptr<Store>> stores_;
  std::vector<std::unique_ptr<WorkflowStore>> deployments_;
};

TEST_F(DeploymentParallelWriters, InstanceIsCancelledAndRemovedOnce) {
  begin_order(1, "approval");
  EXPECT_EQ(at_once([&](const service::WorkflowStores& in, int) {
              return service::cancel_instance(stage_.by, in, kOrder, "enough");
            }),
            kWriters);
  EXPECT_EQ(facts("failed"), 1);
  EXPECT_EQ(stage_.status(1), "failed");
  EXPECT_EQ(at_once([&](const service::WorkflowStores& in, int) { return remove_instance(stage_.by, in, kOrder); }),
            kWriters);
  EXPECT_EQ(facts("deleted"), 1);
  EXPECT_THAT(stage_.find_violations(), IsEmpty());
}

TEST_F(DeploymentParallelWriters, ApprovalIsAnsweredOnce) {
  begin_order(1, "approval");
  const auto answered = at_once([&](const service::WorkflowStores& in, int writer) -> Result<void> {
    const auto done = answer_approval(stage_.by, in, {kOrder, "", writer % 2 == 0, "of " + std::to_string(writer)});
    if (!done) return tl::unexpected<Error>(done.error());
    return {};
  });
  EXPECT_EQ(answered, kWriters);
  EXPECT_EQ(facts("receipt"), 1) << "the first receipt decides";
  EXPECT_THAT(stage_.find_violations(), IsEmpty());
}

}  // namespace
}  // namespace mycojobs
