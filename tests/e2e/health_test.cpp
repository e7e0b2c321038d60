// Readiness of a process, as a probe of an image or a load balancer queries it.
#include <signal.h>

#include <filesystem>

#include "e2e/client.h"
#include "e2e/world.h"

namespace mycojobs {
namespace {

using namespace test;

class Health : public ::testing::Test {
 protected:
  TempDir folder_;
  RedisServer redis_{folder_};

  // Returns the address at which the server listens, once it is logged.
  static std::string wait_for_url(const Process& server, const std::string& log_prefix) {
    std::string url;
    EXPECT_TRUE(eventually([&] {
      const std::string log = server.err();
      const auto at = log.find(log_prefix + "http://");
      if (at == std::string::npos) return false;
      const auto begin = at + log_prefix.size(), end = log.find_first_of("/\"\n", begin + 7);
      url = log.substr(begin, end - begin);
      return end != std::string::npos;
    })) << server.err();
    return url;
  }
  std::string run_health(const std::string& url, const std::vector<std::string>& more_options = {}) {
    std::vector<std::string> words{program_path(), "health", "--url", url};
    words.insert(words.end(), more_options.begin(), more_options.end());
    const ProcessResult result = run(folder_, words);
    return std::to_string(result.code) + ' ' + result.out;
  }
};

TEST_F(Health, AgentIsReadyWhileItsStoreAnswersAndItTakesJobs) {
  Process agent = start_agent(folder_, redis_, 20, {"--health-listen", "127.0.0.1:0"});
  const std::string url = wait_for_url(agent, "health at ");
  EXPECT_TRUE(eventually([&] { return run_health(url) == "0 ok\n"; })) << run_health(url);
  redis_.kill();
  EXPECT_TRUE(eventually([&] { return run_health(url).starts_with("1 not_ready: Redis is unavailable"); }))
      << run_health(url);
  EXPECT_EQ(run_health(url, {"--alive"}), "0 ok\n") << "an agent that waits for its store is alive";
  redis_.start();
  EXPECT_TRUE(eventually([&] { return run_health(url) == "0 ok\n"; })) << run_health(url);

  const PlainJob job{.script = kSleepScript};
  submit(redis_, job);
  ASSERT_TRUE(eventually([&] { return read_job_log(folder_, redis_, job) == "up\n"; }));
  agent.signal(SIGTERM);
  EXPECT_TRUE(eventually([&] { return run_health(url) == "1 not_ready: draining\n"; })) << run_health(url);
  EXPECT_EQ(run_health(url, {"--alive"}), "0 ok\n");
  agent.signal(SIGTERM);  // cancels the job
  EXPECT_EQ(agent.wait().code, 0);
  EXPECT_TRUE(run_health(url).starts_with("1 unreachable: ")) << run_health(url);
}

// Programs of a host can start in any order.
TEST_F(Health, AgentThatStartsBeforeItsStoreWaitsForIt) {
  redis_.kill();
  std::filesystem::remove(folder_ / "redis.sock");
  Process agent = start_agent(folder_, redis_, 20, {"--health-listen", "127.0.0.1:0"});
  const std::string url = wait_for_url(agent, "health at ");
  EXPECT_TRUE(eventually([&] { return run_health(url) == "1 not_ready: Redis is unavailable\n"; })) << run_health(url);
  EXPECT_EQ(run_health(url, {"--alive"}), "0 ok\n");
  EXPECT_NE(agent.err().find("redis.sock"), std::string::npos) << "the error names the socket: " << agent.err();
  redis_.start();
  EXPECT_TRUE(eventually([&] { return run_health(url) == "0 ok\n"; })) << agent.err();
  const PlainJob job;
  submit(redis_, job);
  EXPECT_EQ(wait_for_status(redis_, job), "finished") << agent.err();

  redis_.kill();
  Process second_agent = start_agent(folder_, redis_, 21);
  EXPECT_TRUE(eventually([&] { return second_agent.err().find("trying again") != std::string::npos; }))
      << second_agent.err();
  second_agent.signal(SIGTERM);
  EXPECT_EQ(second_agent.wait().code, 0) << second_agent.err();
}

TEST_F(Health, CoordinatorThatStartsBeforeItsStoreWaitsForIt) {
  redis_.cli(1, {"SET", "anything", "1"});  // creates a context, which the coordinator finds
  redis_.kill();
  Process coordinator(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--api-listen", "127.0.0.1:0"});
  const std::string url = wait_for_url(coordinator, "JSON-RPC at ");
  EXPECT_TRUE(eventually([&] { return run_health(url) == "1 not_ready: Redis is unavailable\n"; })) << run_health(url);
  redis_.start();
  EXPECT_TRUE(eventually([&] { return run_health(url) == "0 ok\n"; })) << coordinator.err();
  EXPECT_TRUE(eventually([&] { return coordinator.err().find("context 1: served") != std::string::npos; }));
}

TEST_F(Health, AgentWithoutALauncherIsNotReady) {
  const std::filesystem::path helpers = folder_ / "helpers";
  std::filesystem::create_directory(helpers);
  for (const auto& file : std::filesystem::directory_iterator(std::filesystem::path(program_path()).parent_path())) {
    if (file.path().filename().string().starts_with("mycojobs-")) std::filesystem::copy(file, helpers);
  }
  Process agent =
      start_agent(folder_, redis_, 20, {"--health-listen", "127.0.0.1:0", "--libexec-dir", helpers.string()});
  const std::string url = wait_for_url(agent, "health at ");
  ASSERT_TRUE(eventually([&] { return run_health(url) == "0 ok\n"; })) << agent.err();
  std::filesystem::rename(helpers / "mycojobs-launcher", helpers / "elsewhere");
  const auto children = run(folder_, {"pgrep", "--parent", std::to_string(agent.pid())}).out;
  ASSERT_FALSE(children.empty());
  ::kill(std::stoi(children), SIGKILL);
  EXPECT_TRUE(eventually([&] { return run_health(url) == "1 not_ready: no sandbox is available: see the log\n"; }))
      << run_health(url) << agent.err();
  EXPECT_EQ(run_health(url, {"--alive"}), "0 ok\n");
  std::filesystem::rename(helpers / "elsewhere", helpers / "mycojobs-launcher");
  EXPECT_TRUE(eventually([&] { return run_health(url) == "0 ok\n"; })) << run_health(url) << agent.err();
  const PlainJob job;
  submit(redis_, job);
  EXPECT_EQ(wait_for_status(redis_, job), "finished") << agent.err();
}

TEST_F(Health, CoordinatorIsReadyWhileItsContextsAreThere) {
  redis_.cli(1, {"SET", "anything", "1"});  // creates a context
  Process coordinator(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--api-listen", "127.0.0.1:0"});
  const std::string url = wait_for_url(coordinator, "JSON-RPC at ");
  EXPECT_TRUE(eventually([&] { return run_health(url) == "0 ok\n"; })) << run_health(url);
  redis_.kill();
  EXPECT_TRUE(eventually([&] { return run_health(url).starts_with("1 not_ready: Redis is unavailable"); }))
      << run_health(url);
  redis_.start();
  EXPECT_TRUE(eventually([&] { return run_health(url) == "0 ok\n"; })) << run_health(url);
  coordinator.signal(SIGTERM);
  EXPECT_EQ(coordinator.wait().code, 0);
}

// A stopped server still accepts connections, but does not answer.
TEST_F(Health, SilentStoreIsTreatedAsUnavailable) {
  redis_.cli(1, {"SET", "anything", "1"});
  Process agent = start_agent(folder_, redis_, 20, {"--health-listen", "127.0.0.1:0"});
  Process coordinator(folder_, {program_path(), "coordinator", "--redis", redis_.url(), "--api-listen", "127.0.0.1:0"});
  const std::vector<std::string> urls{wait_for_url(agent, "health at "), wait_for_url(coordinator, "JSON-RPC at ")};
  for (const std::string& url : urls)
    EXPECT_TRUE(eventually([&] { return run_health(url) == "0 ok\n"; })) << run_health(url);
  ::kill(redis_.pid(), SIGSTOP);
  for (const std::string& url : urls)
    EXPECT_TRUE(eventually([&] { return run_health(url).starts_with("1 not_ready: Redis is unavailable"); }))
        << run_health(url);
  ::kill(redis_.pid(), SIGCONT);
  for (const std::string& url : urls)
    EXPECT_TRUE(eventually([&] { return run_health(url) == "0 ok\n"; })) << run_health(url);
}

}  // namespace
}  // namespace mycojobs
