// Flows with real agent and coordinator processes: killed at random, replaced by a successor, and on separate hosts.
#include "coordinator/coordinator.h"

#include <signal.h>

#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "e2e/client.h"
#include "flows/flow_creation.h"
#include "flows/flow_progress.h"
#include "store/redis/redis_stores.h"

namespace mycojobs::test {
namespace {

class CoordinatorE2e : public ::testing::Test {
 protected:
  CoordinatorE2e() {
    RedisStoreConfig config;
    config.default_url = redis_.url();
    stores_ = make_redis_stores(std::move(config));
    flows_ = stores_->open_flows().value();
    // A database counts as a context if it has keys.
    redis_.cli(1, {"SET", "here", "1"});
  }
  Process start_coordinator(const std::string& host = "coordinator") {
    return Process(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--coordinator-lease", "1s",
                             "--state-dir", folder_ / host});
  }
  Process start_registered_agent(int runner = 20) {
    Process started = start_agent(folder_, redis_, runner, {"--slots", "4", "--lease", "2s"});
    EXPECT_TRUE(wait_until_registered(redis_, runner)) << started.err();
    return started;
  }
  std::string read_leader() { return redis_.cli(1, {"HGET", "mj:coordinator", "where"}); }
  bool wait_until_leader(const Process& coordinator, Seconds limit = Seconds(20)) {
    return eventually([&] { return read_leader().ends_with(" " + std::to_string(coordinator.pid())); }, limit);
  }

  // Creates and starts a flow, as `flow start` does.
  Id start_flow(const std::string& definition) {
    const ParsedPlan plan = read_plan(nlohmann::json::parse(definition));
    EXPECT_TRUE(plan.plan) << join(plan.problems);
    NewFlow new_flow;
    new_flow.context = 1;
    new_flow.caller = 12;
    const auto flow = create_flow(*flows_, *plan.plan, new_flow);
    EXPECT_TRUE(flow) << flow.error().message;
    ProgressRequest request;
    request.context = 1;
    request.flow = flow->id;
    request.start = StartRun{"manual", 12};
    const auto started = advance_run(*flows_, cache_, request);
    EXPECT_TRUE(started) << started.error().message;
    return flow->id;
  }
  std::string read_field(Id flow, const std::string& name) {
    return redis_.cli(1, {"HGET", "flow:" + std::to_string(flow), name});
  }
  bool wait_for_end(Id flow, Seconds limit = Seconds(60)) {
    return eventually(
        [&] {
          const std::string status = read_field(flow, "status");
          return status == "finished" || status == "error";
        },
        limit);
  }
  void expect_verify_succeeds() {
    const ProcessResult verify_result = run(
        folder_, {program_path(), "verify", "--redis", redis_.url(), "--context", "1", "--state-dir", folder_ / "v"});
    EXPECT_EQ(verify_result.code, 0) << verify_result.out << verify_result.err;
  }
  // Returns a flow with `count` chains of `length` jobs. Each job reads the result of its predecessor; a final job
  // joins all chains.
  static std::string make_chains(int count, int length) {
    nlohmann::json jobs;
    for (int chain = 0; chain < count; ++chain) {
      for (int i = 0; i < length; ++i) {
        const auto name = [&](int at) { return "c" + std::to_string(chain) + "-" + std::to_string(at); };
        nlohmann::json& job = jobs[name(i)];
        job["type"] = "python";
        job["script"] = "result = {'n': '" + std::to_string(i) + "'}";
        if (i > 0) job["needs"] = {name(i - 1)};
        if (i > 0) job["when"] = {{{"key", name(i - 1) + ".n"}, {"equals", std::to_string(i - 1)}}};
        if (i == length - 1) jobs["join"]["needs"].push_back(name(i));
      }
    }
    jobs["join"]["log"] = "all of them";
    return nlohmann::json{{"name", "chains"}, {"jobs", jobs}}.dump();
  }
  // Each Python job of caller 12 was delivered exactly once.
  void expect_each_ran_once(int count) {
    for (int i = 1; i <= count; ++i) {
      const std::string job = "job:12:" + std::to_string(i);
      if (redis_.cli(1, {"HGET", job, "script_type"}) != "python") continue;
      EXPECT_EQ(redis_.cli(1, {"HGET", job, "deliveries"}), "1") << job;
      EXPECT_EQ(redis_.cli(1, {"HGET", job, "status"}), "finished") << job;
    }
  }

