// A liveness counter: the watched thread counts, and another thread reads the count.
#pragma once

#include <atomic>
#include <cstdint>

namespace mycojobs {

class LivenessCounter {
 public:
  void mark_progress() { count_.fetch_add(1, std::memory_order_relaxed); }  // called by the watched thread
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace mycojobs
