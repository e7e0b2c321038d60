// The list of nodes in the record of a flow, as plain clients read it while the flow runs.
#include <nlohmann/json.hpp>

#include "contract/store_contract.h"
#include "flows/flow_progress.h"
#include "model/codec.h"
#include "service/flow_service.h"

namespace mycojobs {
namespace {

using nlohmann::json;

class FlowNodes : public StoreContract {
 protected:
  // Creates and starts a flow of `nodes` jobs without dependencies.
  Id start_wide_flow(int nodes) {
    json jobs = json::object();
    for (int i = 0; i < nodes; ++i) jobs["n" + std::to_string(i)] = {{"script", "pass"}, {"type", "python"}};
    const auto flow = service::create_flow(by_, stores(), {{"name", "wide"}, {"jobs", jobs}}, nullptr, {});
    EXPECT_TRUE(flow) << flow.error().message;
    EXPECT_TRUE(service::start_flow(by_, stores(), {flow->id, "manual"}));
    return flow->id;
  }
  void move_on(Id flow) {
    ProgressRequest round;
    round.context = 1;
    round.flow = flow;
    ASSERT_TRUE(advance_run(*flows_, runs_, round));
  }
  // Returns the number of nodes in each state, according to the record.
  std::map<std::string, int> states(Id flow) {
    std::map<std::string, int> counts;
    const std::string text = field("flow:" + std::to_string(flow), "nodes");
    EXPECT_LE(text.size(), 32768U) << "the list is short, whatever the number of nodes";
    for (const json& node : json::parse(text)) ++counts[node.at("node_status").get<std::string>()];
    return counts;
  }
  service::FlowStores stores() { return {*store_, *flows_, runs_}; }

  void SetUp() override {
    StoreContract::SetUp();
    flows_ = backend_->stores().open_flows().value();
  }
  const service::RequestContext by_{1, 12, EntryPoint::command, true};
  std::unique_ptr<FlowStore> flows_;
  RunCache runs_;
};

TEST_P(FlowNodes, UpTo100NodesShowRunningAndEnded) {
  const Id flow = start_wide_flow(100);
  const auto jobs = claim(2);
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(states(flow), (std::map<std::string, int>{{"dispatched", 98}, {"running", 2}}));
  EXPECT_EQ(outcome(end(jobs[0].ref, finished())), "ok");
  move_on(flow);
  EXPECT_EQ(states(flow), (std::map<std::string, int>{{"completed", 1}, {"dispatched", 98}, {"running", 1}}));
}

TEST_P(FlowNodes, LargerFlowShowsNoEndedNodeAsRunning) {
  const Id flow = start_wide_flow(101);
  const auto jobs = claim(2);
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(outcome(end(jobs[0].ref, finished())), "ok");
  move_on(flow);
  EXPECT_EQ(states(flow), (std::map<std::string, int>{{"dispatched", 101}})) << "as the first commit has written it";
}

MJ_BOTH_STORES(FlowNodes);

}  // namespace
}  // namespace mycojobs
