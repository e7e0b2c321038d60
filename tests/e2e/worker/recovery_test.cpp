// Waiting jobs start and lost jobs are recovered, with real agents and with clients that use only redis-cli.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

std::uint64_t to_number(const std::string& text) { return text.empty() ? 0 : std::stoull(text); }
std::uint64_t read_redis_time_ms(const RedisServer& redis) {
  std::istringstream words(redis.cli(0, {"TIME"}));
  std::uint64_t seconds = 0;
  std::uint64_t micros = 0;
  words >> seconds >> micros;
  return seconds * 1000 + micros / 1000;
}
std::uint64_t read_time_ms(const RedisServer& redis, const PlainJob& job, const std::string& name) {
  return to_number(read_field(redis, job, name));
}
double read_boot_time_s() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

Process start_runner_1(const TempDir& folder, const RedisServer& redis, std::vector<std::string> more_options = {}) {
  return start_agent(folder, redis, 1, std::move(more_options));
}

// Returns the guardian and the launcher of an agent, which reap its jobs.
std::vector<pid_t> find_reapers(const std::vector<pid_t>& agent_descendants) {
  std::vector<pid_t> matching_pids;
  for (const pid_t pid : agent_descendants) {
    const std::string name = read_process_name(pid);
    if (name.starts_with("mycojobs-guard") || name.starts_with("mycojobs-launch")) matching_pids.push_back(pid);
  }
  return matching_pids;
}

// Returns the process that runs kSleepOnFirstDelivery, or -1. Other processes are prewarmed sandboxes.
pid_t find_job_process(const std::vector<pid_t>& agent_descendants) {
  const auto job_process = std::find_if(agent_descendants.begin(), agent_descendants.end(),
                                        [](pid_t pid) { return read_process_name(pid) == "it-stays"; });
  return job_process == agent_descendants.end() ? -1 : *job_process;
}

// Records the time at which a process ends, in a thread of its own.
class ProcessEndRecorder {
 public:
  explicit ProcessEndRecorder(pid_t pid) : pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
    thread_ = std::thread([this] {
      pollfd end_event{pidfd_, POLLIN, 0};
      const bool seen = pidfd_ >= 0 && ::poll(&end_event, 1, 60000) == 1;
      ended_at_s_ = seen ? read_boot_time_s() : 0;
      ::close(pidfd_);
    });
  }
  // Waits for the end of the process and returns its boot time, or 0 if the process has not ended after 60 s.
  double wait_for_end_s() {
    if (thread_.joinable()) thread_.join();
    return ended_at_s_;
  }
  ~ProcessEndRecorder() { wait_for_end_s(); }

 private:
  int pidfd_;
  double ended_at_s_ = 0;
  std::thread thread_;
};

// A script that prints the boot time at which it begins; all processes of the host share this clock. The first delivery
// sleeps after that. The script sets its process name with PR_SET_NAME, so that find_job_process() can find it.
const char* const kSleepOnFirstDelivery =
    "import ctypes, time, mycojobs\n"
    "ctypes.CDLL(None).prctl(15, b'it-stays')\n"
    "print('begin', mycojobs.job.epoch, time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)\n"
    "time.sleep(600 if mycojobs.job.deliveries == 1 else 0)\n"
    "print('end', mycojobs.job.epoch)\n";

struct JobStart {
  std::uint64_t epoch = 0;
  double boot_time_s = 0;
};
std::vector<JobStart> parse_job_starts(const std::string& log) {
  std::vector<JobStart> job_starts;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    JobStart job_start;
    if (words >> word >> job_start.epoch >> job_start.boot_time_s && word == "begin") job_starts.push_back(job_start);
  }
  return job_starts;
}

class Recovery : public ::testing::Test {
 protected:
  TempDir folder_;
  RedisServer redis_{folder_};
  PlainJob job_{.script = kSleepOnFirstDelivery, .timeout = "1000"};

