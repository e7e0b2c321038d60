// Real Redis servers, agents and jobs for end-to-end tests. Each test has a folder of its own; clients use redis-cli.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "support/process.h"

namespace mycojobs::test {

std::string program_path();  // path of build/bin/mycojobs

// A Redis server on a unix socket in the folder of the test.
class RedisServer {
 public:
  explicit RedisServer(const TempDir&, std::vector<std::string> extra_options = {});
  std::string url() const { return "unix://" + socket_; }
  // Runs `redis-cli -n database words...`. Returns its output without the last newline.
  std::string cli(int database, std::vector<std::string> words, std::string input = "") const;
  void kill();   // SIGKILL
  void start();  // restarts the server with the same files
  pid_t pid() const { return server_.back().pid(); }

 private:
  const TempDir& folder_;
  std::string socket_;
  std::vector<std::string> extra_options_;
  std::vector<Process> server_;  // back() is the current process
};

// A job of a client that uses only redis-cli: submit() writes the record job:<caller>:<id> and pushes its key.
struct PlainJob {
  int caller = 12, id = 1, context = 1;
  std::string script = "pass", type = "python", timeout = "20";
  std::vector<std::string> extra_fields = {};  // names and values, alternating
  std::string key() const { return "job:" + std::to_string(caller) + ":" + std::to_string(id); }
};
void submit(const RedisServer&, const PlainJob&);

std::string read_field(const RedisServer&, const PlainJob&, const std::string& name);
bool has_ended(const RedisServer&, const PlainJob&);
// Waits for the end of the job and returns the field `status`, after a time-out the current one.
std::string wait_for_status(const RedisServer&, const PlainJob&, Seconds limit = Seconds(90));
// Returns the standard output of the job as `mycojobs job logs` prints it.
std::string read_job_log(const TempDir&, const RedisServer&, const PlainJob&);
// Returns the number of bytes that the lines of a log name as dropped.
std::uint64_t sum_output_gaps(const std::string& text);

Process start_agent(const TempDir&, const RedisServer&, int runner, std::vector<std::string> extra_options = {});
// Waits until the agent has registered runner:<id>. Returns false after a time-out.
bool wait_until_registered(const RedisServer&, int runner, int context = 1);

}  // namespace mycojobs::test
