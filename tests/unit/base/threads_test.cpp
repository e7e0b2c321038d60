// A host can run out of threads. One helper creates all threads of the program and reports a failure as an error.
#include "base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "base/loop_thread.h"
#include "support/build_paths.h"

namespace mycojobs {
namespace {

std::vector<std::string> find_thread_creations(const std::filesystem::path& file) {
  static const std::regex kThreadCreation(R"(std::thread\s*[({]|std::jthread|std::async\s*\(|pthread_create\s*\()");
  std::vector<std::string> lines;
  std::ifstream source(file);
  for (std::string line; std::getline(source, line);) {
    const std::string code = line.substr(0, line.find("//"));
    if (std::regex_search(code, kThreadCreation)) lines.push_back(file.string() + ": " + line);
  }
  return lines;
}

TEST(Threads, AreCreatedOnlyByTheHelper) {
  const std::filesystem::path source = mj::test::source_folder();
  for (const char* folder : {"agent", "sandbox", "executors", "include"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source / folder)) {
      const auto name = entry.path().filename().string();
      const bool is_source = name.ends_with(".cpp") || name.ends_with(".h");
      if (!is_source || name == "thread.h" || name == "thread.cpp") continue;
      for (const std::string& line : find_thread_creations(entry.path())) ADD_FAILURE() << line;
    }
  }
}

TEST(Threads, StartThreadRunsItsBodyUnderItsName) {
  std::string name;
  auto thread = start_thread(
      [&name] {
        char thread_name[16] = "";
        ::pthread_getname_np(::pthread_self(), thread_name, sizeof thread_name);
        name = thread_name;
      },
      "a name of more than 15 bytes");
  ASSERT_TRUE(thread) << thread.error().message;
  thread->join();
  EXPECT_EQ(name, "a name of more ");
}

TEST(Threads, ShortageIsAnErrorThatNamesTheLimits) {
  const SimulatedThreadShortage shortage;
  const auto thread = start_thread([] {});
  ASSERT_FALSE(thread);
  EXPECT_EQ(thread.error().code, Code::unavailable);
  EXPECT_NE(thread.error().message.find("out of processes or threads"), std::string::npos) << thread.error().message;
  EXPECT_NE(thread.error().message.find("TasksMax="), std::string::npos) << thread.error().message;
}

TEST(Threads, BackgroundWorkHasItsResult) {
  auto result = run_in_parallel([] { return 7; });
  EXPECT_EQ(result.get(), 7);
}

class CountingLoop : public TimedLoop {
 public:
  std::uint64_t run_once() {
    ++iterations;
    return 1;
  }
  std::atomic<int> iterations{0};
};

TEST(Threads, LoopWithoutAThreadCanStartLater) {
  CountingLoop loop;
  {
    const SimulatedThreadShortage shortage;
    LoopThread<CountingLoop> thread(loop);
    EXPECT_FALSE(thread.started());
  }
  EXPECT_FALSE(loop.stopped()) << "the loop has not started";
  LoopThread<CountingLoop> thread(loop);
  ASSERT_TRUE(thread.started());
  while (loop.iterations == 0) std::this_thread::yield();
}

}  // namespace
}  // namespace mycojobs
