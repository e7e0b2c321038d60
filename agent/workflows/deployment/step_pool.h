// Threads that run the steps of a context's workflows, so that a round of the context does not block on a step. Each
// deployment has a queue of its own:
//
//   order     deployments with queued steps are served round-robin; the steps of a deployment run in order
//   shares    an owner has at most `per_owner` threads, and at most `per_deployment` of them in one deployment, so that
//             a slow deployment delays only itself. The last `reserve` threads are for owners without a running step.
//             On a host that provides fewer threads, the reserve is the last of the threads that it provides
//   penalty   an owner whose step made the engine fail has one thread for `penalty_ms`
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "model/records.h"

namespace mycojobs {

struct StepShares {
  std::size_t threads = 16, per_owner = 6, per_deployment = 4, reserve = 4;
  std::uint64_t penalty_ms = 60'000;
};

class StepPool {
 public:
  using Step = std::function<bool()>;  // false: the engine failed
  // on_finished: called by a thread of the pool when a step has ended and no thread waits in wait().
  StepPool(StepShares shares, std::function<void()> on_finished)
      : shares_(shares), on_finished_(std::move(on_finished)), capacity_(std::max<std::size_t>(shares.threads, 1)) {}
  ~StepPool();  // Drops queued steps and waits for running ones.
  StepPool(const StepPool&) = delete;
  StepPool& operator=(const StepPool&) = delete;

  // Queues a step. Runs it on the calling thread if no thread can be created.
  void submit(Id owner, const std::string& deployment, Step);
  void drop_queued(const std::string& deployment);
  // Blocks until `done` returns true or the time has passed. `done` is called whenever a step has ended. Returns the
  // last result of `done`.
  bool wait(std::uint64_t most_ms, const std::function<bool()>& done);
  // Returns the deployments with steps that ended since the last call.
  std::set<std::string> pop_finished();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Queue {
    std::string deployment;
    Id owner = 0;
    std::deque<Step> steps;
    std::size_t running = 0;
  };
  struct Owner {
    std::size_t running = 0;
    TimePoint penalty_until = {};
  };
  void add_thread();
  void run();
  bool can_run(const Queue&) const;
  std::list<Queue>::iterator next();
  void run_one(std::unique_lock<std::mutex>&, std::list<Queue>::iterator);

  const StepShares shares_;
  const std::function<void()> on_finished_;
  std::mutex mutex_;
  std::condition_variable queued_, finished_;
  std::list<Queue> queues_;  // the first queue has the next turn; only queues with queued or running steps
  std::map<Id, Owner> owners_;
  std::set<std::string> finished_deployments_;
  // Numbers of queued and running steps, and of idle threads.
  std::size_t waiting_ = 0, running_ = 0, idle_threads_ = 0;
  std::size_t capacity_;  // number of threads that the host provides, as far as it is known
  bool waited_for_ = false, stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace mycojobs
