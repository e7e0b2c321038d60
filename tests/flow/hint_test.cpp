// A flow with a hinted event is advanced without a scan of all due flows.
#include <gmock/gmock.h>

#include <algorithm>

#include "progress_stage.h"

namespace mycojobs {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;

class FlowHint : public testing::Test {
 protected:
  FlowHint()
      : rounds_(stage_.server().open_flows().value(), stage_.server().open().value(), stage_.clock(), settings()) {
    stage_.request_run(
        "chain", "name: chain\njobs:\n  a: {type: python, script: ok}\n  b: {type: python, script: ok, needs: [a]}\n");
    for (int i = 0; i < 5; ++i) stage_.client();
    for (int i = 0; i < 5; ++i) (void)rounds_.run_round();
  }
  static ContextSettings settings() {
    ContextSettings settings;
    settings.context = 1;
    settings.instance = "one";
    return settings;
  }
  // Returns the store calls of a round, in order.
  std::vector<std::string> round() {
    std::vector<std::string> calls;
    stage_.server().set_faults([&](const ServerCall& call) {
      calls.emplace_back(call.name);
      return Fault::none;
    });
    EXPECT_TRUE(rounds_.run_round());
    stage_.server().set_faults(nullptr);
    return calls;
  }
  FlowStage stage_;
  ContextLoop rounds_;
};

TEST_F(FlowHint, ChainStepNeedsOneReadAndOneCommit) {
  stage_.run_jobs();
  stage_.run_jobs();
  rounds_.add_hint(stage_.flow("chain"));
  const auto calls = round();
  ASSERT_GE(calls.size(), 3U);
  EXPECT_THAT(std::vector(calls.begin(), calls.begin() + 3), ElementsAre("flow_read", "flow_commit", "flow_due"));
  EXPECT_EQ(stage_.describe_node("chain", "a"), "completed ok");
}

TEST_F(FlowHint, IdlesWithoutRetention) {
  for (int i = 0; i < 5; ++i) (void)rounds_.run_round();
  EXPECT_GT(rounds_.run_round().value(), 0U);
}

TEST_F(FlowHint, UnknownFlowCostsNothing) {
  rounds_.add_hint(4711);
  EXPECT_THAT(round(), Not(Contains("flow_read")));
}

}  // namespace
}  // namespace mycojobs
