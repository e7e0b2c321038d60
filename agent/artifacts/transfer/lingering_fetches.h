// Keeps fetches running for a while after their last reader has left. A client whose connection was lost then finds the
// bytes that have arrived in the meantime, instead of a new fetch from the first byte. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "model/records.h"

namespace mycojobs {

class LingeringFetches {
 public:
  explicit LingeringFetches(std::chrono::milliseconds linger) : linger_(linger) {}
  ~LingeringFetches();  // releases all fetches
  LingeringFetches(const LingeringFetches&) = delete;
  LingeringFetches& operator=(const LingeringFetches&) = delete;

  // Holds a reference to the fetch of an actor for the time of the constructor. A repeated call begins the time again.
  // Releases the fetch at once if no thread can be created.
  void keep(Id actor, std::shared_ptr<void> fetch);
  // Releases all fetches, in favour of others. Returns whether there were any.
  bool release_all();
  bool release_all_of(Id actor);

 private:
  struct Entry {
    Id actor = 0;
    std::chrono::steady_clock::time_point end;  // the time of the release
  };
  using Fetches = std::map<std::shared_ptr<void>, Entry>;
  void run();

  const std::chrono::milliseconds linger_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  Fetches fetches_;
  bool is_stopping_ = false;
  std::thread thread_;  // started by the first call of keep()
};

}  // namespace mycojobs
