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

std::uint64_t number(const std::string& text) { return text.empty() ? 0 : std::stoull(text); }
std::uint64_t redis_ms(const RedisServer& redis) {
  std::istringstream words(redis.cli(0, {"TIME"}));
  std::uint64_t seconds = 0;
  std::uint64_t micros = 0;
  words >> seconds >> micros;
  return seconds * 1000 + micros / 1000;
}
std::uint64_t moment(const RedisServer& redis, const PlainJob& job, const std::string& name) {
  return number(field(redis, job, name));
}
double boot_s() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

Process start_here(const TempDir& folder, const RedisServer& redis, std::vector<std::string> more = {}) {
  return start_agent(folder, redis, 1, std::move(more));
}

// Functions for the descendants of a process, parents first: guardian, launcher, zygotes, inits, jobs.
std::string get_process_name(pid_t pid) {
  std::string name;
  std::ifstream("/proc/" + std::to_string(pid) + "/comm") >> name;
  return name;
}

// Returns the processes of an agent that reap jobs.
std::vector<pid_t> undertakers(const std::vector<pid_t>& below) {
  std::vector<pid_t> found;
  for (const pid_t pid : below) {
    const std::string name = get_process_name(pid);
    if (name.starts_with("mycojobs-guard") || name.starts_with("mycojobs-launch")) found.push_back(pid);
  }
  return found;
}

// Returns the process that runs kStays, or -1. Other processes are prewarmed sandboxes.
pid_t job_among(const std::vector<pid_t>& below) {
  const auto found =
      std::find_if(below.begin(), below.end(), [](pid_t pid) { return get_process_name(pid) == "it-stays"; });
  return found == below.end() ? -1 : *found;
}

// Records the time at which a process ends.
class Watch {
 public:
  explicit Watch(pid_t pid) : pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {
    thread_ = std::thread([this] {
      pollfd end_event{pidfd_, POLLIN, 0};
      const bool seen = pidfd_ >= 0 && ::poll(&end_event, 1, 60000) == 1;
      at_ = seen ? boot_s() : 0;
      ::close(pidfd_);
    });
  }
  double ended_at() {  // 0 if it has not ended
    if (thread_.joinable()) thread_.join();
    return at_;
  }
  ~Watch() { ended_at(); }

 private:
  int pidfd_;
  double at_ = 0;
  std::thread thread_;
};

// Prints the boot time at which it begins, a clock shared by all processes of the host. The first delivery then sleeps.
// Sets its process name (PR_SET_NAME), so the test can find it.
const char* const kStays =
    "import ctypes, time, mycojobs\n"
    "ctypes.CDLL(None).prctl(15, b'it-stays')\n"
    "print('begin', mycojobs.job.epoch, time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)\n"
    "time.sleep(600 if mycojobs.job.deliveries == 1 else 0)\n"
    "print('end', mycojobs.job.epoch)\n";

struct Begin {
  std::uint64_t epoch = 0;
  double at_s = 0;
};
std::vector<Begin> parse_begins(const std::string& log) {
  std::vector<Begin> begins;
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    Begin begin;
    if (words >> word >> begin.epoch >> begin.at_s && word == "begin") begins.push_back(begin);
  }
  return begins;
}

class Recovery : public ::testing::Test {
 protected:
  TempDir folder_;
  RedisServer redis_{folder_};
  PlainJob job_{.script = kStays, .timeout = "1000"};

  bool has_begun() {
    return eventually([&] { return read_job_log(folder_, redis_, job_).starts_with("begin"); });
  }
  // The second delivery began after the process of the first had ended, with a higher epoch, and it ended.
  void expect_two_deliveries_one_after_the_other(Watch& first) {
    EXPECT_EQ(field(redis_, job_, "deliveries"), "2");
    EXPECT_EQ(field(redis_, job_, "attempt"), "1");
    const std::string log = read_job_log(folder_, redis_, job_);
    const auto begins = parse_begins(log);
    ASSERT_EQ(begins.size(), 2U) << log;
    EXPECT_GT(begins[1].epoch, begins[0].epoch);
    EXPECT_TRUE(log.ends_with("end " + std::to_string(begins[1].epoch) + "\n")) << log;
    EXPECT_GT(first.ended_at(), begins[0].at_s);
    EXPECT_LT(first.ended_at(), begins[1].at_s);
  }
};

TEST_F(Recovery, RestartedAgentRunsItsJobAtOnce) {
  Process one = start_here(folder_, redis_, {"--lease", "120s"});
  submit(redis_, job_);
  ASSERT_TRUE(has_begun()) << one.err();
  const auto below = descendants(one.pid());
  ASSERT_GE(below.size(), 5U);  // guardian, launcher, zygote, init, job
  Watch job(job_among(below));
  one.signal(SIGKILL);
  // the processes of the first agent may not even be reaped yet
  Process two = start_here(folder_, redis_, {"--lease", "120s"});
  one.wait();
  EXPECT_EQ(wait_for_status(redis_, job_, Seconds(30)), "finished") << two.err();
  expect_two_deliveries_one_after_the_other(job);
  EXPECT_NE(two.err().find("has ended with all its processes"), std::string::npos) << two.err();
}

