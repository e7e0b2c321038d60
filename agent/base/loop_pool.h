// A bounded number of threads that run any number of loops. A loop has no thread of its own:
//
//   run_once() does the due work and returns the time in ms until the loop is due again
//   wake()     any thread: makes the loop due now, or after a delay at the latest
//   stop()     any thread: shortens an iteration and ends the loop; stopped() is true afterwards
//   ended()    optional: called once after the last iteration
//
// The due loops run in the order of their due times. Two iterations of one loop never overlap, but they may run on
// different threads. A test or a simulation calls run_once() directly, without a pool.
//
// Isolation: an iteration that blocks occupies a thread, so loops that may block on different servers or disks belong
// to different pools. If an iteration lasts longer than Limits::stuck_after, its thread is replaced by another one, up
// to Limits::max_replacements, so that the other loops of the pool continue.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/result.h"

namespace mycojobs {

class PooledLoop;

// Thread-safe.
class LoopPool {
 public:
  struct Limits {
    std::size_t max_threads = 4;
    std::size_t max_replacements = 4;
    std::chrono::milliseconds stuck_after{10'000};
  };
  // Starts no thread yet. The kernel truncates the name of the threads to 15 bytes.
  explicit LoopPool(std::string name) : LoopPool(std::move(name), Limits{}) {}
  LoopPool(std::string name, Limits limits) : name_(std::move(name)), limits_(limits) {}
  ~LoopPool();  // REQUIRES: all loops have ended.
  LoopPool(const LoopPool&) = delete;
  LoopPool& operator=(const LoopPool&) = delete;

  // Returns whether an iteration has ended since the latest call that returned true, or no loop has waited for a
  // thread. Call it periodically, always from the same thread.
  bool has_progressed();
  // Starts a thread if a loop is due and a thread is missing, because it could not be created before or because an
  // iteration is stuck. Call it about each second: if all threads are stuck, the pool itself does not notice it.
  void start_missing_thread();
  std::size_t thread_count() const;

 private:
  friend class PooledLoop;
  using Clock = std::chrono::steady_clock;
  using TimePoint = Clock::time_point;
  using Lock = std::unique_lock<std::mutex>;
  struct Worker {
    std::thread thread;
    TimePoint iteration_start = TimePoint::max();  // TimePoint::max(): no iteration is running
  };

  Result<void> add(PooledLoop&);
  void wake(PooledLoop&, std::chrono::milliseconds delay);
  void wait_for_end(PooledLoop&);
  void run_loops(Worker&);                 // body of a thread
  void run_iteration(Lock&, PooledLoop&);  // REQUIRES of this and the following functions: the lock is held.
  void wait_for_due_loop(Lock&, TimePoint first_due);
  void set_due(PooledLoop&, TimePoint);
  void notify_due_loop();  // makes an idle or a new thread wait for the next due time
  Result<void> add_thread();
  void add_missing_thread();  // adds a thread if no thread is idle and the limits allow another one
  std::size_t count_stuck_workers() const;

  const std::string name_;
  const Limits limits_;
  mutable std::mutex mutex_;
  std::condition_variable work_changed_, loop_ended_;
  std::set<std::pair<TimePoint, PooledLoop*>> waiting_loops_;  // sorted by the due time
  std::list<Worker> workers_;
  std::size_t idle_count_ = 0;
  TimePoint next_timeout_ = TimePoint::max();  // earliest time at which an idle thread wakes by itself
  TimePoint next_thread_attempt_{};            // no thread is created earlier, after an attempt that failed
  std::uint64_t ended_iterations_ = 0, checked_iterations_ = 0;
  bool is_stopping_ = false;
};

// Base class of the loops. The pool must outlive the loop.
class PooledLoop {
 public:
  PooledLoop(const PooledLoop&) = delete;
  PooledLoop& operator=(const PooledLoop&) = delete;
  virtual std::uint64_t run_once() = 0;
  virtual void ended() {}
  void stop() {  // any thread
    is_stopped_ = true;
    wake();
  }
  bool stopped() const { return is_stopped_; }
  // Returns the number of starts and ends of iterations: an odd number during an iteration. Thread-safe.
  std::uint64_t progress() const { return progress_; }

 protected:
  PooledLoop() = default;
  virtual ~PooledLoop() = default;  // REQUIRES: end_loop() was called, or begin_loop() was not.
  // The loop is due at once. Error `unavailable`: the pool has no thread, and none can be created.
  Result<void> begin_loop(LoopPool&);
  // stop(), then waits until ended() has returned. The destructor of the final class calls it before members are
  // destroyed that the iterations use. No effect without begin_loop().
  void end_loop();
  void wake(std::chrono::milliseconds delay = {}) {  // any thread
    if (LoopPool* pool = pool_) pool->wake(*this, delay);
  }
  const std::atomic<bool>& stopping() const { return is_stopped_; }

 private:
  friend class LoopPool;
  enum class State { waiting, running, ended };
  std::atomic<LoopPool*> pool_{nullptr};
  std::atomic<bool> is_stopped_{false};
  std::atomic<std::uint64_t> progress_{0};
  // Guarded by the mutex of the pool.
  State state_ = State::ended;
  LoopPool::TimePoint due_{};
  LoopPool::TimePoint woken_for_{};  // during an iteration: the earliest due time of wake(), or TimePoint::max()
};

}  // namespace mycojobs
