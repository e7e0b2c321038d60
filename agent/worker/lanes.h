// Threads for what may have to wait for somebody outside: a plugin, a disk. Whoever drives jobs hands such work over,
// goes on, and hears of its end by an event.
//
//   post(lane, work) --> the lane's own thread, one piece after the other --> what the work itself posts to its owner
//
// A lane for each thing that may hang: one that does delays what is behind it in its lane, and nobody else. The queues
// are short: a job (in a slot, claimed ahead, or ending) has two pieces of work at most, one that goes on and its end.
// Of a job that was given back meanwhile an empty piece stays.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace mycojobs {

// Artifacts, as jobs leave them and as they are handed to others. Contexts have folders of their own, which may be
// mounts, and what one of them leaves is no matter of another's.
inline std::string disk_lane(std::uint64_t context) { return "disk " + std::to_string(context); }

class Lanes {
 public:
  using Work = std::function<void()>;

  Lanes() = default;
  ~Lanes() { stop(); }
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Of one thread, as stop(). The lane's thread is begun when it has something to do for the first time, and is named
  // after it (its first 15 bytes). The work may outlive nothing that is gone after stop().
  // Where no thread can be had the work waits for retry().
  void post(const std::string& lane, Work);
  // Starts the threads that could not be had before. False: some are missing still; call it again soon.
  bool retry();
  // Waits for what is being done. What has not begun is dropped, and so is what is posted from now on.
  void stop();

 private:
  struct Lane {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Work> waiting;
    bool stop = false;
    std::thread thread;
    void loop();
  };

  bool start(const std::string& name, Lane&);

  std::map<std::string, std::unique_ptr<Lane>> lanes_;
  bool stopped_ = false, is_short_ = false;  // of threads
};

}  // namespace mycojobs
