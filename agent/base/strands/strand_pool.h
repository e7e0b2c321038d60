// Threads for work that can block on something outside of the process: a plugin, a disk or a pipe. The owner posts such
// work, continues, and receives the result as an event.
//
//   post(strand, work) --> queue of the strand --> a thread of the group of the strand --> event for the owner
//
// A strand executes its functions in order, one at a time. So a strand that hangs occupies one thread. Strands of
// different groups share no threads. A group is a disk (base/strands/mount_table.h) or a plugin. A group has a bounded
// number of threads, which are started on demand and end when they are idle. A thread that has executed a function for
// kHangingMs leaves room for another thread, so that strands that hang do not delay the other strands of their group.
//
// A thread has the name of its strand (first 15 bytes) while it executes a function.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace mycojobs {

// Thread-safe, except for the destructor.
class StrandPool {
 public:
  using Work = std::function<void()>;
  struct Strand {
    std::string name;   // unique within the pool
    std::string group;  // if it changes, the new group applies when the queue of the strand is empty
  };
  static constexpr std::size_t kMaxThreads = 8;          // threads of a group that do not hang
  static constexpr std::size_t kMaxHangingThreads = 32;  // hanging threads of a group
  static constexpr int kHangingMs = 1000;
  static constexpr int kMaxIdleMs = 10000;

  // max_idle_ms: a thread that was idle for this time ends.
  explicit StrandPool(std::size_t max_threads = kMaxThreads, int max_idle_ms = kMaxIdleMs);
  ~StrandPool() { stop(); }
  StrandPool(const StrandPool&) = delete;
  StrandPool& operator=(const StrandPool&) = delete;

  // Queues a function. Everything that the function uses must live until stop() returns. Returns false if the strand
  // needs a thread that cannot be created now; it waits for the next post() to the group or for
  // start_missing_threads().
  bool post(const Strand&, Work);
  // Creates threads for strands that wait for one, if the limits permit. Returns false if strands are still waiting;
  // the caller then tries again, for example after a second.
  bool start_missing_threads();
  // Waits for the functions that are running. Queued functions and functions that are posted later are dropped.
  void stop();
  // Like stop(), but does not wait. REQUIRES: the posted functions own everything that they use.
  void abandon();
  std::size_t thread_count() const;  // threads that have not ended

 private:
  class State;
  std::shared_ptr<State> state_;  // shared with the threads, which can outlive abandon()
};

}  // namespace mycojobs
