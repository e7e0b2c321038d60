// `mycojobs` as process 1 of a pid namespace, as in a container: it reaps orphans, and stops on a signal.
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

// Creates orphans in rounds: the parents exit, process 1 adopts the orphans, then the orphans exit. Prints the counts.
constexpr const char* kOrphans = R"(
import os, sys, time
rounds, count = map(int, sys.argv[1:])
seen = 0
def children():
    with open('/proc/1/task/1/children') as file: return len(file.read().split())
def wait_for(holds):
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end: time.sleep(0.01)
own = children()
for _ in range(rounds):
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        for _ in range(count):
            if os.fork() == 0:
                os.close(write)
                os.read(read, 1)
                os._exit(7)
        os._exit(0)
    os.close(read)
    os.waitpid(parent, 0)
    wait_for(lambda: children() == own + count)
    seen += children() - own
    os.close(write)
    wait_for(lambda: children() == own)
print(seen, 'orphans,', children() - own, 'left')
)";

// Returns the pid, in this namespace, of the process that unshare started.
pid_t find_child(pid_t pid) {
  pid_t child = -1;
  eventually([&] {
    const std::string id = std::to_string(pid);
    return static_cast<bool>(std::ifstream("/proc/" + id + "/task/" + id + "/children") >> child);
  });
  return child;
}

class FirstProcess : public ::testing::Test {
 protected:
  explicit FirstProcess(const std::vector<std::string>& words = {"coordinator", "--api-listen", ""})
      : redis_(folder_), unshare_(start(words)), first_process_(find_child(unshare_.pid())) {}
  void SetUp() override { wait_for("coordinator of"); }
  void wait_for(const std::string& text) {
    ASSERT_TRUE(eventually([&] { return unshare_.err().find(text) != std::string::npos; })) << unshare_.err();
  }
  // Returns `words` for an unprivileged user, which add a user namespace, and nothing for root.
  static std::vector<std::string> for_unprivileged_user(const std::vector<std::string>& words) {
    return ::geteuid() == 0 ? std::vector<std::string>{} : words;
  }
  Process start(const std::vector<std::string>& words) {
    std::vector<std::string> argv{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"};
    for (const auto& word : for_unprivileged_user({"--user", "--map-current-user"})) argv.push_back(word);
    argv.push_back(program_path());
    argv.insert(argv.end(), words.begin(), words.end());
    for (const auto& word : {std::string("--redis"), redis_.url(), std::string("--state-dir"), folder_ / "state"})
      argv.push_back(word);
    return Process(folder_, argv);
  }
  ProcessResult run_inside(const std::vector<std::string>& words) {
    std::vector<std::string> argv{"nsenter", "--target", std::to_string(first_process_), "--pid", "--mount"};
    for (const auto& word : for_unprivileged_user({"--user", "--preserve-credentials"})) argv.push_back(word);
    argv.insert(argv.end(), words.begin(), words.end());
    return run(folder_, argv);
  }

  const TempDir folder_;
  RedisServer redis_;
  Process unshare_;
  pid_t first_process_;
};

TEST_F(FirstProcess, ReapsOrphansAndDrainsOnRequest) {
  const ProcessResult orphan_result = run_inside({"python3", "-c", kOrphans, "1", "100"});
  EXPECT_EQ(orphan_result.out, "100 orphans, 0 left\n") << orphan_result.err;
  ::kill(first_process_, SIGTERM);
  const ProcessResult end_result = unshare_.wait();
  EXPECT_EQ(end_result.code, 0) << end_result.err;
}

TEST_F(FirstProcess, ExitsLikeItsProgram) {
  const pid_t program = find_child(first_process_);
  ASSERT_EQ(::kill(program, SIGKILL), 0);
  EXPECT_EQ(unshare_.wait().code, 128 + SIGKILL);
}

// The agent, with the health check of the container image.
class FirstProcessAgent : public FirstProcess {
 protected:
  FirstProcessAgent() : FirstProcess({"agent", "--runner", "20", "--slots", "2", "--health-listen", "127.0.0.1:0"}) {}
  void SetUp() override { wait_for("health at http://"); }
  // Returns the exit code of `mycojobs health`, run inside the namespace.
  int check_health() {
    const std::string log = unshare_.err();
    const auto begin = log.find("health at ") + 10;
    return run_inside({program_path(), "health", "--url", log.substr(begin, log.find('/', begin + 7) - begin)}).code;
  }
};

TEST_F(FirstProcessAgent, ReapsTenThousandOrphansAndStopsInTime) {
  ASSERT_TRUE(wait_until_registered(redis_, 20));
  EXPECT_TRUE(eventually([&] { return check_health() == 0; }));
  const ProcessResult orphan_result = run_inside({"python3", "-c", kOrphans, "20", "500"});
  EXPECT_EQ(orphan_result.out, "10000 orphans, 0 left\n") << orphan_result.err;
  const PlainJob job{.script = "import time; time.sleep(3); print('done')"};
  submit(redis_, job);
  ASSERT_TRUE(eventually([&] { return read_field(redis_, job, "status") == "started"; })) << unshare_.err();
  EXPECT_EQ(check_health(), 0);
  ::kill(first_process_, SIGTERM);
  const ProcessResult end_result = unshare_.wait(Seconds(60));
  EXPECT_EQ(end_result.code, 0) << end_result.err;
  EXPECT_NE(end_result.err.find("draining: 1 job to finish"), std::string::npos) << end_result.err;
  EXPECT_EQ(wait_for_status(redis_, job), "finished");
}

}  // namespace
}  // namespace mycojobs::test