  TempDir folder_;
  RedisServer redis_{folder_};
  std::unique_ptr<StoreFactory> stores_;
  std::unique_ptr<FlowStore> flows_;
  RunCache cache_;
};

TEST_F(CoordinatorE2e, FlowRunsOnAgentAndCoordinatorOfSeparateHosts) {
  const Process agent = start_registered_agent();
  Process coordinator = start_coordinator("another-host");
  const Id flow = start_flow(make_chains(3, 4));
  ASSERT_TRUE(wait_for_end(flow)) << coordinator.err() << agent.err();
  EXPECT_EQ(read_field(flow, "status"), "finished") << read_field(flow, "error");
  EXPECT_EQ(nlohmann::json::parse(read_field(flow, "result")).at("c0-3.n"), "3");
  expect_each_ran_once(13);
  coordinator.signal(SIGTERM);
  EXPECT_EQ(coordinator.wait().code, 0) << coordinator.err();
  EXPECT_EQ(read_leader(), "") << "a coordinator that stops must release the leadership";
  expect_verify_succeeds();
}

TEST_F(CoordinatorE2e, FlowResumesAfterKillsAtRandomTimes) {
  const Process agent = start_registered_agent();
  const unsigned seed = std::random_device()();
  std::mt19937 random_engine(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Id flow = start_flow(make_chains(6, 12));
  int kills = 0;
  for (; kills < 60 && !wait_for_end(flow, Seconds(0)); ++kills) {
    // Deletes the leadership record, so that each successor need not wait for its expiry.
    redis_.cli(1, {"DEL", "mj:coordinator"});
    Process killed_coordinator = start_coordinator();
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random_engine() % 150));
    killed_coordinator.signal(SIGKILL);
    killed_coordinator.wait();
  }
  std::printf("%d kills\n", kills);
  EXPECT_GE(kills, 1);
  const Process last_coordinator = start_coordinator();
  ASSERT_TRUE(wait_for_end(flow)) << last_coordinator.err();
  EXPECT_EQ(read_field(flow, "status"), "finished") << read_field(flow, "error");
  expect_each_ran_once(73);
  expect_verify_succeeds();
}

TEST_F(CoordinatorE2e, StandbyTakesOverFromDeadAndStoppingLeaders) {
  const Process agent = start_registered_agent();
  Process first_coordinator = start_coordinator("one");
  ASSERT_TRUE(wait_until_leader(first_coordinator)) << first_coordinator.err();
  Process second_coordinator = start_coordinator("two");
  const Id flow = start_flow(make_chains(2, 10));
  first_coordinator.signal(SIGKILL);
  first_coordinator.wait();
  EXPECT_TRUE(wait_until_leader(second_coordinator)) << second_coordinator.err();
  Process third_coordinator = start_coordinator("three");
  ASSERT_TRUE(wait_for_end(flow)) << second_coordinator.err();
  EXPECT_EQ(read_field(flow, "status"), "finished") << read_field(flow, "error");
  second_coordinator.signal(SIGTERM);
  EXPECT_EQ(second_coordinator.wait().code, 0);
  EXPECT_TRUE(wait_until_leader(third_coordinator)) << third_coordinator.err();
  expect_each_ran_once(21);
  expect_verify_succeeds();
}

TEST_F(CoordinatorE2e, CoordinatorStoppedForLongRepeatsNothing) {
  const Process agent = start_registered_agent();
  Process first_coordinator = start_coordinator("one");
  ASSERT_TRUE(wait_until_leader(first_coordinator)) << first_coordinator.err();
  const Id flow = start_flow(make_chains(3, 10));
  first_coordinator.signal(SIGSTOP);
  Process second_coordinator = start_coordinator("two");
  EXPECT_TRUE(wait_until_leader(second_coordinator)) << second_coordinator.err();
  first_coordinator.signal(SIGCONT);
  ASSERT_TRUE(wait_for_end(flow)) << second_coordinator.err();
  EXPECT_EQ(read_field(flow, "status"), "finished") << read_field(flow, "error");
  expect_each_ran_once(31);
  expect_verify_succeeds();
}

