// Processes are killed and stopped, and servers fail. No job is lost, and no job ends twice.
#include <csignal>
#include <fstream>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

const std::vector<std::string> kShortLease{"--lease", "2s"};
const std::vector<std::string> kLongLease{"--lease", "1h"};  // jobs that wait for this lease appear to hang

TEST(Faults, JobOfAKilledAgentIsDeliveredAgain) {
  TempDir folder;
  RedisServer redis(folder);
  Process first_agent = start_agent(folder, redis, 1, kShortLease);
  PlainJob job{.script =
                   "import time, mycojobs\ntime.sleep(3 if mycojobs.job.deliveries == 1 else 0)\nresult['epoch'] = "
                   "mycojobs.job.epoch"};
  submit(redis, job);
  ASSERT_TRUE(eventually([&] { return read_field(redis, job, "status") == "started"; })) << first_agent.err();
  const std::string epoch = read_field(redis, job, "epoch");
  first_agent.signal(SIGKILL);
  first_agent.wait();
  Process second_agent = start_agent(folder, redis, 2, kShortLease);
  EXPECT_EQ(wait_for_status(redis, job), "finished") << second_agent.err();
  EXPECT_EQ(read_field(redis, job, "deliveries"), "2");
  EXPECT_EQ(read_field(redis, job, "attempt"), "1");
  EXPECT_GT(read_field(redis, job, "epoch"), epoch);
}

TEST(Faults, AgentWithTheIdOfADeadOneStartsAtOnce) {
  TempDir folder;
  RedisServer redis(folder);
  Process first_agent = start_agent(folder, redis, 1, kLongLease);
  ASSERT_TRUE(wait_until_registered(redis, 1)) << first_agent.err();
  first_agent.signal(SIGKILL);
  first_agent.wait();
  Process second_agent = start_agent(folder, redis, 1, kLongLease);
  PlainJob job;
  submit(redis, job);
  EXPECT_EQ(wait_for_status(redis, job), "finished") << second_agent.err();
}

TEST(Faults, StoppedAgentCannotKeepItsJobBeyondTheLease) {
  TempDir folder;
  RedisServer redis(folder);
  Process first_agent = start_agent(folder, redis, 1, kShortLease);
  PlainJob job{.script = "import time, mycojobs\ntime.sleep(30 if mycojobs.job.deliveries == 1 else 0)"};
  submit(redis, job);
  ASSERT_TRUE(eventually([&] { return read_field(redis, job, "status") == "started"; })) << first_agent.err();
  first_agent.signal(SIGSTOP);
  Process second_agent = start_agent(folder, redis, 2, kShortLease);
  EXPECT_EQ(wait_for_status(redis, job), "finished") << second_agent.err();
  EXPECT_EQ(read_field(redis, job, "runner_id"), "2");
  first_agent.signal(SIGCONT);
  // The report of the first agent is stale now and has no effect.
  EXPECT_TRUE(eventually([&] { return first_agent.err().find("stale") != std::string::npos; })) << first_agent.err();
  EXPECT_EQ(read_field(redis, job, "runner_id"), "2");
  EXPECT_EQ(read_field(redis, job, "status"), "finished");
}

// A claim whose reply was lost would hold its job until the lease expires, which this test never reaches.
TEST(Faults, SilentRedisIsUsedAgainAtOnce) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 1, kLongLease);
  PlainJob first_job{.id = 1};
  submit(redis, first_job);
  ASSERT_EQ(wait_for_status(redis, first_job), "finished") << agent.err();
  PlainJob job{.id = 2};
  submit(redis, job);
  ::kill(redis.pid(), SIGSTOP);
  eventually([] { return false; }, Seconds(6));  // the agent's calls fail during this time
  ::kill(redis.pid(), SIGCONT);
  PlainJob last_job{.id = 3};
  submit(redis, last_job);
  EXPECT_EQ(wait_for_status(redis, last_job), "finished") << agent.err();
  EXPECT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  EXPECT_EQ(read_field(redis, last_job, "deliveries"), "1");
}

TEST(Faults, RedisKilledUnderARunningJobChangesNothing) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 1);
  PlainJob running_job{.id = 1, .script = "import time\ntime.sleep(2)\nresult['done'] = 'yes'"};
  submit(redis, running_job);
  ASSERT_TRUE(eventually([&] { return read_field(redis, running_job, "status") == "started"; })) << agent.err();
  eventually([] { return false; }, Seconds(1.1));  // with appendfsync everysec, data older than a second is on disk
  redis.kill();
  eventually([] { return false; }, Seconds(1.5));  // the job ends during this time
  redis.start();
  EXPECT_EQ(wait_for_status(redis, running_job), "finished") << agent.err();
  EXPECT_EQ(read_field(redis, running_job, "deliveries"), "1");
  PlainJob next_job{.id = 2};
  submit(redis, next_job);
  EXPECT_EQ(wait_for_status(redis, next_job), "finished") << agent.err();
}

