// `mycojobs` as process 1 of a pid namespace, as in a container: it reaps whoever is orphaned there, and stops when
// told.
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "e2e/world.h"

namespace mycojobs::test {
namespace {

// Orphans: their parent ends, process 1 has them all, then they end. Says what it has seen.
constexpr const char* kOrphans = R"(
import os, time
def children():
    with open('/proc/1/task/1/children') as file: return len(file.read().split())
def wait_for(holds):
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end: time.sleep(0.05)
own = children()
read, write = os.pipe()
parent = os.fork()
if parent == 0:
    for _ in range(100):
        if os.fork() == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(7)
    os._exit(0)
os.waitpid(parent, 0)
wait_for(lambda: children() == own + 100)
orphans = children() - own
os.close(write)
wait_for(lambda: children() == own)
print(orphans, 'orphans,', children() - own, 'left')
)";

// The process that unshare has started, by its id here.
pid_t child_of(pid_t pid) {
  pid_t child = -1;
  eventually([&] {
    const std::string id = std::to_string(pid);
    return static_cast<bool>(std::ifstream("/proc/" + id + "/task/" + id + "/children") >> child);
  });
  return child;
}

class FirstProcess : public ::testing::Test {
 protected:
  FirstProcess() : redis_(folder_), unshare_(start()), first_(child_of(unshare_.pid())) {
    EXPECT_TRUE(eventually([&] { return unshare_.err().find("coordinator of") != std::string::npos; }))
        << unshare_.err();
  }
  // An ordinary user needs a user namespace around it.
  static std::vector<std::string> as_user(const std::vector<std::string>& words) {
    return ::geteuid() == 0 ? std::vector<std::string>{} : words;
  }
  Process start() {
    std::vector<std::string> argv{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"};
    for (const auto& word : as_user({"--user", "--map-current-user"})) argv.push_back(word);
    for (const auto& word : {program(), std::string("coordinator"), std::string("--redis"), redis_.url(),
                             std::string("--api-listen"), std::string(), std::string("--state-dir"), folder_ / "state"})
      argv.push_back(word);
    return Process(folder_, argv);
  }
  Finished inside(const std::vector<std::string>& words) {
    std::vector<std::string> argv{"nsenter", "--target", std::to_string(first_), "--pid", "--mount"};
    for (const auto& word : as_user({"--user", "--preserve-credentials"})) argv.push_back(word);
    argv.insert(argv.end(), words.begin(), words.end());
    return run(folder_, argv);
  }

  const TempDir folder_;
  RedisServer redis_;
  Process unshare_;
  pid_t first_;
};

TEST_F(FirstProcess, ReapsOrphansAndDrainsWhenItIsTold) {
  const Finished orphans = inside({"python3", "-c", kOrphans});
  EXPECT_EQ(orphans.out, "100 orphans, 0 left\n") << orphans.err;
  ::kill(first_, SIGTERM);
  const Finished end = unshare_.wait();
  EXPECT_EQ(end.code, 0) << end.err;
}

TEST_F(FirstProcess, EndsAsItsProgramHasEnded) {
  const pid_t program = child_of(first_);
  ASSERT_EQ(::kill(program, SIGKILL), 0);
  EXPECT_EQ(unshare_.wait().code, 128 + SIGKILL);
}

}  // namespace
}  // namespace mycojobs::test
