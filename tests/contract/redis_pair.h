// Sends the same commands to a real Redis and to its in-process imitation and compares the replies, which must be
// identical. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "store_contract.h"
#include "support/redis/memory_redis.h"

struct redisContext;

namespace mycojobs {

// Comparison of list replies: in order, in any order, or as name-value pairs in any order.
enum class ListOrder { exact, any, any_pairs };

struct PairCommand {
  std::vector<std::string> words;
  ListOrder order = ListOrder::exact;
  bool is_nested = false;  // `order` applies to the last element of the reply, as for SCAN
};

class RedisPair {
 public:
  RedisPair();  // starts with empty servers
  ~RedisPair();
  RedisPair(const RedisPair&) = delete;
  RedisPair& operator=(const RedisPair&) = delete;

  // Fails the test if replies differ; the failures start with `test_name` and list at most kMaxReportedDifferences
  // differences. Returns the imitation's replies as text.
  std::vector<std::string> compare(const std::vector<PairCommand>& commands, const std::string& test_name);
  std::vector<std::string> compare(const std::vector<std::string>& words) { return compare({PairCommand{words}}, ""); }
  std::string run_imitation(const std::vector<std::string>& words);  // returns its reply as text
  void set_now(std::uint64_t ms) { clock_.now = ms; }                // the clock advances by 1 ms at each read

 private:
  struct TickingClock final : Clock {
    mutable std::uint64_t now = 0;
    std::uint64_t unix_ms() const override { return now++; }
    std::uint64_t boot_ms() const override { return 0; }
  };

  TickingClock clock_;
  memory::MemoryRedis memory_{clock_, [](std::string_view, std::string_view) { return 0; }};
  std::unique_ptr<redisContext, void (*)(redisContext*)> redis_;
  int reported_ = 0;
};

}  // namespace mycojobs
