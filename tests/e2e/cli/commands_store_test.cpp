// The commands verify and doctor, with a store that agents use, an unused store and a damaged store. Exit codes: 1: a
// violation was found; 65: invalid arguments; 69: Redis is unavailable or unusable.
#include <csignal>

#include "e2e/client.h"

namespace mycojobs::test {
namespace {

class Verify : public Operator {};
class DoctorRedisChecks : public Operator {
 protected:
  nlohmann::json find_check(const std::string& name) {
    for (const auto& check : mycojobs_.run_json({"doctor"})) {
      if (check["name"] == name) return check;
    }
    return {};
  }
};

TEST_F(Verify, StoreWithActiveAgentsIsClean) {
  Process agent = start_registered_agent(20);
  Process second_agent = start_registered_agent(21);
  std::vector<std::string> keys;
  for (int i = 0; i < 20; ++i) keys.push_back(mycojobs_.submit(i % 3 == 0 ? "1/0" : "pass", {"--retries", "1"}));
  mycojobs_.submit("pass", {"--delay", "1h"});
  mycojobs_.submit("pass", {"--depends", "999"});
  for (int i = 0; i < 5; ++i) expect_result(mycojobs_({"verify"}), 0, "clean");
  for (const std::string& key : keys) {
    EXPECT_TRUE(eventually([&] { return redis_.cli(1, {"HGET", key, "ended_ms"}) != ""; })) << key;
  }
  const auto report = mycojobs_.run_json({"verify"});
  EXPECT_EQ(report["clean"], true);
  EXPECT_EQ(report["contexts"][0]["jobs"], 22);
  expect_result(mycojobs_({"doctor", "--rebuild"}), 0, "0 differences");
}

TEST_F(Verify, ChecksEveryConfiguredContext) {
  mycojobs_.submit("pass");
  mycojobs_.submit("pass", {"--context", "3"});
  redis_.cli(3, {"RPOP", "queue:python"});
  expect_result(mycojobs_({"verify"}), 0, "clean");
  expect_result(mycojobs_({"verify", "--context", "1,3"}), 1, "1 violation");
}

TEST_F(Verify, FindsDamageThatRebuildRepairs) {
  const std::string lost = mycojobs_.submit("pass");
  const std::string delayed = mycojobs_.submit("pass", {"--delay", "1h"});
  redis_.cli(1, {"RPOP", "queue:python"});
  redis_.cli(1, {"DEL", "mj:delayed"});
  const ProcessResult verify_result = mycojobs_({"verify"});
  expect_result(verify_result, 1, lost);
  expect_result(verify_result, 1, delayed);
  expect_result(verify_result, 1, "doctor --rebuild");
  expect_result(mycojobs_({"doctor", "--rebuild", "--dry-run"}), 1, "not repaired");
  EXPECT_EQ(redis_.cli(1, {"LLEN", "queue:python"}), "0") << "a dry run changes nothing";
  expect_result(mycojobs_({"doctor", "--rebuild"}), 0, "repaired");
  EXPECT_EQ(redis_.cli(1, {"LLEN", "queue:python"}), "1");
  expect_result(mycojobs_({"verify"}), 0, "clean");
  EXPECT_EQ(mycojobs_.run_json({"doctor", "--rebuild"})["differences"], 0);
}

TEST_F(Verify, ReportsThatRedisIsUnavailable) {
  redis_.kill();
  const ProcessResult verify_result = mycojobs_({"verify"});
  EXPECT_EQ(verify_result.code, 69) << verify_result.out << verify_result.err;
  EXPECT_EQ(verify_result.out.find("clean"), std::string::npos);
}

TEST(VerifyPrivateRedis, StartsThePrivateRedisForTheCheck) {
  TempDir folder;
  const auto make_argv = [&](std::vector<std::string> words) {
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--state-dir", folder / "state"});
    return words;
  };
  ASSERT_EQ(run(folder, make_argv({"run", folder.write("a.py", "pass")})).code, 0);
  const ProcessResult result = run(folder, make_argv({"verify"}));
  expect_result(result, 0, "context 1: 1 jobs");
  expect_result(result, 0, "clean");
}

TEST_F(DoctorRedisChecks, FailsOnAMemoryPolicyThatEvictsJobs) {
  EXPECT_EQ(find_check("maxmemory-policy")["state"], "ok");
  redis_.cli(0, {"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"});
  EXPECT_EQ(find_check("maxmemory-policy")["state"], "error");
  expect_result(mycojobs_({"doctor"}), 69, "CONFIG SET maxmemory-policy noeviction");
}

// Regression test: doctor reported "ok" although no job could be claimed or ended.
TEST_F(DoctorRedisChecks, FailsOnAServerThatRejectsWrites) {
  ASSERT_EQ(mycojobs_({"queue", "pause", "python"}).code, 0);
  EXPECT_EQ(find_check("writes to context 1")["state"], "ok");
  redis_.cli(0, {"CONFIG", "SET", "maxmemory", "1"});
  expect_result(mycojobs_({"doctor"}), 69, "OOM command not allowed");
  redis_.cli(0, {"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_EQ(mycojobs_({"doctor"}).code, 0);
}

TEST_F(DoctorRedisChecks, WarnsThatACrashLosesData) {
  redis_.cli(0, {"CONFIG", "SET", "appendonly", "no"});
  EXPECT_EQ(find_check("appendonly")["state"], "warning");
  EXPECT_NE(find_check("appendfsync")["detail"].get<std::string>().find("without effect"), std::string::npos);
  EXPECT_EQ(mycojobs_({"doctor"}).code, 0) << "a warning is no failure";
}

TEST_F(DoctorRedisChecks, UnreadableSettingIsAWarning) {
  redis_.cli(0, {"ACL", "SETUSER", "default", "-config"});
  EXPECT_EQ(find_check("maxmemory-policy")["state"], "warning");
  EXPECT_EQ(find_check("databases")["state"], "warning");
}

TEST_F(DoctorRedisChecks, ChecksTheServerOfEachContext) {
  TempDir other_folder;
  RedisServer other(other_folder, {"--databases", "4"});
  other.cli(0, {"CONFIG", "SET", "maxmemory-policy", "volatile-ttl"});
  const std::string config =
      folder_.write("config.toml", "context = [1, 9]\n[contexts.9]\nredis = \"" + other.url() + "?db=2\"\n");
  const auto checks = mycojobs_.run_json({"doctor", "--config", config});
  std::string listed_checks;
  for (const auto& check : checks) {
    if (check["area"] == "redis of context 9")
      listed_checks += check["name"].get<std::string>() + " " + check["state"].get<std::string>() + "\n";
  }
  EXPECT_NE(listed_checks.find("maxmemory-policy error"), std::string::npos) << listed_checks << checks.dump(1);
  EXPECT_EQ(listed_checks.find("databases"), std::string::npos) << listed_checks;
}

TEST_F(DoctorRedisChecks, ContextWithoutADatabaseIsNamed) {
  expect_result(mycojobs_({"doctor", "--context", "1,16"}), 69, "context 16");
  expect_result(mycojobs_({"doctor", "--dry-run"}), 65, "--rebuild");
}

}  // namespace
}  // namespace mycojobs::test
