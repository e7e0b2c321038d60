// Threads that run the steps of a context's workflows, so that a round of the context does not block on a step. Each
// deployment has a queue of its own. Thread-safe.
//
// - Deployments with queued steps are served round-robin. The steps of a deployment start in order.
// - An owner has at most `max_per_owner` threads, and at most `max_per_deployment` of them in one deployment, so that a
//   slow deployment delays only itself.
// - The last `reserved_threads` threads are for owners without a running step. If the host provides fewer threads than
//   `max_threads`, the last of the provided threads are reserved.
// - An owner whose step made the engine fail has only one thread for `penalty_ms`.
// - Threads are created on demand and end after a while without steps. Several pools can share a limit of their
// threads;
//   each pool with steps has at least one thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "model/records.h"

namespace mycojobs {

// The number of threads that pools may have in addition to the first thread of each pool. Thread-safe.
class SharedThreadLimit {
 public:
  explicit SharedThreadLimit(std::size_t max_threads) : free_(max_threads) {}
  bool acquire() {
    std::size_t free = free_;
    while (free > 0 && !free_.compare_exchange_weak(free, free - 1)) {
    }
    return free > 0;
  }
  void release() { ++free_; }

 private:
  std::atomic<std::size_t> free_;
};

struct StepShares {
  std::size_t max_threads = 16, max_per_owner = 6, max_per_deployment = 4, reserved_threads = 4;
  std::uint64_t penalty_ms = 60'000;
  std::shared_ptr<SharedThreadLimit> shared_limit = nullptr;  // null: the pool has no other limit than max_threads
  std::uint64_t thread_idle_ms = 10'000;                      // time without steps after which a thread ends
};

class StepPool {
 public:
  using Step = std::function<bool()>;  // returns false if the engine failed
  // `on_finished` is called by a thread of the pool when a step has ended and no thread waits in wait().
  StepPool(StepShares shares, std::function<void()> on_finished)
      : shares_(std::move(shares)),
        on_finished_(std::move(on_finished)),
        capacity_(std::max<std::size_t>(shares_.max_threads, 1)) {}
  ~StepPool();  // Drops queued steps and waits for running ones.
  StepPool(const StepPool&) = delete;
  StepPool& operator=(const StepPool&) = delete;

  std::size_t thread_count() const;
  // Queues a step. Runs it on the calling thread if no thread can be created.
  void submit(Id owner, const std::string& deployment, Step);
  void drop_queued(const std::string& deployment);
  // Blocks until `is_done` returns true or the time has passed. `is_done` is called whenever a step has ended. Returns
  // the last result of `is_done`.
  bool wait(std::uint64_t timeout_ms, const std::function<bool()>& is_done);
  // Returns the deployments with steps that ended since the last call.
  std::set<std::string> pop_finished();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Queue {
    std::string deployment;
    Id owner = 0;
    std::deque<Step> steps;
    std::size_t running_count = 0;
  };
  struct Owner {
    std::size_t running_count = 0;
    TimePoint penalty_until = {};
  };
  // The next three functions require the lock.
  void add_thread();
  Result<std::thread> create_thread();
  void remove_this_thread();
  void run_steps();  // runs in each thread until the thread has been idle for a while or the pool is destroyed
  bool can_run(const Queue&) const;
  std::list<Queue>::iterator find_runnable_queue();
  void run_one(std::unique_lock<std::mutex>&, std::list<Queue>::iterator);

  const StepShares shares_;
  const std::function<void()> on_finished_;
  mutable std::mutex mutex_;
  std::condition_variable step_queued_, step_finished_;
  std::list<Queue> queues_;  // queues with queued or running steps; the first queue is served next
  std::map<Id, Owner> owners_;
  std::set<std::string> finished_deployments_;
  std::size_t queued_count_ = 0, running_count_ = 0;  // numbers of steps
  std::size_t idle_thread_count_ = 0;
  std::size_t capacity_;     // number of threads that the host provides, as far as it is known
  bool has_waiter_ = false;  // whether a thread is in wait()
  bool is_stopping_ = false;
  std::vector<std::thread> threads_, ended_threads_;  // ended threads are joined by the next caller
};

}  // namespace mycojobs
