// The real Redis of the tests and the imitation of it, side by side: the same commands, the replies compared to the
// byte.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench.h"
#include "support/redis/memory_redis.h"

struct redisContext;

namespace mycojobs {

// How the parts of a list are to be compared.
enum class Order { kept, any, any_pairs };

struct Sent {
  std::vector<std::string> words;
  Order order = Order::kept;
  bool inner_list = false;  // the order is that of the last part: SCAN
};

class RedisPair {
 public:
  RedisPair();  // both are empty
  ~RedisPair();
  RedisPair(const RedisPair&) = delete;
  RedisPair& operator=(const RedisPair&) = delete;

  // Fails the test for each reply that differs; at most a few are shown, `what` in front. Returns the imitation's
  // replies as they are shown.
  std::vector<std::string> compare(const std::vector<Sent>& commands, const std::string& what);
  std::vector<std::string> compare(const std::vector<std::string>& words) { return compare({Sent{words}}, ""); }
  std::string imitated(const std::vector<std::string>& words);  // as it is shown
  void set_now(std::uint64_t ms) { clock_.now = ms; }           // a millisecond more each time it is looked at

 private:
  struct TickingClock final : Clock {
    mutable std::uint64_t now = 0;
    std::uint64_t unix_ms() const override { return now++; }
    std::uint64_t boot_ms() const override { return 0; }
  };

  TickingClock clock_;
  memory::MemoryRedis memory_{clock_, [](std::string_view, std::string_view) { return 0; }};
  std::unique_ptr<redisContext, void (*)(redisContext*)> redis_;
  int shown_ = 0;
};

}  // namespace mycojobs
