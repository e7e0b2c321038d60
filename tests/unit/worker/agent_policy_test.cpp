// The `policy` field of a job record, written by an arbitrary client, up to the run or the refusal.
#include <gtest/gtest.h>

#include "support/agent_fixture.h"

namespace mycojobs::test {
namespace {

class AgentPolicy : public AgentTest {
 protected:
  // Bypasses the check of the submission, as a plain Redis client can.
  std::string push(Id id, const std::string& policy, std::uint32_t timeout = 60) {
    Job job = new_job();
    job.id = id;
    job.timeout = timeout;
    const std::string key = submit(job);
    set_policy(key, policy);
    return key;
  }
  void set_policy(const std::string& key, const std::string& policy) {
    server_.run_command(1, {"HSET", key, "policy", policy});
  }
  RunSpec get_only_spec() {
    EXPECT_TRUE(wait_for_runs(1));
    std::lock_guard lock(control_.mutex);
    return control_.running.empty() ? RunSpec{} : control_.running.begin()->second;
  }
};

TEST_F(AgentPolicy, RefusalNamesTheFieldAndRunsNothing) {
  settings_.ceilings.standard.memory_bytes = 512ULL << 20;
  const std::pair<const char*, const char*> rows[] = {
      {R"({"memory":"2 GiB"})", "policy.memory: 2 GiB is more than the ceiling of 512 MiB for context 1"},
      {R"({"net":["example.org:443"],"exec":true})", "policy.exec: is not allowed"},
      {R"({"memmory":1})", "policy.memmory: is not a field of a policy"},
      {R"({"wall":0})", "policy.wall: 0 ms is out of range"},
      {"[1", "policy: not JSON"},
      {"\xff\x01", "policy: not JSON"},
      {"7", "policy: 7 is not an object"},
  };
  std::vector<std::string> keys;
  for (const auto& [policy, words] : rows) keys.push_back(push(static_cast<Id>(keys.size() + 1), policy));
  start();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ASSERT_TRUE(wait_for_end(keys[i]));
    const Job job = read(keys[i]);
    EXPECT_EQ(job.status, JobStatus::error);
    EXPECT_EQ(job.detail, "policy_refused");
    EXPECT_NE(job.error.find(rows[i].second), std::string::npos) << job.error;
  }
  EXPECT_EQ(control_.launches, 0U);
  EXPECT_TRUE(eventually([&] { return agent_->count_busy_slots() == 0; })) << "the slots are free again";
}

TEST_F(AgentPolicy, RejectedJobRunsWithASmallerRequest) {
  const std::string key = push(1, R"({"memory":"2 GiB"})");
  start();
  ASSERT_TRUE(wait_for_end(key));
  set_policy(key, R"({"memory":"64 MiB"})");
  ASSERT_TRUE(client_->requeue(1, key));
  EXPECT_EQ(get_only_spec().limits.memory_bytes, 64U << 20);
}

TEST_F(AgentPolicy, GrantReachesTheRun) {
  Policy max = default_ceiling();
  max.fs_read = {"/srv"};
  max.network = Network::loopback;
  settings_.ceilings.contexts[1] = max;
  push(1, R"({"memory":"64 MiB","pids":7,"wall":"5 s","cpu":"3 s","open_files":40,"file_size":"1 MiB","disk":"2 MiB",
              "fs":{"read":["/srv/a"]},"net":"loopback"})");
  start();
  const RunSpec spec = get_only_spec();
  EXPECT_EQ(spec.limits, (Limits{64U << 20, 7, 5000, 3000, 40, 1U << 20, 2U << 20, false}));
  EXPECT_EQ(spec.grants, (Grants{{"/srv/a"}, {}, Network::loopback, {}, {}}));
}

TEST_F(AgentPolicy, WallTimeIsTheSmallerOfTimeoutAndPolicy) {
  push(1, R"({"wall":"1 h"})", 9);
  start();
  const std::uint64_t wall = get_only_spec().limits.wall_ms;  // time left when the run is set up
  EXPECT_LE(wall, 9000U);
  EXPECT_GT(wall, 5000U);
}

TEST_F(AgentPolicy, OperatorsSettingsReplaceTheProfile) {
  settings_.defaults.values.memory_bytes = 99ULL << 20;
  settings_.defaults.named_fields[static_cast<std::size_t>(PolicyField::memory)] = true;
  push(1, "{}");
  start();
  const RunSpec spec = get_only_spec();
  EXPECT_EQ(spec.limits.memory_bytes, 99ULL << 20);
  EXPECT_EQ(spec.limits.pids, 64U);
}

TEST_F(AgentPolicy, SubmissionChecksTheShape) {
  Job job = new_job();
  job.policy = R"({"pids":-1})";
  const auto stored = client_->submit(job);
  ASSERT_FALSE(stored);
  EXPECT_EQ(stored.error().code, Code::invalid);
  EXPECT_NE(stored.error().message.find("policy.pids: -1"), std::string::npos) << stored.error().message;
}

TEST_F(AgentPolicy, OtherPolicyIsOtherContent) {
  Job job = new_job();
  job.id = 5;
  job.policy = R"({"pids":8})";
  EXPECT_TRUE(client_->submit(job));
  EXPECT_TRUE(client_->submit(job)) << "the same job is accepted again";
  job.policy = R"({"pids":9})";
  EXPECT_FALSE(client_->submit(job));
}

}  // namespace
}  // namespace mycojobs::test
