// The program as an operator uses it with a Redis: one command at a time.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "e2e/world.h"

namespace mycojobs::test {

class Client {
 public:
  Client(const TempDir& folder, const RedisServer& redis) : folder_(folder), redis_(redis) {}

  std::vector<std::string> line(std::vector<std::string> words) const {
    words.insert(words.begin(), program());
    words.insert(words.end(), {"--redis", redis_.url(), "--state-dir", folder_ / "client"});
    return words;
  }
  Finished operator()(std::vector<std::string> words, std::string input = "") const {
    return run(folder_, line(std::move(words)), {}, std::move(input));
  }
  // Runs the command with both output streams piped to the shell command `reader`. The exit code is that of the
  // command, or 124 if the command still runs after a minute.
  Finished piped(std::vector<std::string> words, const std::string& reader) const {
    std::vector<std::string> shell{"bash", "-c", "timeout 60 \"$@\" 2>&1 | " + reader + "; exit ${PIPESTATUS[0]}",
                                   "bash"};
    words = line(std::move(words));
    shell.insert(shell.end(), words.begin(), words.end());
    return run(folder_, std::move(shell));
  }
  nlohmann::json json(std::vector<std::string> words) const {
    words.emplace_back("--json");
    const Finished done = (*this)(std::move(words));
    auto parsed = nlohmann::json::parse(done.out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << done.out << done.err;
    return parsed.is_discarded() ? nlohmann::json::object() : parsed;
  }
  // Submits a job and returns its key.
  std::string submit(const std::string& script, std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"job", "submit", "-", "--type", "python"});
    Finished done = (*this)(std::move(more), script);
    EXPECT_EQ(done.code, 0) << done.err;
    if (done.out.ends_with('\n')) done.out.pop_back();
    return done.out;
  }
  std::string field(const std::string& job, const std::string& name) const {
    return redis_.cli(1, {"HGET", job, name});
  }
  bool becomes(const std::string& job, const std::string& name, const std::string& value,
               Seconds limit = Seconds(60)) const {
    return eventually([&] { return field(job, name) == value; }, limit);
  }
  std::string cause(const std::string& job) const { return json({"job", "explain", job}).value("cause", ""); }
  // Waits until `job explain` names this cause; returns false after a time-out.
  bool explains(const std::string& job, const std::string& as) const {
    return eventually([&] { return cause(job) == as; });
  }

 private:
  const TempDir& folder_;
  const RedisServer& redis_;
};

inline const std::string kSleeps = "import time\nprint('up', flush=True)\ntime.sleep(600)";

// A test with a Redis and an operator.
class Operator : public ::testing::Test {
 protected:
  TempDir folder_;
  RedisServer redis_{folder_};
  Client mycojobs_{folder_, redis_};

  // Starts an agent with this runner id and waits until it is registered.
  Process agent(int runner, std::vector<std::string> more = {}) {
    more.insert(more.end(),
                {"--lease", "2s", "--grace", "1s", "--state-dir", folder_ / ("agent" + std::to_string(runner))});
    Process started = start_agent(folder_, redis_, runner, more);
    EXPECT_TRUE(is_up(redis_, runner)) << started.err();
    return started;
  }
};

inline void expect_says(const Finished& done, int code, const std::string& words) {
  EXPECT_EQ(done.code, code) << done.out << done.err;
  EXPECT_NE((done.out + done.err).find(words), std::string::npos) << done.out << done.err;
}

}  // namespace mycojobs::test
