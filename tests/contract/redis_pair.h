// A real Redis and its imitation side by side: both get the same commands, and their replies must be identical.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench.h"
#include "support/redis/memory_redis.h"

struct redisContext;

namespace mycojobs {

// How the parts of a list are compared.
enum class Order { kept, any, any_pairs };

struct Sent {
  std::vector<std::string> words;
  Order order = Order::kept;
  bool inner_list = false;  // the order applies to the last part: SCAN
};

class RedisPair {
 public:
  RedisPair();  // starts with empty servers
  ~RedisPair();
  RedisPair(const RedisPair&) = delete;
  RedisPair& operator=(const RedisPair&) = delete;

  // Fails the test for each reply that differs and shows a few differences, prefixed with `what`. Returns the
  // imitation's replies as text.
  std::vector<std::string> compare(const std::vector<Sent>& commands, const std::string& what);
  std::vector<std::string> compare(const std::vector<std::string>& words) { return compare({Sent{words}}, ""); }
  std::string imitated(const std::vector<std::string>& words);  // reply of the imitation as text
  void set_now(std::uint64_t ms) { clock_.now = ms; }           // the clock advances by a millisecond at each read

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
