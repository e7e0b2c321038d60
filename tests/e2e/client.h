// Runs commands of `mycojobs` against a Redis server, one process per command, as an operator does. Not thread-safe.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "e2e/world.h"

namespace mycojobs::test {

class Client {
 public:
  Client(const TempDir& folder, const RedisServer& redis) : folder_(folder), redis_(redis) {}

  std::vector<std::string> make_argv(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), program_path());
    arguments.insert(arguments.end(), {"--redis", redis_.url(), "--state-dir", folder_ / "client"});
    return arguments;
  }
  // Runs the command to its end.
  ProcessResult operator()(std::vector<std::string> arguments, std::string input = "") const {
    return run(folder_, make_argv(std::move(arguments)), {}, std::move(input));
  }
  // Runs the command with both output streams piped to the shell command `reader`. The exit code is that of the
  // command, or 124 if the command still runs after a minute.
  ProcessResult run_piped(std::vector<std::string> arguments, const std::string& reader) const {
    std::vector<std::string> shell_argv{"bash", "-c", "timeout 60 \"$@\" 2>&1 | " + reader + "; exit ${PIPESTATUS[0]}",
                                        "bash"};
    arguments = make_argv(std::move(arguments));
    shell_argv.insert(shell_argv.end(), arguments.begin(), arguments.end());
    return run(folder_, std::move(shell_argv));
  }
  // Runs the command with --json and returns its parsed output. Output that is not JSON is a test failure.
  nlohmann::json run_json(std::vector<std::string> arguments) const {
    arguments.emplace_back("--json");
    const ProcessResult result = (*this)(std::move(arguments));
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
  std::string read_field(const std::string& job, const std::string& name) const {
    return redis_.cli(1, {"HGET", job, name});
  }
  bool wait_for_value(const std::string& job, const std::string& name, const std::string& value,
                      Seconds limit = Seconds(60)) const {
    return eventually([&] { return read_field(job, name) == value; }, limit);
  }
  std::string read_cause(const std::string& job) const { return run_json({"job", "explain", job}).value("cause", ""); }
  // Waits until `job explain` names this cause; returns false after a time-out.
  bool wait_for_cause(const std::string& job, const std::string& expected_cause) const {
    return eventually([&] { return read_cause(job) == expected_cause; });
  }

 private:
  const TempDir& folder_;
  const RedisServer& redis_;
};

inline const std::string kSleepScript = "import time\nprint('up', flush=True)\ntime.sleep(600)";

// Base class of tests with a Redis server and commands of an operator.
class Operator : public ::testing::Test {
 protected:
  TempDir folder_;
  RedisServer redis_{folder_};
  Client mycojobs_{folder_, redis_};

  // Starts an agent with this runner id and waits until it is registered. An extra argument replaces a default.
  Process start_registered_agent(int runner, std::vector<std::string> extra_arguments = {}) {
    extra_arguments.insert(extra_arguments.begin(), {"--lease", "2s", "--grace", "1s", "--state-dir",
                                                     folder_ / ("agent" + std::to_string(runner))});
    Process agent = start_agent(folder_, redis_, runner, extra_arguments);
    EXPECT_TRUE(wait_until_registered(redis_, runner)) << agent.err();
    return agent;
  }
};

// Checks the exit code, and that the output or the error text contains `expected_text`.
inline void expect_result(const ProcessResult& result, int code, const std::string& expected_text) {
  EXPECT_EQ(result.code, code) << result.out << result.err;
  EXPECT_NE((result.out + result.err).find(expected_text), std::string::npos) << result.out << result.err;
}

}  // namespace mycojobs::test
