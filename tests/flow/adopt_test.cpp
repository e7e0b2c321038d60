// Flows that a plain client created as records with HSET start like any other flow; an invalid flow is rejected with
// the name of its field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "flow/progress_stage.h"

namespace mycojobs {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class AdoptFlow : public ::testing::Test {
 protected:
  FlowStage stage_;
  JobLimits limits_{Ceilings().get(1)};

  void put(const std::string& key, std::vector<std::string> fields) {
    fields.insert(fields.begin(), {"HSET", key});
    stage_.run_command(fields);
  }
  void put_job(int id, const std::string& script, const std::string& dependends = "[]",
               std::vector<std::string> more = {}) {
    const std::string text = std::to_string(id);
    more.insert(more.begin(), {"id", text, "caller_id", "12", "context_id", "1", "script", script, "script_type",
                               "python", "dependends", dependends, "status", "dispatched"});
    put("job:12:" + text, more);
  }
  void put_flow(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"id", "33", "caller_id", "12", "context_id", "1", "jobs", "[2001,2002]", "env_vars",
                               "{\"REGION\":\"eu\"}", "status", "dispatched"});
    put("flow:33", more);
  }
  std::string field(const std::string& key, const std::string& name) { return stage_.run_command({"HGET", key, name}); }
  Result<void> start() {
    MJ_CHECK(adopt_flow(stage_.flows(), stage_.store(), limits_, 33));
    ProgressRequest request;
    request.context = 1;
    request.flow = 33;
    request.start = StartRun{"rpc", 12};
    MJ_CHECK(advance_run(stage_.flows(), stage_.cache, request));
    return {};
  }
  std::string refusal() {
    const auto started = start();
    EXPECT_FALSE(started);
    if (started) return "started";
    EXPECT_EQ(started.error().code, Code::invalid);
    return started.error().message;
  }
  void play() {
    for (int i = 0; i < 60 && field("flow:33", "status") != "finished"; ++i) {
      stage_.coordinate();
      stage_.run_jobs();
      stage_.clock().now += 200;
    }
  }
};

TEST_F(AdoptFlow, RunsItsJobsInTheOrderOfTheirDependencies) {
  put_job(2001, "ok size=7");
  put_job(2002, "ok", "[2001]", {"name", "second"});
  put_flow({"owner", "somebody's own field"});
  const auto started = start();
  ASSERT_TRUE(started) << started.error().message;
  EXPECT_EQ(field("job:12:2002", "status"), "waiting_for_prerequisites");
  play();
  EXPECT_EQ(field("flow:33", "status"), "finished") << field("flow:33", "error");
  EXPECT_THAT(field("flow:33", "result"), HasSubstr("\"job2001.size\""));
  EXPECT_EQ(field("flow:33", "owner"), "somebody's own field");
  EXPECT_EQ(field("job:12:2002", "status"), "finished");
  EXPECT_THAT(field("job:12:2001", "env_vars"), HasSubstr("\"REGION\":\"eu\""));
  const auto nodes = nlohmann::json::parse(field("flow:33", "nodes"));
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[1]["depends"], nlohmann::json::array({2001}));
  EXPECT_EQ(nodes[1]["node_status"], "completed");
  EXPECT_EQ(stage_.find_violations(), std::vector<std::string>());
}

TEST_F(AdoptFlow, InterruptedAdoptionResumesAnywhere) {
  put_job(2001, "ok");
  put_job(2002, "ok", "[2001]");
  put_flow();
  ASSERT_TRUE(stage_.flows().adopt(1, 33, 12).value_or(false));
  EXPECT_TRUE(stage_.flows().adopt(1, 33, 12).value_or(false)) << "again";
  ASSERT_TRUE(start());
  EXPECT_FALSE(stage_.flows().adopt(1, 33, 12).value_or(true)) << "the record is a flow already";
  EXPECT_TRUE(start()) << "again";
  play();
  EXPECT_EQ(field("flow:33", "status"), "finished");
}