TEST(Faults, ContextWithoutItsRedisDoesNotDelayAnother) {
  TempDir folder;
  TempDir other_folder;
  RedisServer redis(folder);
  RedisServer other_redis(other_folder);
  const std::string config =
      folder.write("config.toml", "lease = \"3s\"\n[contexts.3]\nredis = \"" + other_redis.url() + "\"\n");
  Process agent = start_agent(folder, redis, 1, {"--config", config, "--context", "1,3"});
  ASSERT_TRUE(wait_until_registered(redis, 1) && wait_until_registered(other_redis, 1, 3)) << agent.err();
  PlainJob unreported_job{.id = 1, .script = "import time\ntime.sleep(1)"};
  submit(redis, unreported_job);
  ASSERT_TRUE(eventually([&] { return read_field(redis, unreported_job, "status") == "started"; })) << agent.err();
  redis.kill();
  eventually([] { return false; }, Seconds(1.5));  // the job ends during this time and cannot be reported
  for (int id = 10; id < 18; ++id) submit(other_redis, {.id = id, .context = 3});
  for (int id = 10; id < 18; ++id) {
    EXPECT_EQ(wait_for_status(other_redis, {.id = id, .context = 3}), "finished") << agent.err();
  }
  redis.start();
  EXPECT_EQ(wait_for_status(redis, unreported_job, Seconds(20)), "finished") << agent.err();
}

TEST(Faults, JobWithADeletedClaimIsNotStranded) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 1, kShortLease);
  PlainJob job{.script = "import time\nprint('begin', flush=True)\ntime.sleep(3)\nprint('end')"};
  submit(redis, job);
  ASSERT_TRUE(eventually([&] { return read_job_log(folder, redis, job) == "begin\n"; })) << agent.err();
  redis.cli(1, {"DEL", "mj:claim:" + job.key()});
  EXPECT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  EXPECT_EQ(read_job_log(folder, redis, job), "begin\nbegin\nend\n");
}

TEST(Faults, LauncherKilledUnderARunningJobIsReplaced) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 1);
  PlainJob job{.script =
                   "import time, mycojobs\nprint('up', flush=True)\n"
                   "time.sleep(60 if mycojobs.job.deliveries == 1 else 0)"};
  submit(redis, job);
  // A claimed job that has not begun would return to the queue with the same number of deliveries.
  ASSERT_TRUE(eventually([&] { return read_job_log(folder, redis, job) == "up\n"; })) << agent.err();
  // Children of every thread of the agent; one is the launcher.
  pid_t launcher = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(agent.pid()) + "/task")) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) launcher = child;
  }
  ASSERT_GT(launcher, 0);
  ::kill(launcher, SIGKILL);
  EXPECT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  EXPECT_EQ(read_field(redis, job, "runner_id"), "1");
}

TEST(Stop, TermDrainsAndWaitsForTheJob) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 1);
  PlainJob job{.id = 1, .script = "import time\ntime.sleep(1)"};
  submit(redis, job);
  ASSERT_TRUE(eventually([&] { return read_field(redis, job, "status") == "started"; })) << agent.err();
  agent.signal(SIGTERM);
  PlainJob later_job{.id = 2};
  submit(redis, later_job);
  EXPECT_EQ(agent.wait().code, 0);
  EXPECT_EQ(read_field(redis, job, "status"), "finished");
  EXPECT_EQ(read_field(redis, later_job, "status"), "dispatched");
}