  bool wait_until_begun() {
    return eventually([&] { return read_job_log(folder_, redis_, job_).starts_with("begin"); });
  }
  // Checks that the second delivery began after the process of the first delivery had ended, and that its epoch is
  // higher.
  void expect_two_consecutive_deliveries(ProcessEndRecorder& first) {
    EXPECT_EQ(read_field(redis_, job_, "deliveries"), "2");
    EXPECT_EQ(read_field(redis_, job_, "attempt"), "1");
    const std::string log = read_job_log(folder_, redis_, job_);
    const auto job_starts = parse_job_starts(log);
    ASSERT_EQ(job_starts.size(), 2U) << log;
    EXPECT_GT(job_starts[1].epoch, job_starts[0].epoch);
    EXPECT_TRUE(log.ends_with("end " + std::to_string(job_starts[1].epoch) + "\n")) << log;
    EXPECT_GT(first.wait_for_end_s(), job_starts[0].boot_time_s);
    EXPECT_LT(first.wait_for_end_s(), job_starts[1].boot_time_s);
  }
};

TEST_F(Recovery, RestartedAgentRunsItsJobAtOnce) {
  Process first_agent = start_runner_1(folder_, redis_, {"--lease", "120s"});
  submit(redis_, job_);
  ASSERT_TRUE(wait_until_begun()) << first_agent.err();
  const auto agent_descendants = descendants(first_agent.pid());
  ASSERT_GE(agent_descendants.size(), 5U);  // guardian, launcher, zygote, init, job
  ProcessEndRecorder job(find_job_process(agent_descendants));
  first_agent.signal(SIGKILL);
  // The processes of the first agent may not be reaped yet.
  Process second_agent = start_runner_1(folder_, redis_, {"--lease", "120s"});
  first_agent.wait();
  EXPECT_EQ(wait_for_status(redis_, job_, Seconds(30)), "finished") << second_agent.err();
  expect_two_consecutive_deliveries(job);
  EXPECT_NE(second_agent.err().find("has ended with all its processes"), std::string::npos) << second_agent.err();
}

TEST_F(Recovery, RestartedAgentWithKilledHelpersRunsItsJobAtOnce) {
  Process first_agent = start_runner_1(folder_, redis_, {"--lease", "120s"});
  submit(redis_, job_);
  ASSERT_TRUE(wait_until_begun()) << first_agent.err();
  const auto agent_descendants = descendants(first_agent.pid());
  const auto reapers = find_reapers(agent_descendants);
  ASSERT_EQ(reapers.size(), 2U);
  ProcessEndRecorder job(find_job_process(agent_descendants));
  for (pid_t pid : reapers) ::kill(pid, SIGSTOP);  // stopped, so they reap no process
  first_agent.signal(SIGKILL);
  for (pid_t pid : reapers) ::kill(pid, SIGKILL);
  first_agent.wait();
  Process second_agent = start_runner_1(folder_, redis_, {"--lease", "120s"});
  EXPECT_EQ(wait_for_status(redis_, job_, Seconds(30)), "finished") << second_agent.err();
  expect_two_consecutive_deliveries(job);
}

TEST_F(Recovery, SurvivingHelperPreventsAnEarlyReturnOfItsJobs) {
  Process first_agent = start_runner_1(folder_, redis_, {"--lease", "6s"});
  submit(redis_, job_);
  ASSERT_TRUE(wait_until_begun()) << first_agent.err();
  const auto agent_descendants = descendants(first_agent.pid());
  const auto reapers = find_reapers(agent_descendants);
  ASSERT_EQ(reapers.size(), 2U);
  ProcessEndRecorder job(find_job_process(agent_descendants));
  for (pid_t pid : reapers) ::kill(pid, SIGSTOP);
  first_agent.signal(SIGKILL);
  first_agent.wait();
  Process second_agent = start_runner_1(folder_, redis_, {"--lease", "6s"});
  EXPECT_EQ(wait_for_status(redis_, job_, Seconds(40)), "finished") << second_agent.err();
  expect_two_consecutive_deliveries(job);  // the init of the sandbox ended the job at the fence
  EXPECT_EQ(second_agent.err().find("has ended with all its processes"), std::string::npos) << second_agent.err();
  for (pid_t pid : reapers) ::kill(pid, SIGKILL);
}

