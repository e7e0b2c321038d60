// Hosts that lack descriptors, threads or memory: no job is lost, and the messages name the resource.
#include <sys/resource.h>

#include <csignal>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

class Shortage : public ::testing::Test {
 protected:
  Process start(std::vector<std::string> more_options = {}) {
    more_options.insert(more_options.end(), {"--sandbox-prewarmed", "0", "--health-listen", "127.0.0.1:0"});
    return start_agent(folder_, redis_, 1, more_options);
  }
  // Returns 0 if there is no launcher.
  static pid_t find_launcher(const Process& agent) {
    for (const pid_t pid : descendants(agent.pid())) {
      if (read_process_name(pid) == "mycojobs-launch") return pid;
    }
    return 0;
  }
  static void set_descriptors(pid_t pid, rlim_t limit) {
    rlimit limits{};
    ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, nullptr, &limits), 0);
    limits.rlim_cur = limit == RLIM_INFINITY ? limits.rlim_max : limit;
    ASSERT_EQ(::prlimit(pid, RLIMIT_NOFILE, &limits, nullptr), 0);
  }
  std::string read_runner_detail() const { return redis_.cli(1, {"HGET", "runner:1", "detail"}); }
  std::string explain_as_json(const PlainJob& job) {
    return run(folder_, {program_path(), "job", "explain", job.key().substr(4), "--redis", redis_.url(), "--json"}).out;
  }

  TempDir folder_;
  RedisServer redis_{folder_};
};

// With 50 descriptors, those of a run do not fit beside the launcher's reserve. With 10, the launcher cannot even
// receive the descriptors of the agent's message.
TEST_F(Shortage, LauncherWithoutDescriptorsGivesJobsBack) {
  for (const rlim_t limit : {50, 10}) {
    Process agent = start();
    ASSERT_TRUE(wait_until_registered(redis_, 1)) << agent.err();
    const pid_t launcher = find_launcher(agent);
    ASSERT_NE(launcher, 0);
    set_descriptors(launcher, limit);
    std::vector<PlainJob> jobs;
    for (int id = 1; id <= 8; ++id) {
      jobs.push_back({.caller = static_cast<int>(limit), .id = id});
      submit(redis_, jobs.back());
    }
    const std::string expected_detail = "paused: out of descriptors: raise the limit of open files";
    ASSERT_TRUE(eventually([&] { return read_runner_detail().starts_with(expected_detail); }))
        << read_runner_detail() << agent.err();
    EXPECT_TRUE(eventually([&] { return explain_as_json(jobs.back()).find("\"runner_paused\"") != std::string::npos; }))
        << explain_as_json(jobs.back());
    for (const PlainJob& job : jobs) EXPECT_FALSE(has_ended(redis_, job));
    EXPECT_EQ(find_launcher(agent), launcher) << "the launcher was not restarted";
    set_descriptors(launcher, RLIM_INFINITY);
    for (const PlainJob& job : jobs) {
      EXPECT_EQ(wait_for_status(redis_, job), "finished") << agent.err();
      EXPECT_EQ(read_field(redis_, job, "deliveries"), "1");
    }
    EXPECT_TRUE(eventually([&] { return read_runner_detail() == "running"; })) << read_runner_detail();
    agent.signal(SIGTERM);
    agent.wait();
  }
}

TEST_F(Shortage, SlotsAreComparedWithTheLimitsAtTheStart) {
  std::vector<std::string> argv{
      "prlimit", "--nofile=120:120", program_path(), "agent",       "--redis",        redis_.url(), "--runner",
      "1",       "--slots",          "64",           "--state-dir", folder_ / "state"};
  Process agent(folder_, argv);
  ASSERT_TRUE(wait_until_registered(redis_, 1)) << agent.err();
  EXPECT_NE(agent.err().find("slots: 64 are set, and 5 fit into the limit of 120 descriptors"), std::string::npos)
      << agent.err();
  EXPECT_EQ(redis_.cli(1, {"HGET", "runner:1", "slots"}), "5");
  std::vector<PlainJob> jobs;
  for (int id = 1; id <= 40; ++id) {
    jobs.push_back({.id = id, .script = "import time\ntime.sleep(0.2)"});
    submit(redis_, jobs.back());
  }
  for (const PlainJob& job : jobs) {
    EXPECT_EQ(wait_for_status(redis_, job), "finished") << agent.err();
    EXPECT_EQ(read_field(redis_, job, "deliveries"), "1");
  }
}