TEST(Stop, SecondTermReturnsJobsAndThirdExits) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_agent(folder, redis, 1);
  PlainJob job{.id = 1, .script = "import time\ntime.sleep(600)", .timeout = "1000"};
  submit(redis, job);
  ASSERT_TRUE(eventually([&] { return read_field(redis, job, "status") == "started"; })) << agent.err();
  agent.signal(SIGTERM);
  ASSERT_TRUE(eventually([&] { return agent.err().find("draining") != std::string::npos; }));
  agent.signal(SIGTERM);
  EXPECT_EQ(agent.wait().code, 0);
  EXPECT_EQ(read_field(redis, job, "status"), "dispatched");
  EXPECT_EQ(redis.cli(1, {"LRANGE", "queue:python", "0", "-1"}), job.key());
  Process second_agent = start_agent(folder, redis, 1);
  ASSERT_TRUE(eventually([&] { return read_field(redis, job, "status") == "started"; })) << second_agent.err();
  EXPECT_EQ(read_field(redis, job, "deliveries"), "1") << "the delivery that was returned is not counted";
  second_agent.signal(SIGKILL);
  second_agent.wait();

  Process agent_with_grace = start_agent(folder, redis, 2, {"--grace", "60s"});
  PlainJob stubborn_job{.id = 2,
                        .script =
                            "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', "
                            "flush=True)\ntime.sleep(600)",
                        .timeout = "1000"};
  submit(redis, stubborn_job);
  ASSERT_TRUE(eventually([&] { return read_job_log(folder, redis, stubborn_job) == "deaf\n"; }))
      << agent_with_grace.err();
  for (const char* word : {"draining", "stopping"}) {
    agent_with_grace.signal(SIGTERM);
    ASSERT_TRUE(eventually([&] { return agent_with_grace.err().find(word) != std::string::npos; }))
        << agent_with_grace.err();
  }
  agent_with_grace.signal(SIGTERM);
  EXPECT_EQ(agent_with_grace.wait().code, 75);
  EXPECT_EQ(read_field(redis, stubborn_job, "status"), "started");  // its lease expires later
}

// Tests of settings that an operator changes while jobs run.
class ReloadTest : public ::testing::Test {
 protected:
  void write(const std::string& ceiling, const std::string& top_level_settings = "") {
    folder_.write("config.toml", top_level_settings + "[ceiling]\nmemory = \"" + ceiling + "\"\n");
  }
  Process start(const std::string& command) {
    // Without a controlling terminal. setsid does not fork, because the process is not a group leader.
    std::vector<std::string> argv{"setsid",   program_path(),         command, "--redis", redis_.url(),
                                  "--config", folder_ / "config.toml"};
    if (command == "agent") argv.insert(argv.end(), {"--runner", "1", "--state-dir", folder_ / "state"});
    return Process(folder_, argv);
  }
  TempDir folder_;
  RedisServer redis_{folder_};
};

TEST_F(ReloadTest, HangUpReloadsCeilingsAndDoesNotDrain) {
  write("128 MiB");
  Process agent = start("agent");
  ASSERT_TRUE(wait_until_registered(redis_, 1)) << agent.err();
  PlainJob large{.id = 1, .extra_fields = {"policy", R"({"memory":"200 MiB"})"}};
  submit(redis_, large);
  EXPECT_EQ(wait_for_status(redis_, large), "error") << agent.err();
  write("512 MiB", "lease = \"77s\"\n");
  agent.signal(SIGHUP);
  ASSERT_TRUE(eventually([&] { return agent.err().find("reloaded") != std::string::npos; })) << agent.err();
  EXPECT_NE(agent.err().find("take effect after a restart: lease"), std::string::npos) << agent.err();
  PlainJob allowed{.id = 2, .extra_fields = {"policy", R"({"memory":"200 MiB"})"}};
  submit(redis_, allowed);
  EXPECT_EQ(wait_for_status(redis_, allowed), "finished") << agent.err();
  EXPECT_EQ(agent.err().find("draining"), std::string::npos) << agent.err();
}

TEST_F(ReloadTest, InvalidFileKeepsTheSettings) {
  write("128 MiB");
  Process agent = start("agent");
  ASSERT_TRUE(wait_until_registered(redis_, 1)) << agent.err();
  folder_.write("config.toml", "[ceiling]\nmemory = \"much\"\n");
  agent.signal(SIGHUP);
  ASSERT_TRUE(eventually([&] { return agent.err().find("not reloaded") != std::string::npos; })) << agent.err();
  EXPECT_NE(agent.err().find("config.toml:2:"), std::string::npos) << agent.err();
  PlainJob large{.id = 1, .extra_fields = {"policy", R"({"memory":"200 MiB"})"}};
  submit(redis_, large);
  EXPECT_EQ(wait_for_status(redis_, large), "error") << agent.err();
}

TEST_F(ReloadTest, CoordinatorReloadsAndContinues) {
  write("128 MiB");
  Process coordinator = start("coordinator");
  ASSERT_TRUE(eventually([&] { return coordinator.err().find("coordinator of") != std::string::npos; }))
      << coordinator.err();
  coordinator.signal(SIGHUP);
  ASSERT_TRUE(eventually([&] { return coordinator.err().find("reloaded") != std::string::npos; })) << coordinator.err();
  EXPECT_TRUE(coordinator.is_running());
}

}  // namespace
}  // namespace mycojobs::test
