// A Redis server of a single test, with commands of another client.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <utility>

#include "contract/store_contract.h"
#include "store/redis/embedded_redis.h"
#include "store/redis/redis_stores.h"

namespace mycojobs {

inline RedisStoreConfig config_for(const std::string& url) {
  RedisStoreConfig config;
  config.default_url = url;
  return config;
}

inline Job simple_job(Id id, Id context = 1) {
  Job job;
  job.id = id;
  job.caller_id = 12;
  job.context_id = context;
  job.script = "print(1)";
  job.script_type = "python";
  return job;
}

// A server of a single test, which can be killed and restarted with its data.
class RedisServer : public testing::Test {
 protected:
  // Retries on a conflict: a child of a killed server may still be writing a file.
  void start(EmbeddedRedis::Options options = {}) {
    options.program = get_test_server_options().program;
    Error error;
    const bool started = eventually([&] {
      auto now = EmbeddedRedis::start(folder_.path(), options);
      if (now) redis_ = std::move(*now);
      if (!now) error = now.error();
      return now.has_value() || error.code != Code::conflict;
    });
    ASSERT_TRUE(started && redis_) << error.message;
  }
  void kill_server() {
    ASSERT_GT(redis_->pid(), 0);
    ::kill(redis_->pid(), SIGKILL);
    redis_.reset();
  }
  std::string url(const std::string& suffix = "") const { return EmbeddedRedis::url(folder_.path()) + suffix; }
  Store store() const { return Store(config_for(url())); }
  Result<Reply> command(const Arguments& arguments, Id database = 0) {
    RedisConnection::Options options;
    options.endpoint = parse_redis_url(url()).value();
    options.database = database;
    return RedisConnection(std::move(options)).command(arguments);
  }

  TempFolder folder_;
  std::unique_ptr<EmbeddedRedis> redis_;
};

}  // namespace mycojobs
