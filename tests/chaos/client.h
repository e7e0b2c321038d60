// A client that knows Redis and the names of fields, and the command line: nothing of the program's insides.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chaos/jobs.h"
#include "e2e/world.h"
#include "store/redis_connection.h"

namespace mycojobs::test {

// One connection a context, each call with a deadline.
class PlainRedis {
 public:
  static constexpr std::uint32_t kShortMs = 250;    // where the server may be dead or stopped
  static constexpr std::uint32_t kLongMs = 20'000;  // where it must answer, on a busy machine too
  PlainRedis(std::string url, std::uint32_t patience_ms) : url_(std::move(url)), patience_ms_(patience_ms) {}
  PlainRedis(const RedisServer& redis, std::uint32_t patience_ms) : PlainRedis(redis.url(), patience_ms) {}
  // Nothing: no answer, or an error. It may have happened all the same.
  std::optional<Reply> command(int context, const std::vector<std::string>& words);

 private:
  std::string url_;
  std::uint32_t patience_ms_;
  std::map<int, std::unique_ptr<RedisConnection>> connections_;
};

class Client {
 public:
  Client(const TempDir& folder, const RedisServer& redis)
      : folder_(folder), redis_(redis), plain_(redis, PlainRedis::kShortMs) {}

  // One try. A try that follows one whose outcome is unknown looks first and completes what is missing.
  void submit(PlannedJob&);
  // A request that may be repeated.
  void cancel(const PlannedJob&);
  // Is the record there? Nothing: no answer.
  std::optional<bool> knows(const PlannedJob&);
  PlainRedis& plain() { return plain_; }

 private:
  bool submit_at_once(const PlannedJob&);   // MULTI, EXEC
  bool submit_in_steps(const PlannedJob&);  // record and key, in this order or the other
  bool submit_by_cli(const PlannedJob&);
  bool submit_by_program(PlannedJob&);
  bool complete(const PlannedJob&);

  const TempDir& folder_;
  const RedisServer& redis_;
  PlainRedis plain_;
};

}  // namespace mycojobs::test
