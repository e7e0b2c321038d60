// Effects run with the rights of the deployment's owner: an effect cannot do what its owner may not do. Actor 1 is an
// admin of the context, actor 12 a submitter.
#include <gmock/gmock.h>

#include "flows/flow_creation.h"
#include "flows/flow_progress.h"
#include "model/codec.h"
#include "workflows/tools/readable_values.h"
#include "worlds/world_stage.h"

namespace mycojobs {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;

class DeploymentOwner : public testing::Test {
 protected:
  void apply_as(Id owner) {
    const auto done =
        service::apply_workflow(stage_.by, stage_.stores(), shop_manifest(), {{{"shop.lua", "return {}"}}, owner});
    ASSERT_TRUE(done) << done.error().message;
  }
  void save_lists(const std::string& submitters, const std::string& readers) {
    ASSERT_TRUE(stage_.store->save(1, "context:1",
                                   {{"id", "1"}, {"admins", "[1]"}, {"submitters", submitters}, {"readers", readers}}));
  }
  void make_pack(Id creator, const std::string& script, const std::string& policy = "{}") {
    const ParsedPlan plan =
        read_plan(json{{"name", "pack"},
                       {"inputs", {{"n", {{"type", "string"}, {"default", "1"}}}}},
                       {"jobs", {{"one", {{"type", "python"}, {"script", script}, {"policy", json::parse(policy)}}}}}});
    ASSERT_TRUE(plan.plan) << join(plan.problems);
    NewFlow wanted;
    wanted.context = WorldStage::kContext;
    wanted.caller = creator;
    ASSERT_TRUE(create_flow(*stage_.flows, *plan.plan, wanted));
  }
  // Returns the error of the order's only effect, or "" after success.
  std::string run_order(int id, const std::string& how) {
    stage_.place_order(id, how);
    EXPECT_TRUE(stage_.play());
    const json found = stage_.show(id);
    EXPECT_EQ(found.at("state").at("receipts").size(), 1U) << found.dump();
    std::string payload_error;
    for (const WorkflowFact& fact : stage_.journal())
      if (const auto* receipt = std::get_if<ReceiptAdmitted>(&fact.content); receipt != nullptr)
        payload_error = receipt->status == ReceiptStatus::ok ? "" : cbor_to_readable_json(receipt->payload).dump();
    EXPECT_EQ(found.at("state").at("receipts").at(0).at("status"), payload_error.empty() ? "ok" : "error");
    return payload_error;
  }
  int receipts() {
    int found = 0;
    for (const WorkflowFact& fact : stage_.journal()) found += fact_kind(fact) == "receipt" ? 1 : 0;
    return found;
  }
  WorldStage stage_;
};

TEST_F(DeploymentOwner, SignalsOnlyFlowsItMaySteer) {
  apply_as(12);
  const std::string payload_error = run_order(1, "signal");
  EXPECT_THAT(payload_error, HasSubstr(R"("detail":"denied")"));
  EXPECT_THAT(payload_error, HasSubstr("actor 12 may not steer flow 1"));
  EXPECT_EQ(stage_.text({"HGET", "flow:1", "status"}), "started") << "the flow continues to wait";
  EXPECT_THAT(stage_.find_violations(), IsEmpty());
}

TEST_F(DeploymentOwner, SignalsNoFlowWithASimilarId) {
  apply_as(1);
  EXPECT_THAT(run_order(1, "far"), HasSubstr("flow_id: 4294967297 is not a valid id"));
  EXPECT_EQ(stage_.text({"HGET", "flow:1", "status"}), "started") << "the flow continues to wait";
  EXPECT_THAT(stage_.find_violations(), IsEmpty());
}

TEST_F(DeploymentOwner, StartsOnlyFlowsItMayRead) {
  apply_as(12);
  EXPECT_THAT(run_order(1, "flow"), HasSubstr("actor 12 has not created a flow in context 1 with the name pack"));
  save_lists("[12]", "[12]");
  EXPECT_EQ(run_order(2, "flow"), "") << "the flow of an admin, which the actor may read now";
  save_lists("[12]", "[]");
  make_pack(12, "ok pack");
  EXPECT_EQ(run_order(3, "flow"), "") << "the flow of the actor";
  EXPECT_THAT(stage_.find_violations(), IsEmpty());
}

TEST_F(DeploymentOwner, RunsNoFlowWithAForgedName) {
  apply_as(1);
  make_pack(12, "fail pack");
  EXPECT_EQ(run_order(1, "flow"), "")
      << "the newest flow of that name belongs to another actor, and its scripts would run as actor 1";
  make_pack(1, "fail pack");
  EXPECT_THAT(run_order(2, "flow"), HasSubstr("it went wrong")) << "the newest flow of the actor";
}

TEST_F(DeploymentOwner, StartsNothingAfterRevocation) {
  apply_as(12);
  EXPECT_EQ(run_order(1, "job"), "");
  save_lists("[]", "[]");
  for (const char* how : {"job", "flow"}) {
    const std::string payload_error = run_order(how == std::string("job") ? 2 : 3, how);
    EXPECT_THAT(payload_error, HasSubstr(R"("detail":"denied")"));
    EXPECT_THAT(payload_error, HasSubstr("actor 12 may not create " + std::string(how)));
  }
  EXPECT_EQ(stage_.run_counts.size(), 1U);
  save_lists("[12]", "[]");
  EXPECT_EQ(run_order(4, "job"), "") << "the schedule starts runs again";
}

// The ceiling may have been lowered since the manifest was applied and the flow's definition was stored.
TEST_F(DeploymentOwner, StartsNothingAboveTheCeiling) {
  apply_as(12);
  make_pack(12, "ok pack", R"({"memory": "64 MiB"})");
  stage_.job_limits.ceiling = Ceilings().get(WorldStage::kContext);
  stage_.job_limits.ceiling.max.memory_bytes = 32U << 20;
  stage_.replace(0);
  const std::string words = "policy.memory: 64 MiB is more than the ceiling of 32 MiB for context 1";
  const std::string of_job = run_order(1, "again"), of_flow = run_order(2, "flow");
  EXPECT_THAT(of_job, HasSubstr(R"("detail":"policy_refused")"));
  EXPECT_THAT(of_job, HasSubstr(R"("message":")" + words));
  EXPECT_THAT(of_flow, HasSubstr(R"("detail":"policy_refused")"));
  EXPECT_THAT(of_flow, HasSubstr(R"("message":"flow: jobs.one: )" + words));
  EXPECT_TRUE(stage_.run_counts.empty());
  EXPECT_EQ(stage_.flows->list(WorldStage::kContext, "", 0, 100).value().size(), 3U) << "no flow was created";
  stage_.job_limits.ceiling.max.memory_bytes = 64U << 20;
  stage_.replace(0);
  EXPECT_EQ(run_order(3, "again"), "") << "the operator permits more";
  EXPECT_EQ(run_order(4, "flow"), "");
  EXPECT_THAT(stage_.find_violations(), IsEmpty());
}

TEST_F(DeploymentOwner, StartsNoJobWithAnOversizedScript) {
  apply_as(12);
  stage_.job_limits = {Ceilings().get(WorldStage::kContext), 1};
  stage_.replace(0);
  const std::string of_job = run_order(1, "job");
  EXPECT_THAT(of_job, HasSubstr(R"("detail":"too_large")"));
  EXPECT_THAT(of_job, HasSubstr("job.max_script_bytes allows 1"));
  EXPECT_TRUE(stage_.run_counts.empty());
}

TEST_F(DeploymentOwner, WaitsWhileTheListsAreUnreadable) {
  apply_as(12);
  save_lists("not a list", "[]");
  stage_.place_order(1, "job");
  for (int i = 0; i < 10; ++i) stage_.step(1000);
  EXPECT_TRUE(stage_.run_counts.empty());
  EXPECT_EQ(receipts(), 0);
  save_lists("[12]", "[]");
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(stage_.show(1).at("state").at("receipts").at(0).at("status"), "ok");
}

// A caller that knows the intent may submit a job with its key before the effect is published.
TEST_F(DeploymentOwner, JobOfAnotherOwnerIsNoReceipt) {
  apply_as(1);
  stage_.place_order(1, "job");
  for (std::uint64_t call = 1; stage_.load_deployment().index().unpublished_intents().empty(); ++call) {
    ASSERT_LT(call, 10U) << "no call occurs between the step and its effect";
    stage_.replace(0);
    stage_.disturb({{stage_.calls() + call, WorldFate::killed_before}});
    stage_.coordinate(0);
    if (receipts() == 0 && !stage_.load_deployment().index().unpublished_intents().empty()) break;
    ASSERT_EQ(stage_.text({"HGET", "job:1:3", "id"}), "") << "the effect already exists";
  }
  stage_.disturb({});
  Job forged;
  forged.caller_id = 12;
  forged.context_id = 1;
  forged.script_type = "python";
  forged.script = "ok forged";
  forged.idempotency_key = "intent " + stage_.load_deployment().index().unpublished_intents().begin()->second;
  forged.unknown.emplace_back("effect_of", "1 acme/shop@1");
  const auto submitted = stage_.store->submit(forged);
  ASSERT_TRUE(submitted) << submitted.error().message;
  stage_.run_jobs();
  ASSERT_TRUE(stage_.deployments->post(1, WorldStage::kShop, "job", {{"key", redis_key(*submitted)}}));
  stage_.coordinate(0);
  EXPECT_EQ(receipts(), 0) << "the job of the effect has not run";
  ASSERT_TRUE(stage_.play());
  EXPECT_EQ(receipts(), 1);
  EXPECT_EQ(stage_.run_counts[R"(acme/pay@1 {"id":1})"], 1);
}

}  // namespace
}  // namespace mycojobs
