// The program with Redis Sentinel, as an operator uses it: agents and submissions during a failover, and `doctor`.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "chaos/wrong_clock.h"
#include "model/codec.h"
#include "sentinel/sentinel_servers.h"
#include "store/store.h"
#include "support/build_paths.h"

namespace mycojobs::test {
namespace {

using testing::HasSubstr;

Job make_python_job(Id id, const std::string& script) {
  Job job;
  job.id = id;
  job.caller_id = 7;
  job.context_id = kContext;
  job.script = script;
  job.script_type = "python";
  return job;
}

class SentinelProgram : public testing::Test {
 protected:
  ProcessResult run_program(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), mj::test::program_path("mycojobs"));
    arguments.insert(arguments.end(), {"--config", config_, "--state-dir", folder_ / "state"});
    return run(folder_, arguments);
  }
  std::unique_ptr<Process> start_agent(int runner, const std::string& lease = "30s") {
    const std::string id = std::to_string(runner);
    return std::make_unique<Process>(
        folder_,
        std::vector<std::string>{mj::test::program_path("mycojobs"), "agent", "--runner", id, "--slots", "2", "--lease",
                                 lease, "--config", config_, "--state-dir", folder_ / ("state" + id)});
  }
  void configure(const RedisGroup& group, int wait_replicas) {
    config_ = folder_.write("config.toml", "redis = \"" + group.url() +
                                               "\"\nredis_wait_replicas = " + std::to_string(wait_replicas) + "\n");
  }
  static std::string read_field(Store& store, Id id, const std::string& name) {
    const auto record = store.load(kContext, redis_key(make_python_job(id, "")));
    return record ? std::string(field_of(*record, name)) : "";
  }
  static bool wait_for_field(Store& store, Id id, const std::string& name, const std::string& value) {
    return eventually([&] { return read_field(store, id, name) == value; }, Seconds(120));
  }

  TempDir folder_;
  std::string config_ = folder_.write("config.toml", "");
};

// The master is killed while jobs are submitted and run. Every acknowledged job ends once.
TEST_F(SentinelProgram, AcknowledgedJobsEndOnce) {
  RedisGroup group(folder_);
  configure(group, 2);
  const auto agent = start_agent(1), second_agent = start_agent(2);
  Store store(make_store_config(group.url(), 2));
  std::set<Id> acknowledged;
  Id next_id = 1;
  const auto submit_some = [&](std::size_t count) {
    const auto target = acknowledged.size() + count;
    EXPECT_TRUE(eventually([&] {
      if (store.submit(make_python_job(next_id, "pass"))) acknowledged.insert(next_id);
      ++next_id;
      return acknowledged.size() >= target;
    }));
  };
  submit_some(100);
  ASSERT_TRUE(wait_for_field(store, 1, "status", "finished")) << agent->err();
  group.kill_server(0);
  group.wait_for_failover(0);
  group.start_server(0);  // all replicas must acknowledge, so that jobs need the third server
  submit_some(20);
  for (const Id id : acknowledged) EXPECT_TRUE(wait_for_field(store, id, "status", "finished")) << "job " << id;
  const ProcessResult verified = run_program({"verify"});
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
}

// With one replica that must acknowledge, jobs continue although a server is missing.
TEST_F(SentinelProgram, JobsContinueOnTheNewMaster) {
  RedisGroup group(folder_);
  configure(group, 1);
  const auto agent = start_agent(1);
  Store store(make_store_config(group.url(), 1));
  constexpr Id kJobs = 200;
  for (Id id = 1; id <= kJobs; ++id) ASSERT_TRUE(store.submit(make_python_job(id, "import time\ntime.sleep(0.05)\n")));
  ASSERT_TRUE(wait_for_field(store, 10, "status", "finished")) << agent->err();
  group.kill_server(0);
  std::size_t master = 0;
  ASSERT_TRUE(eventually([&] {
    master = group.role(1) == "master" ? 1 : group.role(2) == "master" ? 2 : 0;
    return master != 0;
  }));
  const auto promoted = group.command(master, {"TIME"});
  ASSERT_TRUE(promoted);
  const std::uint64_t promoted_ms = promoted->at(0).number() * 1000 + promoted->at(1).number() / 1000;
  std::uint64_t first_end_ms = UINT64_MAX;
  for (Id id = 1; id <= kJobs; ++id) {
    EXPECT_TRUE(wait_for_field(store, id, "status", "finished")) << "job " << id;
    const std::uint64_t ended_ms = std::strtoull(read_field(store, id, "ended_ms").c_str(), nullptr, 10);
    if (ended_ms > promoted_ms) first_end_ms = std::min(first_end_ms, ended_ms);
  }
  std::cout << "the first job ended " << first_end_ms - promoted_ms << " ms after the promotion was seen" << std::endl;
  EXPECT_EQ(run_program({"verify"}).code, 0);
}

