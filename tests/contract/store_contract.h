// Fixtures of the contract tests, which run against a real Redis and against its in-process imitation. Each test has an
// empty store and can send commands to the server without the store.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/redis/embedded_redis.h"
#include "store/redis/redis_connection.h"
#include "store/store.h"

namespace mycojobs {

// The server under the store: a real Redis or the imitation.
class StoreBackend {
 public:
  virtual ~StoreBackend() = default;
  virtual StoreFactory& stores() = 0;
  // Sends one command to the server without the store, as any Redis client can. Error replies are returned, too.
  virtual Reply send_unchecked(Id context, const std::vector<std::string>& words) = 0;

  Reply run_command(Id context, const std::vector<std::string>& words);  // aborts after an error reply
  void push(Id context, const std::string& queue, const std::string& entry) {
    run_command(context, {"LPUSH", queue, entry});
  }
  void put_text(Id context, const std::string& key, const std::string& text) {
    run_command(context, {"SET", key, text});
  }
  void erase(Id context, const std::string& key) { run_command(context, {"DEL", key}); }
  void publish(const std::string& topic, const std::string& text) { run_command(1, {"PUBLISH", topic, text}); }
};

// A temporary folder. The destructor removes it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Options that select the program of MYCOJOBS_TEST_REDIS_SERVER, if it is set: another version of Redis, or Valkey.
EmbeddedRedis::Options get_test_server_options();

// The Redis server of this test program. It is started once and emptied for each test.
class TestRedis {
 public:
  static TestRedis& instance();
  std::string url() const;
  // Sends a command to the database of the context. Error replies are returned, too. Aborts if there is no reply.
  // Thread-safe.
  Reply send_unchecked(Id context, const std::vector<std::string>& words);
  Reply run_command(Id context, const std::vector<std::string>& words);  // aborts after an error reply

 private:
  TestRedis();
  TempFolder folder_;
  std::unique_ptr<EmbeddedRedis> redis_;
  std::mutex mutex_;
  std::map<Id, RedisConnection> connections_;
};

std::unique_ptr<StoreBackend> make_redis_backend();
std::unique_ptr<StoreBackend> make_memory_backend();

// Repeats `condition` until it is true. Returns false after a minute.
[[nodiscard]] bool eventually(const std::function<bool()>& condition);

// A fixture with an open store and shortcuts for jobs of caller 12 in context 1. The parameter is "redis" or "memory".
class StoreContract : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override;

  static Job job(Id id, std::string script = "print(1)");
  void submit(Id id) { ASSERT_TRUE(store_->submit(job(id)).has_value()); }
  ClaimRequest request(std::uint32_t max_jobs = 1, std::uint32_t lease_ms = 60000);
  std::vector<ClaimedJob> claim(std::uint32_t max_jobs = 1, std::uint32_t lease_ms = 60000);
  ClaimedJob claim_one(std::uint32_t lease_ms = 60000);
  Result<void> report(Report);
  Result<void> end(const ClaimRef&, JobEnd);
  static JobEnd finished(TextMap result = {{"answer", "42"}});
  std::string field(const std::string& key, const std::string& name);
  void wait_for_lease_expiry(const ClaimedJob&);
  bool expire(const std::string& job_key);  // false if the job has no lease
  std::string last_dead_reason();
  std::string last_anomaly();

  std::unique_ptr<StoreBackend> backend_;
  std::unique_ptr<Store> store_;
};

std::string error_code_name(const Error&);
// Returns "ok" or the word of the error's code.
template <class T>
std::string outcome(const Result<T>& result) {
  return result ? "ok" : error_code_name(result.error());
}

#define MJ_BOTH_STORES(Suite) \
  INSTANTIATE_TEST_SUITE_P(Stores, Suite, testing::Values("redis", "memory"), [](const auto& i) { return i.param; })

}  // namespace mycojobs