TEST_F(Recovery, RestartedAgentWithKilledHelpersRunsItsJobAtOnce) {
  Process one = start_here(folder_, redis_, {"--lease", "120s"});
  submit(redis_, job_);
  ASSERT_TRUE(has_begun()) << one.err();
  const auto below = descendants(one.pid());
  const auto helpers = undertakers(below);
  ASSERT_EQ(helpers.size(), 2U);
  Watch job(job_among(below));
  for (pid_t pid : helpers) ::kill(pid, SIGSTOP);  // stopped, so they reap no process
  one.signal(SIGKILL);
  for (pid_t pid : helpers) ::kill(pid, SIGKILL);
  one.wait();
  Process two = start_here(folder_, redis_, {"--lease", "120s"});
  EXPECT_EQ(wait_for_status(redis_, job_, Seconds(30)), "finished") << two.err();
  expect_two_deliveries_one_after_the_other(job);
}

TEST_F(Recovery, SurvivingHelperPreventsAnEarlyReturnOfItsJobs) {
  Process one = start_here(folder_, redis_, {"--lease", "6s"});
  submit(redis_, job_);
  ASSERT_TRUE(has_begun()) << one.err();
  const auto below = descendants(one.pid());
  const auto helpers = undertakers(below);
  ASSERT_EQ(helpers.size(), 2U);
  Watch job(job_among(below));
  for (pid_t pid : helpers) ::kill(pid, SIGSTOP);
  one.signal(SIGKILL);
  one.wait();
  Process two = start_here(folder_, redis_, {"--lease", "6s"});
  EXPECT_EQ(wait_for_status(redis_, job_, Seconds(40)), "finished") << two.err();
  expect_two_deliveries_one_after_the_other(job);  // its own init ended it at the fence
  EXPECT_EQ(two.err().find("has ended with all its processes"), std::string::npos) << two.err();
  for (pid_t pid : helpers) ::kill(pid, SIGKILL);
}

TEST_F(Recovery, SilentRunnerIsReportedLostByAnother) {
  Process one = start_here(folder_, redis_, {"--lease", "1s"});
  Process two = start_agent(folder_, redis_, 2, {"--lease", "1s"});
  ASSERT_TRUE(wait_until_registered(redis_, 1) && wait_until_registered(redis_, 2)) << one.err() << two.err();
  one.signal(SIGKILL);
  EXPECT_TRUE(eventually([&] { return redis_.cli(1, {"HGET", "runner:1", "detail"}) == "lost"; })) << two.err();
  EXPECT_EQ(redis_.cli(1, {"HGET", "runner:2", "detail"}), "running");
  Process again = start_here(folder_, redis_, {"--lease", "1s"});
  EXPECT_TRUE(wait_until_registered(redis_, 1)) << again.err();
  again.signal(SIGTERM);
  EXPECT_EQ(again.wait().code, 0);
  EXPECT_EQ(redis_.cli(1, {"HGET", "runner:1", "detail"}), "stopped");
}

TEST_F(Recovery, RunWithoutAFenceContinuesDuringARedisOutage) {
  Process agent = start_here(folder_, redis_, {"--lease", "1s", "--on-lease-lost", "continue"});
  job_.script = "import time\nprint('begin', flush=True)\ntime.sleep(4)\nresult['done'] = 'yes'";
  submit(redis_, job_);
  ASSERT_TRUE(has_begun()) << agent.err();
  redis_.kill();
  eventually([] { return false; }, Seconds(2.5));  // more than two leases
  redis_.start();
  EXPECT_EQ(wait_for_status(redis_, job_), "finished") << agent.err();
  EXPECT_EQ(field(redis_, job_, "deliveries"), "1");
}

TEST(Waiting, DelayedJobRunsAtItsTime) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_here(folder, redis);
  ASSERT_TRUE(wait_until_registered(redis, 1)) << agent.err();
  const std::uint64_t due = redis_ms(redis) + 2500;
  PlainJob job{.extra_fields = {"run_at_ms", std::to_string(due)}};
  submit(redis, job);
  EXPECT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  EXPECT_GE(moment(redis, job, "started_ms"), due);
}

TEST(Waiting, FailureIsRetriedAfterGrowingPauses) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_here(folder, redis, {"--retry-min", "400ms"});
  PlainJob job{.script =
                   "import mycojobs\nif mycojobs.job.attempt < 3: raise ValueError('not yet')\nresult['at'] = "
                   "mycojobs.job.attempt",
               .extra_fields = {"retries", "2"}};
  const std::uint64_t before = redis_ms(redis);
  submit(redis, job);
  ASSERT_TRUE(eventually([&] { return field(redis, job, "detail") == "retry_wait"; })) << agent.err();
  EXPECT_EQ(wait_for_status(redis, job), "finished") << agent.err();
  EXPECT_EQ(field(redis, job, "attempt"), "3");
  EXPECT_GE(moment(redis, job, "started_ms"), before + 600) << "half of 400 ms and of 800 ms at least";
  EXPECT_EQ(field(redis, job, "result"), R"({"at":"3"})");
}