// Limits the address space of the agent below the needs of its threads or its memory.
TEST_F(Shortage, TooLittleAddressSpaceIsNamed) {
  for (const char* mib : {"60", "150", "200", "275"}) {
    const std::string limit = "--as=" + std::to_string(std::stoul(mib) << 20);
    Process agent(folder_, {"prlimit", limit, program_path(), "agent", "--redis", redis_.url(), "--runner", "7",
                            "--state-dir", folder_ / "state"});
    const bool is_registered_or_ended = eventually([&] {
      return !agent.is_running() || redis_.cli(1, {"HGET", "runner:7", "detail"}) != "";
    });
    EXPECT_TRUE(is_registered_or_ended) << mib;
    EXPECT_EQ(agent.err().find("a bug"), std::string::npos) << mib << " MiB: " << agent.err();
    EXPECT_EQ(agent.err().find("bad_alloc"), std::string::npos) << mib << " MiB: " << agent.err();
    if (!agent.is_running()) {
      EXPECT_NE(agent.err().find("out of "), std::string::npos) << mib << " MiB: " << agent.err();
    }
    agent.signal(SIGKILL);
    agent.wait();
    redis_.cli(1, {"FLUSHDB"});
  }
}

// Runs the coordinator as an unprivileged user, because RLIMIT_NPROC does not apply to root.
TEST_F(Shortage, CoordinatorWithoutThreadsContinues) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  constexpr const char* kUser = "54321";  // a user without processes
  for (const char* context : {"1", "2", "3", "4"}) redis_.cli(std::stoi(context), {"SET", "x", "1"});
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
  std::filesystem::permissions(redis_.url().substr(7), std::filesystem::perms::all);
  const std::vector<std::string> as_user{"setpriv", "--reuid", kUser, "--regid", kUser, "--clear-groups"};
  std::vector<std::string> version_argv = as_user;
  version_argv.insert(version_argv.end(), {program_path(), "version"});
  if (run(folder_, version_argv).code != 0) GTEST_SKIP() << "other users cannot execute the programs of this build";
  std::vector<std::string> argv{"prlimit", "--nproc=8:1000"};
  argv.insert(argv.end(), as_user.begin(), as_user.end());
  argv.insert(argv.end(), {program_path(), "coordinator", "--redis", redis_.url(), "--state-dir", folder_ / "user",
                           "--api-listen", "127.0.0.1:0"});
  Process coordinator(folder_, argv, {"HOME=" + (folder_ / "user"), "XDG_CONFIG_HOME=" + (folder_ / "user")});
  ASSERT_TRUE(eventually([&] {
    return coordinator.err().find("cannot be served: no thread can be started: out of processes or threads") !=
           std::string::npos;
  })) << coordinator.err();
  EXPECT_NE(coordinator.err().find("JSON-RPC at"), std::string::npos) << coordinator.err();
  std::vector<std::string> raise_limit = as_user;
  raise_limit.insert(raise_limit.end(), {"prlimit", "--pid", std::to_string(coordinator.pid()), "--nproc=1000:1000"});
  ASSERT_EQ(run(folder_, raise_limit).code, 0);
  EXPECT_TRUE(eventually([&] {
    for (const char* context : {"1", "2", "3", "4"}) {
      if (coordinator.err().find(std::string("context ") + context + ": served") == std::string::npos) return false;
    }
    return true;
  })) << coordinator.err();
  EXPECT_TRUE(coordinator.is_running());
}

}  // namespace
}  // namespace mycojobs::test