TEST_F(CoordinatorE2e, RedisOutageIsNotTheEnd) {
  const Process agent = start_registered_agent();
  const Process coordinator = start_coordinator();
  ASSERT_TRUE(wait_until_leader(coordinator)) << coordinator.err();
  const Id flow = start_flow(make_chains(2, 8));
  ::kill(redis_.pid(), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  ::kill(redis_.pid(), SIGCONT);
  ASSERT_TRUE(wait_for_end(flow)) << coordinator.err();
  EXPECT_EQ(read_field(flow, "status"), "finished") << read_field(flow, "error");
  expect_verify_succeeds();
}

// Kills the coordinator, the agent and Redis in turn, at random moments. Redis writes each command to disk.
TEST(CoordinatorChaos, FlowCompletesAndStoreIsCleanUnderKills) {
  const TempDir folder;
  RedisServer redis(folder, {"--appendonly", "yes", "--appendfsync", "always"});
  RedisStoreConfig config;
  config.default_url = redis.url();
  const auto stores = make_redis_stores(config);
  const auto flows = stores->open_flows().value();
  RunCache cache;
  const unsigned seed = std::random_device()();
  std::mt19937 random_engine(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto start_coordinator = [&] {
    return std::make_unique<Process>(
        folder, std::vector<std::string>{program_path(), "coordinator", "--redis", redis.url(), "--context", "1",
                                         "--coordinator-lease", "1s", "--state-dir", folder / "coordinator"});
  };
  const auto start_chaos_agent = [&] {
    return std::make_unique<Process>(
        folder,
        std::vector<std::string>{program_path(), "agent", "--redis", redis.url(), "--runner", "20", "--slots", "4",
                                 "--lease", "2s", "--job-max-deliveries", "1000", "--state-dir", folder / "agent"});
  };
  nlohmann::json jobs;
  for (int chain = 0; chain < 4; ++chain) {
    for (int i = 0; i < 10; ++i) {
      nlohmann::json& job = jobs["c" + std::to_string(chain) + "-" + std::to_string(i)];
      job = {{"script", "import time\ntime.sleep(0.05)\nresult = {'n': '1'}"}, {"type", "python"}};
      if (i > 0) job["needs"] = {"c" + std::to_string(chain) + "-" + std::to_string(i - 1)};
    }
  }
  jobs["child"] = {{"needs", {"c0-4"}}, {"flow", {{"name", "inner"}, {"jobs", {{"x", jobs["c0-0"]}}}}}};
  NewFlow new_flow;
  new_flow.context = 1;
  new_flow.caller = 12;
  const auto plan = read_plan({{"name", "chaos"}, {"jobs", jobs}});
  ASSERT_TRUE(plan.plan) << join(plan.problems);
  const Id flow = create_flow(*flows, *plan.plan, new_flow).value().id;
  ProgressRequest request;
  request.context = 1;
  request.flow = flow;
  request.start = StartRun{"manual", 12};
  ASSERT_TRUE(advance_run(*flows, cache, request));

  const std::string key = "flow:" + std::to_string(flow);
  const auto status = [&] { return redis.cli(1, {"HGET", key, "status"}); };
  auto coordinator = start_coordinator();
  auto agent = start_chaos_agent();
  int kills = 0;
  for (; kills < 12 && status() == "started"; ++kills) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + random_engine() % 1200));
    switch (random_engine() % 3) {
      case 0:
        coordinator->signal(SIGKILL);
        coordinator->wait();
        coordinator = start_coordinator();
        break;
      case 1:
        agent->signal(SIGKILL);
        agent->wait();
        agent = start_chaos_agent();
        break;
      default:
        redis.kill();
        redis.start();
    }
    // A program that did not find Redis at its start has exited. The test restarts it, as a service manager does.
    if (!coordinator->is_running()) coordinator = start_coordinator();
    if (!agent->is_running()) agent = start_chaos_agent();
  }
  const bool ended = eventually(
      [&] {
        if (!coordinator->is_running()) coordinator = start_coordinator();
        if (!agent->is_running()) agent = start_chaos_agent();
        return status() == "finished" || status() == "error";
      },
      Seconds(60));
  std::printf("%d kills\n", kills);
  EXPECT_TRUE(ended) << coordinator->err() << agent->err();
  EXPECT_EQ(status(), "finished") << redis.cli(1, {"HGET", key, "error"});
  const ProcessResult verify_result =
      run(folder, {program_path(), "verify", "--redis", redis.url(), "--context", "1", "--state-dir", folder / "v"});
  EXPECT_EQ(verify_result.code, 0) << verify_result.out << verify_result.err;
}

}  // namespace
}  // namespace mycojobs::test