TEST(Waiting, LastFailureEndsTheJob) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_here(folder, redis, {"--retry-min", "10ms", "--retry-max", "20ms"});
  PlainJob job{.script = "raise ValueError('never')", .extra_fields = {"retries", "1"}};
  submit(redis, job);
  EXPECT_EQ(wait_for_status(redis, job), "error") << agent.err();
  EXPECT_EQ(field(redis, job, "detail"), "exception");
  EXPECT_EQ(field(redis, job, "attempt"), "2");
}

TEST(Waiting, DependentsRunInOrderOfDependency) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_here(folder, redis);
  // The dependencies are 1 -> 2, 3 -> 4 -> 5. The last jobs are written first, some of them before their dependencies
  // exist.
  const std::pair<int, const char*> jobs[] = {{5, "[4]"}, {4, "[2,3]"}, {2, "[1]"}, {3, "[1]"}, {1, "[]"}};
  for (const auto& [id, on] : jobs) {
    submit(redis, {.id = id, .script = "import time\ntime.sleep(0.1)", .extra_fields = {"dependends", on}});
  }
  for (int id = 1; id <= 5; ++id) EXPECT_EQ(wait_for_status(redis, {.id = id}), "finished") << id << agent.err();
  const std::pair<int, int> edges[] = {{1, 2}, {1, 3}, {2, 4}, {3, 4}, {4, 5}};
  for (const auto& [before, after] : edges) {
    EXPECT_LE(moment(redis, {.id = before}, "ended_ms"), moment(redis, {.id = after}, "started_ms"))
        << before << " before " << after;
  }
}

TEST(Waiting, DependentsOfAFailureFail) {
  TempDir folder;
  RedisServer redis(folder);
  Process agent = start_here(folder, redis);
  submit(redis, {.id = 3, .extra_fields = {"dependends", "[2]"}});
  submit(redis, {.id = 2, .extra_fields = {"dependends", "[1]"}});
  submit(redis, {.id = 1, .script = "raise SystemExit(3)"});
  for (int id = 2; id <= 3; ++id) {
    EXPECT_EQ(wait_for_status(redis, {.id = id}), "error") << agent.err();
    EXPECT_EQ(field(redis, {.id = id}, "detail"), "dependency_failed");
  }
}

TEST(Waiting, JobWaitsForItsPrerequisites) {
  TempDir folder;
  RedisServer redis(folder);
  const std::string data = folder.path().string() + "/data/";
  std::filesystem::create_directories(data);
  Process agent = start_here(folder, redis, {"--prerequisites-allow", "file:" + data});
  const auto waiting = [](int id, const std::string& conditions) {
    return PlainJob{.id = id, .extra_fields = {"prerequisites", conditions}};
  };
  const PlainJob timed = waiting(1, R"(["wait:1s"])");
  const PlainJob keyed = waiting(2, R"(["redis:go"])");
  const PlainJob filed = waiting(3, R"(["file:)" + data + R"(flag"])");
  const PlainJob forbidden = waiting(4, R"(["file:)" + data + R"(../secret"])");
  const PlainJob approved = waiting(5, R"(["approval:legal"])");
  for (const PlainJob& job : {timed, keyed, filed, forbidden, approved}) submit(redis, job);
  for (const PlainJob& job : {keyed, filed, approved}) {
    EXPECT_TRUE(eventually([&] { return field(redis, job, "status") == "waiting_for_prerequisites"; })) << agent.err();
  }
  EXPECT_EQ(wait_for_status(redis, timed), "finished") << agent.err();
  EXPECT_EQ(wait_for_status(redis, forbidden), "error") << agent.err();
  EXPECT_EQ(field(redis, forbidden, "detail"), "prerequisite");
  EXPECT_NE(field(redis, forbidden, "error").find("prerequisites.allow"), std::string::npos);
  redis.cli(1, {"SET", "go", "1"});
  std::ofstream(data + "flag") << "";
  EXPECT_EQ(wait_for_status(redis, keyed), "finished") << agent.err();
  EXPECT_EQ(wait_for_status(redis, filed), "finished") << agent.err();
  EXPECT_EQ(field(redis, approved, "status"), "waiting_for_prerequisites") << "nobody here may approve it";
}

TEST(Waiting, OptionThatAllowsNothingIsRejectedAtTheStart) {
  TempDir folder;
  RedisServer redis(folder);
  const ProcessResult rejected = start_here(folder, redis, {"--prerequisites-allow", "/data/"}).wait();
  EXPECT_EQ(rejected.code, 65);
  EXPECT_NE(rejected.err.find("prerequisites.allow"), std::string::npos) << rejected.err;
}

}  // namespace
}  // namespace mycojobs::test