// A job runs during a failover to a server whose clock is a minute ahead or behind. Its lease must neither end early
// nor be renewed in vain.
class SentinelClock : public SentinelProgram, public testing::WithParamInterface<int> {};

TEST_P(SentinelClock, RunningJobSurvivesTheClockOfTheNewMaster) {
  const SkewedClock clock(folder_, "clock", GetParam());
  GroupOptions options;
  options.environments[1] = options.environments[2] = clock.environment();
  RedisGroup group(folder_, options);
  configure(group, 0);
  const auto agent = start_agent(1, "6s");
  Store store(make_store_config(group.url()));
  ASSERT_TRUE(store.submit(make_python_job(1, "import time\ntime.sleep(15)\n")));
  ASSERT_TRUE(wait_for_field(store, 1, "status", "started")) << agent->err();
  ASSERT_TRUE(group.wait_until_complete());
  ASSERT_TRUE(group.ask_sentinel(0, {"SENTINEL", "FAILOVER", "mymaster"}));
  const std::size_t master = group.wait_for_failover(0);
  ASSERT_TRUE(wait_for_field(store, 1, "status", "finished")) << agent->err();
  EXPECT_EQ(group.master(), master);
  EXPECT_EQ(read_field(store, 1, "deliveries"), "1");
  ASSERT_TRUE(store.submit(make_python_job(2, "pass")));
  EXPECT_TRUE(wait_for_field(store, 2, "status", "finished")) << agent->err();
  EXPECT_EQ(run_program({"verify"}).code, 0);
}

INSTANTIATE_TEST_SUITE_P(Shifts, SentinelClock, testing::Values(60, -60));

TEST_F(SentinelProgram, DoctorShowsMasterReplicasAndQuorum) {
  RedisGroup group(folder_);
  configure(group, 1);
  const auto find_rows = [&] {
    const ProcessResult result = run_program({"doctor", "--json"});
    std::string rows;
    const auto checks = nlohmann::json::parse(result.out, nullptr, false);
    for (const auto& check : checks) {
      const std::string name = check.value("name", "");
      if (name == "sentinels" || name == "master and replicas" || name == "server")
        rows += name + ": " + check.value("state", "") + ": " + check.value("detail", "") + "; " +
                check.value("remedy", "") + '\n';
    }
    return rows + (checks.is_array() ? "" : result.err);
  };
  const std::string rows = find_rows();
  EXPECT_THAT(rows, HasSubstr("sentinels: ok: 3 of 3 answer; quorum 2"));
  EXPECT_THAT(rows, HasSubstr("master and replicas: warning: master " + group.address(0).text() +
                              " of mymaster, replication id "));
  EXPECT_THAT(rows, HasSubstr(group.address(1).text()));
  EXPECT_THAT(rows, HasSubstr(group.address(2).text()));
  EXPECT_THAT(rows, HasSubstr("redis_wait_replicas = 2"));
  group.kill_sentinel(0);
  group.kill_sentinel(1);
  EXPECT_TRUE(eventually([&] { return find_rows().find("NOQUORUM") != std::string::npos; })) << find_rows();
  group.kill_sentinel(2);
  EXPECT_THAT(find_rows(), HasSubstr("sentinels: warning: 0 of 3 answer"));
  EXPECT_THAT(find_rows(), HasSubstr("no connection to the master of redis+sentinel://"));
}

TEST_F(SentinelProgram, AddressAndCredentialsAreChecked) {
  config_ = folder_.write("config.toml", "redis = \"redis+sentinel://localhost/mymaster\"\n[redis_sentinel]\n" +
                                             ("password_file = \"" + (folder_ / "missing") + "\"\n"));
  const ProcessResult checked = run(folder_, {mj::test::program_path("mycojobs"), "config", "check", config_});
  EXPECT_NE(checked.code, 0);
  EXPECT_THAT(checked.err, HasSubstr("missing: ENOENT"));
}

}  // namespace
}  // namespace mycojobs::test