TEST_F(Recovery, SilentRunnerIsReportedLostByAnother) {
  Process first_agent = start_runner_1(folder_, redis_, {"--lease", "1s"});
  Process second_agent = start_agent(folder_, redis_, 2, {"--lease", "1s"});
  ASSERT_TRUE(wait_until_registered(redis_, 1) && wait_until_registered(redis_, 2))
      << first_agent.err() << second_agent.err();
  first_agent.signal(SIGKILL);
  EXPECT_TRUE(eventually([&] {
    return redis_.cli(1, {"HGET", "runner:1", "detail"}) == "lost";
  })) << second_agent.err();
  EXPECT_EQ(redis_.cli(1, {"HGET", "runner:2", "detail"}), "running");
  Process restarted_agent = start_runner_1(folder_, redis_, {"--lease", "1s"});
  EXPECT_TRUE(wait_until_registered(redis_, 1)) << restarted_agent.err();
  restarted_agent.signal(SIGTERM);
  EXPECT_EQ(restarted_agent.wait().code, 0);
  EXPECT_EQ(redis_.cli(1, {"HGET", "runner:1", "detail"}), "stopped");
}

TEST_F(Recovery, RunWithoutAFenceContinuesDuringARedisOutage) {
  Process agent = start_runner_1(folder_, redis_, {"--lease", "1s", "--on-lease-lost", "continue"});
  job_.script = "import time\nprint('begin', flush=True)\ntime.sleep(4)\nresult['done'] = 'yes'";
  submit(redis_, job_);
  ASSERT_TRUE(wait_until_begun()) << agent.err();
  redis_.kill();
  eventually([] { return false; }, Seconds(2.5));  // more than two leases
  redis_.start();
  EXPECT_EQ(wait_for_status(redis_, job_), "finished") << agent.err();
  EXPECT_EQ(read_field(redis_, job_, "deliveries"), "1");
}

TEST(Waiting, DelayedJobRunsAtItsTime) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_runner_1(folder, redis);
  ASSERT_TRUE(wait_until_registered(redis, 1)) << agent.err();
  const std::uint64_t due = read_redis_time_ms(redis) + 2500;
  PlainJob job{.extra_fields = {"run_at_ms", std::to_string(due)}};
  submit(redis, job);
  EXPECT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  EXPECT_GE(read_time_ms(redis, job, "started_ms"), due);
}

TEST(Waiting, FailureIsRetriedAfterGrowingPauses) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_runner_1(folder, redis, {"--retry-min", "400ms"});
  PlainJob job{.script =
                   "import mycojobs\nif mycojobs.job.attempt < 3: raise ValueError('not yet')\nresult['at'] = "
                   "mycojobs.job.attempt",
               .extra_fields = {"retries", "2"}};
  const std::uint64_t before = read_redis_time_ms(redis);
  submit(redis, job);
  ASSERT_TRUE(eventually([&] { return read_field(redis, job, "detail") == "retry_wait"; })) << agent.err();
  EXPECT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  EXPECT_EQ(read_field(redis, job, "attempt"), "3");
  EXPECT_GE(read_time_ms(redis, job, "started_ms"), before + 600) << "half of 400 ms and of 800 ms at least";
  EXPECT_EQ(read_field(redis, job, "result"), R"({"at":"3"})");
}

TEST(Waiting, LastFailureEndsTheJob) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_runner_1(folder, redis, {"--retry-min", "10ms", "--retry-max", "20ms"});
  PlainJob job{.script = "raise ValueError('never')", .extra_fields = {"retries", "1"}};
  submit(redis, job);
  EXPECT_EQ(wait_for_status(redis, job), "error") << agent.err();
  EXPECT_EQ(read_field(redis, job, "detail"), "exception");
  EXPECT_EQ(read_field(redis, job, "attempt"), "2");
}

