// A client that uses only Redis, the names of fields and the command line, and no internals of the program.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chaos/jobs.h"
#include "e2e/world.h"
#include "store/redis/redis_connection.h"

namespace mycojobs::test {

// A Redis client with one connection per context and a time-out for each call.
class PlainRedis {
 public:
  static constexpr std::uint32_t kShortTimeoutMs = 250;    // for a server that may be dead or stopped
  static constexpr std::uint32_t kLongTimeoutMs = 20'000;  // for a server that must answer, even on a busy machine
  PlainRedis(std::string url, std::uint32_t timeout_ms) : url_(std::move(url)), timeout_ms_(timeout_ms) {}
  PlainRedis(const RedisServer& redis, std::uint32_t timeout_ms) : PlainRedis(redis.url(), timeout_ms) {}
  // Returns nothing on an error or without a reply. The command may have been executed nevertheless.
  std::optional<Reply> command(int context, const std::vector<std::string>& words);

 private:
  std::string url_;
  std::uint32_t timeout_ms_;
  std::map<int, std::unique_ptr<RedisConnection>> connections_;
};

class Client {
 public:
  Client(const TempDir& folder, const RedisServer& redis)
      : folder_(folder), redis_(redis), plain_redis_(redis, PlainRedis::kShortTimeoutMs) {}

  // Tries to submit the job once. After a try with an unknown result, checks the store and completes missing steps.
  void submit(PlannedJob&);
  // The request can be repeated.
  void cancel(const PlannedJob&);
  // Reports whether the record exists, or nothing if Redis does not answer.
  std::optional<bool> has_record(const PlannedJob&);
  PlainRedis& plain_redis() { return plain_redis_; }

 private:
  bool submit_in_transaction(const PlannedJob&);  // with MULTI and EXEC
  bool submit_in_steps(const PlannedJob&);        // record and key in either order
  bool submit_by_cli(const PlannedJob&);
  bool submit_by_program(PlannedJob&);
  bool complete_submission(const PlannedJob&);

  const TempDir& folder_;
  const RedisServer& redis_;
  PlainRedis plain_redis_;
};

}  // namespace mycojobs::test
