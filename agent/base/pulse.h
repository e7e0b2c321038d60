// Whether a thread comes round: it counts, somebody else looks.
#pragma once

#include <atomic>
#include <cstdint>

namespace mycojobs {

class Pulse {
 public:
  void beat() { count_.fetch_add(1, std::memory_order_relaxed); }  // the thread that is watched
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace mycojobs