TEST(Waiting, DependentsRunInOrderOfDependency) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_runner_1(folder, redis);
  // Jobs 2 and 3 depend on job 1, job 4 depends on jobs 2 and 3, and job 5 on job 4. Some jobs are written before their
  // dependencies exist.
  const std::pair<int, const char*> jobs[] = {{5, "[4]"}, {4, "[2,3]"}, {2, "[1]"}, {3, "[1]"}, {1, "[]"}};
  for (const auto& [id, dependencies] : jobs) {
    submit(redis, {.id = id, .script = "import time\ntime.sleep(0.1)", .extra_fields = {"dependends", dependencies}});
  }
  for (int id = 1; id <= 5; ++id) EXPECT_EQ(wait_for_status(redis, {.id = id}), "finished") << id << agent.err();
  const std::pair<int, int> edges[] = {{1, 2}, {1, 3}, {2, 4}, {3, 4}, {4, 5}};
  for (const auto& [before, after] : edges) {
    EXPECT_LE(read_time_ms(redis, {.id = before}, "ended_ms"), read_time_ms(redis, {.id = after}, "started_ms"))
        << before << " before " << after;
  }
}

TEST(Waiting, DependentsOfAFailureFail) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_runner_1(folder, redis);
  submit(redis, {.id = 3, .extra_fields = {"dependends", "[2]"}});
  submit(redis, {.id = 2, .extra_fields = {"dependends", "[1]"}});
  submit(redis, {.id = 1, .script = "raise SystemExit(3)"});
  for (int id = 2; id <= 3; ++id) {
    EXPECT_EQ(wait_for_status(redis, {.id = id}), "error") << agent.err();
    EXPECT_EQ(read_field(redis, {.id = id}, "detail"), "dependency_failed");
  }
}

TEST(Waiting, JobWaitsForItsPrerequisites) {
  TempDir folder;
  RedisServer redis(folder);
  const std::string data = folder.path().string() + "/data/";
  std::filesystem::create_directories(data);
  Process agent = start_runner_1(folder, redis, {"--prerequisites-allow", "file:" + data});
  const auto make_waiting_job = [](int id, const std::string& conditions) {
    return PlainJob{.id = id, .extra_fields = {"prerequisites", conditions}};
  };
  const PlainJob timed_job = make_waiting_job(1, R"(["wait:1s"])");
  const PlainJob key_job = make_waiting_job(2, R"(["redis:go"])");
  const PlainJob file_job = make_waiting_job(3, R"(["file:)" + data + R"(flag"])");
  const PlainJob forbidden_job = make_waiting_job(4, R"(["file:)" + data + R"(../secret"])");
  const PlainJob approval_job = make_waiting_job(5, R"(["approval:legal"])");
  for (const PlainJob& job : {timed_job, key_job, file_job, forbidden_job, approval_job}) submit(redis, job);
  for (const PlainJob& job : {key_job, file_job, approval_job}) {
    EXPECT_TRUE(eventually([&] { return read_field(redis, job, "status") == "waiting_for_prerequisites"; }))
        << agent.err();
  }
  EXPECT_EQ(wait_for_status(redis, timed_job), "finished") << agent.err();
  EXPECT_EQ(wait_for_status(redis, forbidden_job), "error") << agent.err();
  EXPECT_EQ(read_field(redis, forbidden_job, "detail"), "prerequisite");
  EXPECT_NE(read_field(redis, forbidden_job, "error").find("prerequisites.allow"), std::string::npos);
  redis.cli(1, {"SET", "go", "1"});
  std::ofstream(data + "flag") << "";
  EXPECT_EQ(wait_for_status(redis, key_job), "finished") << agent.err();
  EXPECT_EQ(wait_for_status(redis, file_job), "finished") << agent.err();
  EXPECT_EQ(read_field(redis, approval_job, "status"), "waiting_for_prerequisites") << "no local actor may approve it";
}

TEST(Waiting, OptionThatAllowsNothingIsRejectedAtTheStart) {
  TempDir folder;
  RedisServer redis(folder);
  const ProcessResult rejected = start_runner_1(folder, redis, {"--prerequisites-allow", "/data/"}).wait();
  EXPECT_EQ(rejected.code, 65);
  EXPECT_NE(rejected.err.find("prerequisites.allow"), std::string::npos) << rejected.err;
}

}  // namespace
}  // namespace mycojobs::test
