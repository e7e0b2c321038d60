// A gate that blocks threads until the test opens it, as a plugin or a disk that hangs would. The test must open the
// gate before it ends. Thread-safe.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace mycojobs::test {

class BlockingGate {
 public:
  ~BlockingGate() { EXPECT_TRUE(open_); }
  // Blocks until the gate is open.
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    opened_.wait(lock, [this] { return open_; });
    --waiting_;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }
  // Returns the number of threads blocked in pass().
  std::size_t waiting() {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  std::size_t waiting_ = 0;
  bool open_ = false;
};

}  // namespace mycojobs::test