TEST_F(AdoptFlow, InvalidFlowIsRejectedWithItsField) {
  put_job(2001, "ok");
  put_job(2002, "ok");
  const std::pair<std::vector<std::string>, std::string> kBad[] = {
      {{"id", "34"}, "flow:33: id: "},
      {{"id", "33", "caller_id", "0"}, "flow:33: caller_id: "},
      {{"caller_id", "12", "context_id", "7"}, "flow:33: context_id: is 7"},
      {{"context_id", "1", "status", "started"}, "flow:33: status: is started"},
      {{"status", "nonsense"}, "status"},
      {{"status", "dispatched", "jobs", "[]"}, "flow:33: jobs: is empty"},
      {{"jobs", "[2001,2001]"}, "flow:33: jobs: 2001 is listed twice"},
      {{"jobs", "[2001,\"x\"]"}, "jobs"},
      {{"jobs", "[2001,2009]"}, "flow:33: jobs[1]: there is no record job:12:2009"},
      {{"jobs", "[2001,2002]", "env_vars", "[1]"}, "env_vars"}};
  put_flow();
  for (const auto& [fields, words] : kBad) {
    put("flow:33", fields);
    EXPECT_THAT(refusal(), HasSubstr(words));
    EXPECT_EQ(field("mj:flow:33", "state"), "") << "the record is unchanged";
  }
}

TEST_F(AdoptFlow, InvalidJobIsRejectedWithItsField) {
  put_flow();
  put_job(2001, "ok");
  const auto refuses = [this](std::vector<std::string> fields, const std::string& words) {
    stage_.run_command({"DEL", "job:12:2002"});
    put_job(2002, "ok", "[2001]", std::move(fields));
    EXPECT_THAT(refusal(), HasSubstr(words));
  };
  refuses({"timeout", "soon"}, "job:12:2002: timeout");
  refuses({"context_id", "3"}, "job:12:2002: context_id: is 3");
  refuses({"id", "9"}, "job:12:2002: id");
  refuses({"flow_id", "4"}, "job:12:2002: flow_id: is 4");
  refuses({"script_type", "Py thon"}, "job:12:2002: script_type");
  refuses({"dependends", "[77]"}, "dependends: 77 is not a job of this flow");
  refuses({"dependends", "[2002]"}, "2002");
  refuses({"status", "finished"}, "has run before");
  stage_.run_command({"DEL", "job:12:2002"});
  put_job(2002, "ok", "[2001]");
  ASSERT_TRUE(start()) << "the corrected flow starts";
}

TEST_F(AdoptFlow, JobOverTheLimitsIsRejectedWithItsField) {
  put_job(2001, "ok", "[]", {"policy", R"({"memory": "129 MiB"})"});
  put_job(2002, "ok and more");
  put_flow();
  limits_.ceiling.max.memory_bytes = 128U << 20;
  EXPECT_THAT(refusal(), StartsWith("job:12:2001: policy.memory: 129 MiB is more than the ceiling of 128 MiB for "
                                    "context 1"));
  EXPECT_EQ(field("mj:flow:33", "state"), "") << "the record is unchanged";
  limits_ = {Ceilings().get(1), 10};
  const auto large = start();
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, Code::too_large);
  EXPECT_EQ(large.error().message, "job:12:2002: script: is 11 bytes, and job.max_script_bytes allows 10");
  EXPECT_EQ(field("mj:flow:33", "state"), "");
  limits_.max_script_bytes = 11;
  ASSERT_TRUE(start()) << "the operator permits more";
  play();
  EXPECT_EQ(field("flow:33", "status"), "finished");
}

TEST_F(AdoptFlow, RemoteJobIsCheckedAgainstTheRemoteCeiling) {
  put_job(2001, "ok", "[]", {"policy", R"({"memory": "129 MiB"})", "supervisor_url", "http://10.0.0.7:8989"});
  put_job(2002, "ok");
  put_flow();
  limits_.ceiling.max.memory_bytes = 128U << 20;
  EXPECT_TRUE(start());
}

TEST_F(AdoptFlow, NonHashIsNotAFlow) {
  EXPECT_TRUE(adopt_flow(stage_.flows(), stage_.store(), limits_, 33)) << "a missing flow is reported by the start";
  EXPECT_FALSE(start());
  stage_.run_command({"RPUSH", "flow:33", "x"});
  EXPECT_FALSE(start());
}

}  // namespace
}  // namespace mycojobs
