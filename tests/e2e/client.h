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
    words.insert(words.begin(), program_path());
    words.insert(words.end(), {"--redis", redis_.url(), "--state-dir", folder_ / "client"});
    return words;
  }
  ProcessResult operator()(std::vector<std::string> words, std::string input = "") const {
    return run(folder_, line(std::move(words)), {}, std::move(input));
  }
  // Runs the command with both output streams piped to the shell command `reader`. The exit code is that of the
  // command, or 124 if the command still runs after a minute.
  ProcessResult piped(std::vector<std::string> words, const std::string& reader) const {
    std::vector<std::string> shell{"bash", "-c", "timeout 60 \"$@\" 2>&1 | " + reader + "; exit ${PIPESTATUS[0]}",
                                   "bash"};
    words = line(std::move(words));
    shell.insert(shell.end(), words.begin(), words.end());
    return run(folder_, std::move(shell));
  }
  nlohmann::json json(std::vector<std::string> words) const {
    words.emplace_back("--json");
    const ProcessResult result = (*this)(std::move(words));
    auto parsed = nlohmann::json::parse(result.out, nullptr, false);
    EXPECT_FALSE(parsed.is_discarded()) << result.out << result.err;
    return parsed.is_discarded() ? nlohmann::json::object() : parsed;
  }
  // Submits a job and returns its key.
  std::string submit(const std::string& script, std::vector<std::string> extra_arguments = {}) const {
    extra_arguments.insert(extra_arguments.begin(), {"job", "submit", "-", "--type", "python"});
    ProcessResult result = (*this)(std::move(extra_arguments), script);
    EXPECT_EQ(result.code, 0) << result.err;
    if (result.out.ends_with('\n')) result.out.pop_back();
    return result.out;
  }
  std::string field(const std::string& job, const std::string& name) const {
    return redis_.cli(1, {"HGET", job, name});
  }
  bool wait_for_value(const std::string& job, const std::string& name, const std::string& value,
                      Seconds limit = Seconds(60)) const {
    return eventually([&] { return field(job, name) == value; }, limit);
  }
  std::string cause(const std::string& job) const { return json({"job", "explain", job}).value("cause", ""); }
  // Waits until `job explain` names this cause; returns false after a time-out.
  bool wait_for_cause(const std::string& job, const std::string& expected_cause) const {
    return eventually([&] { return cause(job) == expected_cause; });
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
  Process agent(int runner, std::vector<std::string> extra_arguments = {}) {
    extra_arguments.insert(extra_arguments.end(), {"--lease", "2s", "--grace", "1s", "--state-dir",
                                                   folder_ / ("agent" + std::to_string(runner))});
    Process started = start_agent(folder_, redis_, runner, extra_arguments);
    EXPECT_TRUE(wait_until_registered(redis_, runner)) << started.err();
    return started;
  }
};

inline void expect_says(const ProcessResult& result, int code, const std::string& words) {
  EXPECT_EQ(result.code, code) << result.out << result.err;
  EXPECT_NE((result.out + result.err).find(words), std::string::npos) << result.out << result.err;
}

}  // namespace mycojobs::test
