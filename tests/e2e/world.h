// Helpers with real Redis servers, agents and jobs. Each test has its own folder. Clients use redis-cli.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "support/process.h"

namespace mycojobs::test {

std::string program();  // path of build/bin/mycojobs

// A Redis server on a unix socket in the folder of the test.
class RedisServer {
 public:
  explicit RedisServer(const TempDir&, std::vector<std::string> more = {});
  std::string url() const { return "unix://" + socket_; }
  // Runs `redis-cli -n database words...`. Returns its output without the last newline.
  std::string cli(int database, std::vector<std::string> words, std::string input = "") const;
  void kill();   // SIGKILL
  void start();  // restarts the server with the same files
  pid_t pid() const { return server_.back().pid(); }

 private:
  const TempDir& folder_;
  std::string socket_;
  std::vector<std::string> more_;
  std::vector<Process> server_;
};

// A job that is submitted only with redis-cli: the client writes job:<caller>:<id> and pushes the key.
struct PlainJob {
  int caller = 12, id = 1, context = 1;
  std::string script = "pass", type = "python", timeout = "20";
  std::vector<std::string> more = {};  // additional fields and values
  std::string key() const { return "job:" + std::to_string(caller) + ":" + std::to_string(id); }
};
void submit(const RedisServer&, const PlainJob&);

std::string field(const RedisServer&, const PlainJob&, const std::string& name);
bool ended(const RedisServer&, const PlainJob&);
// Waits for the end of the job and returns its status word.
std::string status_at_end(const RedisServer&, const PlainJob&, Seconds limit = Seconds(90));
// Returns the standard output of the job as `mycojobs job logs` prints it.
std::string log_of(const TempDir&, const RedisServer&, const PlainJob&);

Process start_agent(const TempDir&, const RedisServer&, int runner, std::vector<std::string> more = {});
// Waits until runner:<id> is registered; returns false after a time-out.
bool is_up(const RedisServer&, int runner, int context = 1);

}  // namespace mycojobs::test
