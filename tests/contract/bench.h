// Fixtures of the suite: a fresh store, and commands of plain clients.
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

class Bench {
 public:
  virtual ~Bench() = default;
  virtual StoreFactory& stores() = 0;
  // Sends one command as a plain client that does not know the rules of the store. Returns error replies, too.
  virtual Reply any(Id context, const std::vector<std::string>& words) = 0;

  Reply plain(Id context, const std::vector<std::string>& words);  // aborts on an error reply
  void push(Id context, const std::string& queue, const std::string& entry) { plain(context, {"LPUSH", queue, entry}); }
  void put_text(Id context, const std::string& key, const std::string& text) { plain(context, {"SET", key, text}); }
  void erase(Id context, const std::string& key) { plain(context, {"DEL", key}); }
  void publish(const std::string& topic, const std::string& text) { plain(1, {"PUBLISH", topic, text}); }
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

// The Redis server of this test program. It is started once and emptied for each test.
class TestRedis {
 public:
  static TestRedis& instance();
  std::string url() const;
  // Sends a command as a plain client in the database of the context. Returns error replies, too; aborts if there is no
  // reply. Thread-safe.
  Reply any(Id context, const std::vector<std::string>& words);
  Reply plain(Id context, const std::vector<std::string>& words);  // aborts on an error reply

 private:
  TestRedis();
  TempFolder folder_;
  std::unique_ptr<EmbeddedRedis> redis_;
  std::mutex mutex_;
  std::map<Id, RedisConnection> connections_;
};

std::unique_ptr<Bench> make_redis_bench();
std::unique_ptr<Bench> make_memory_bench();

// Repeats `condition` until it is true. Returns false after a minute.
[[nodiscard]] bool eventually(const std::function<bool()>& condition);

// A store with helper functions.
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
  void await_end_of_lease(const ClaimedJob&);
  bool expire(const std::string& job_key);
  std::string last_dead_reason();
  std::string last_anomaly();

  std::unique_ptr<Bench> bench_;
  std::unique_ptr<Store> store_;
};

std::string code_of(const Error&);
// Returns "ok" or the word of the error's code.
template <class T>
std::string outcome(const Result<T>& result) {
  return result ? "ok" : code_of(result.error());
}

#define MJ_BOTH_STORES(Suite) \
  INSTANTIATE_TEST_SUITE_P(Stores, Suite, testing::Values("redis", "memory"), [](const auto& i) { return i.param; })

}  // namespace mycojobs
