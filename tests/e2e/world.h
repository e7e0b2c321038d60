// Real Redis, real agents, real jobs, each test in a folder of its own; clients talk through redis-cli as a user would.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "support/process.h"

namespace mycojobs::test {

std::string program();  // build/bin/mycojobs

// A Redis server on a unix socket of the test's folder.
class RedisServer {
 public:
  explicit RedisServer(const TempDir&, std::vector<std::string> more = {});
  std::string url() const { return "unix://" + socket_; }
  // redis-cli -n database words...; what it prints, without the last newline.
  std::string cli(int database, std::vector<std::string> words, std::string input = "") const;
  void kill();   // SIGKILL
  void start();  // again, on the same files
  pid_t pid() const { return server_.back().pid(); }

 private:
  const TempDir& folder_;
  std::string socket_;
  std::vector<std::string> more_;
  std::vector<Process> server_;
};

// Writes job:<caller>:<id> and pushes it, with redis-cli alone.
struct PlainJob {
  int caller = 12, id = 1, context = 1;
  std::string script = "pass", type = "python", timeout = "20";
  std::vector<std::string> more = {};  // further field, value, ...
  std::string key() const { return "job:" + std::to_string(caller) + ":" + std::to_string(id); }
};
void submit(const RedisServer&, const PlainJob&);

std::string field(const RedisServer&, const PlainJob&, const std::string& name);
bool ended(const RedisServer&, const PlainJob&);
// Waits for the end; the status word.
std::string status_at_end(const RedisServer&, const PlainJob&, Seconds limit = Seconds(90));
// The job's log, as `mycojobs job logs` prints its standard output.
std::string log_of(const TempDir&, const RedisServer&, const PlainJob&);

Process start_agent(const TempDir&, const RedisServer&, int runner, std::vector<std::string> more = {});
// True once runner:<id> is registered.
bool is_up(const RedisServer&, int runner, int context = 1);

}  // namespace mycojobs::test
