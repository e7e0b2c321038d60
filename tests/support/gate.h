// A gate that blocks threads until the test opens it. Simulates a hanging plugin or disk. The test must open the gate
// before the gate is destroyed. Thread-safe.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace mycojobs::test {

class BlockingGate {
 public:
  ~BlockingGate() { EXPECT_TRUE(is_open_); }
  // Blocks until the gate is open.
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_count_;
    opened_.wait(lock, [this] { return is_open_; });
    --waiting_count_;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }
  // Returns the number of threads blocked in pass().
  std::size_t waiting_count() {
    const std::lock_guard lock(mutex_);
    return waiting_count_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  std::size_t waiting_count_ = 0;
  bool is_open_ = false;
};

}  // namespace mycojobs::test
