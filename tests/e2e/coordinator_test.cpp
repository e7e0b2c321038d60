// Flows with real agent and coordinator processes: killed at random, replaced by a successor, and on separate hosts.
#include "coordinator/coordinator.h"

#include <signal.h>

#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "e2e/client.h"
#include "flows/flow_creation.h"
#include "store/redis/redis_store.h"

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
  Process coordinator(const std::string& host = "coordinator") {
    return Process(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--coordinator-lease", "1s",
                             "--state-dir", folder_ / host});
  }
  Process agent(int runner = 20) {
    Process started = start_agent(folder_, redis_, runner, {"--slots", "4", "--lease", "2s"});
    EXPECT_TRUE(wait_until_registered(redis_, runner)) << started.err();
    return started;
  }
  std::string leader() { return redis_.cli(1, {"HGET", "mj:coordinator", "where"}); }
  bool leads(const Process& coordinator, Seconds limit = Seconds(20)) {
    return eventually([&] { return leader().ends_with(" " + std::to_string(coordinator.pid())); }, limit);
  }

  // Creates and starts a flow, as `flow start` does.
  Id begin(const std::string& definition) {
    const ParsedPlan plan = read_plan(nlohmann::json::parse(definition));
    EXPECT_TRUE(plan.plan) << join(plan.problems);
    NewFlow asked;
    asked.context = 1;
    asked.caller = 12;
    const auto flow = create_flow(*flows_, *plan.plan, asked);
    EXPECT_TRUE(flow) << flow.error().message;
    ProgressRequest request;
    request.context = 1;
    request.flow = flow->id;
    request.start = StartRun{"manual", 12};
    const auto begun = progress(*flows_, cache_, request);
    EXPECT_TRUE(begun) << begun.error().message;
    return flow->id;
  }
  std::string field(Id flow, const std::string& name) {
    return redis_.cli(1, {"HGET", "flow:" + std::to_string(flow), name});
  }
  bool ends(Id flow, Seconds limit = Seconds(60)) {
    return eventually(
        [&] {
          const std::string status = field(flow, "status");
          return status == "finished" || status == "error";
        },
        limit);
  }
  void expect_verified() {
    const ProcessResult verified = run(
        folder_, {program_path(), "verify", "--redis", redis_.url(), "--context", "1", "--state-dir", folder_ / "v"});
    EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  }
  // Returns a flow with `count` chains of `length` jobs. Each job reads the result of its predecessor; a final job
  // joins all chains.
  static std::string chains(int count, int length) {
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
  const Process working = agent();
  Process coordinating = coordinator("another-host");
  const Id flow = begin(chains(3, 4));
  ASSERT_TRUE(ends(flow)) << coordinating.err() << working.err();
  EXPECT_EQ(field(flow, "status"), "finished") << field(flow, "error");
  EXPECT_EQ(nlohmann::json::parse(field(flow, "result")).at("c0-3.n"), "3");
  expect_each_ran_once(13);
  coordinating.signal(SIGTERM);
  EXPECT_EQ(coordinating.wait().code, 0) << coordinating.err();
  EXPECT_EQ(leader(), "") << "it gives its place back";
  expect_verified();
}

TEST_F(CoordinatorE2e, FlowResumesAfterKillsAtRandomTimes) {
  const Process working = agent();
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Id flow = begin(chains(6, 12));
  int kills = 0;
  for (; kills < 60 && !ends(flow, Seconds(0)); ++kills) {
    // Deletes the leadership record, so that each successor need not wait for its expiry.
    redis_.cli(1, {"DEL", "mj:coordinator"});
    Process killed = coordinator();
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 150));
    killed.signal(SIGKILL);
    killed.wait();
  }
  std::printf("%d kills\n", kills);
  EXPECT_GE(kills, 1);
  const Process last = coordinator();
  ASSERT_TRUE(ends(flow)) << last.err();
  EXPECT_EQ(field(flow, "status"), "finished") << field(flow, "error");
  expect_each_ran_once(73);
  expect_verified();
}

