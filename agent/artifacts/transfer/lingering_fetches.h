// Keeps fetches running for a while after their last reader has left. A client whose connection was lost then finds the
// bytes that have arrived in the meantime, instead of a new fetch from the first byte. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace mycojobs {

class LingeringFetches {
 public:
  explicit LingeringFetches(std::chrono::milliseconds linger) : linger_(linger) {}
  ~LingeringFetches();  // releases all fetches
  LingeringFetches(const LingeringFetches&) = delete;
  LingeringFetches& operator=(const LingeringFetches&) = delete;

  // Holds a reference to the fetch for the time of the constructor. A repeated call begins the time again. Releases the
  // fetch at once if no thread can be created.
  void keep(std::shared_ptr<void> fetch);
  // Releases all fetches, in favour of others. Returns whether there were any.
  bool release_all();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  void run();

  const std::chrono::milliseconds linger_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::map<std::shared_ptr<void>, TimePoint> fetches_;  // with the time of the release
  bool is_stopping_ = false;
  std::thread thread_;  // started by the first call of keep()
};

}  // namespace mycojobs