TEST_F(CoordinatorE2e, StandbyTakesOverFromDeadAndStoppingLeaders) {
  const Process working = agent();
  Process first = coordinator("one");
  ASSERT_TRUE(leads(first)) << first.err();
  Process second = coordinator("two");
  const Id flow = begin(chains(2, 10));
  first.signal(SIGKILL);
  first.wait();
  EXPECT_TRUE(leads(second)) << second.err();
  Process third = coordinator("three");
  ASSERT_TRUE(ends(flow)) << second.err();
  EXPECT_EQ(field(flow, "status"), "finished") << field(flow, "error");
  second.signal(SIGTERM);
  EXPECT_EQ(second.wait().code, 0);
  EXPECT_TRUE(leads(third)) << third.err();
  expect_each_ran_once(21);
  expect_verified();
}

TEST_F(CoordinatorE2e, CoordinatorStoppedForLongRepeatsNothing) {
  const Process working = agent();
  Process first = coordinator("one");
  ASSERT_TRUE(leads(first)) << first.err();
  const Id flow = begin(chains(3, 10));
  first.signal(SIGSTOP);
  Process second = coordinator("two");
  EXPECT_TRUE(leads(second)) << second.err();
  first.signal(SIGCONT);
  ASSERT_TRUE(ends(flow)) << second.err();
  EXPECT_EQ(field(flow, "status"), "finished") << field(flow, "error");
  expect_each_ran_once(31);
  expect_verified();
}

TEST_F(CoordinatorE2e, RedisOutageIsNotTheEnd) {
  const Process working = agent();
  const Process coordinating = coordinator();
  ASSERT_TRUE(leads(coordinating)) << coordinating.err();
  const Id flow = begin(chains(2, 8));
  ::kill(redis_.pid(), SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  ::kill(redis_.pid(), SIGCONT);
  ASSERT_TRUE(ends(flow)) << coordinating.err();
  EXPECT_EQ(field(flow, "status"), "finished") << field(flow, "error");
  expect_verified();
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
  std::mt19937 random(seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto coordinator = [&] {
    return std::make_unique<Process>(
        folder, std::vector<std::string>{program_path(), "coordinator", "--redis", redis.url(), "--context", "1",
                                         "--coordinator-lease", "1s", "--state-dir", folder / "coordinator"});
  };
  const auto agent = [&] {
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
  NewFlow asked;
  asked.context = 1;
  asked.caller = 12;
  const auto plan = read_plan({{"name", "chaos"}, {"jobs", jobs}});
  ASSERT_TRUE(plan.plan) << join(plan.problems);
  const Id flow = create_flow(*flows, *plan.plan, asked).value().id;
  ProgressRequest request;
  request.context = 1;
  request.flow = flow;
  request.start = StartRun{"manual", 12};
  ASSERT_TRUE(progress(*flows, cache, request));

  const std::string key = "flow:" + std::to_string(flow);
  const auto status = [&] { return redis.cli(1, {"HGET", key, "status"}); };
  auto coordinating = coordinator();
  auto working = agent();
  int kills = 0;
  for (; kills < 12 && status() == "started"; ++kills) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300 + random() % 1200));
    switch (random() % 3) {
      case 0:
        coordinating->signal(SIGKILL);
        coordinating->wait();
        coordinating = coordinator();
        break;
      case 1:
        working->signal(SIGKILL);
        working->wait();
        working = agent();
        break;
      default:
        redis.kill();
        redis.start();
    }
    // A program that did not find Redis at its start has exited. The test restarts it, as a service manager does.
    if (!coordinating->is_running()) coordinating = coordinator();
    if (!working->is_running()) working = agent();
  }
  const bool ended = eventually(
      [&] {
        if (!coordinating->is_running()) coordinating = coordinator();
        if (!working->is_running()) working = agent();
        return status() == "finished" || status() == "error";
      },
      Seconds(60));
  std::printf("%d kills\n", kills);
  EXPECT_TRUE(ended) << coordinating->err() << working->err();
  EXPECT_EQ(status(), "finished") << redis.cli(1, {"HGET", key, "error"});
  const ProcessResult verified =
      run(folder, {program_path(), "verify", "--redis", redis.url(), "--context", "1", "--state-dir", folder / "v"});
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
}

}  // namespace
}  // namespace mycojobs::test
