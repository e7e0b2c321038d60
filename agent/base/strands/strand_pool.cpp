#include "base/strands/strand_pool.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace mycojobs {

// All members are guarded by the mutex, which is not held while a function of a strand runs.
class StrandPool::State : public std::enable_shared_from_this<StrandPool::State> {
 public:
  State(std::size_t max_threads, int max_idle_ms) : max_threads_(max_threads), max_idle_(max_idle_ms) {}

  bool post(const Strand& strand, Work work) {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return true;
    join_ended_threads();
    StrandQueue& queue = queues_[strand.name];
    queue.work.push_back(std::move(work));
    if (queue.group != nullptr) return true;  // the strand waits for a thread already, or has one
    queue.name = strand.name;
    queue.group = &groups_[strand.group];
    queue.group->ready.push_back(&queue);
    return start_threads(*queue.group);
  }

  bool start_missing_threads() {
    const std::lock_guard lock(mutex_);
    bool is_complete = true;
    for (auto& [name, group] : groups_) is_complete = start_threads(group) && is_complete;
    return is_complete;
  }

  // Returns the threads that run; the caller joins or detaches them.
  std::list<std::thread> stop() {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    std::list<std::thread> threads = std::move(ended_threads_);
    for (auto& [name, group] : groups_) {
      for (Worker& worker : group.workers) {
        if (worker.thread.joinable()) threads.push_back(std::move(worker.thread));
      }
      group.changed.notify_all();
    }
    return threads;
  }

  // REQUIRES: stop() was called, and its threads were joined.
  void clear() {
    std::map<std::string, StrandQueue> dropped;
    const std::lock_guard lock(mutex_);
    dropped.swap(queues_);
  }

  std::size_t thread_count() {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    for (const auto& [name, group] : groups_) count += group.workers.size();
    return count;
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Group;
  struct StrandQueue {  // exists while the strand has queued or running functions
    std::string name;
    std::deque<Work> work;
    Group* group = nullptr;
  };
  struct Worker {
    std::thread thread;
    std::optional<Clock::time_point> busy_since;
  };
  struct Group {
    std::condition_variable changed;
    std::deque<StrandQueue*> ready;  // strands that wait for a thread, the first one for the longest time
    std::list<Worker> workers;
    std::size_t idle_workers = 0;
  };

  // Wakes or creates a thread for each strand that waits for one. Returns false if a strand has to wait for longer.
  bool start_threads(Group& group) {
    for (std::size_t i = std::min(group.idle_workers, group.ready.size()); i > 0; --i) group.changed.notify_one();
    while (group.ready.size() > group.idle_workers) {
      if (!has_room(group) || !start_worker(group)) return false;
    }
    return true;
  }

  bool has_room(const Group& group) const {
    const auto hanging_since = Clock::now() - std::chrono::milliseconds(kHangingMs);
    const auto hanging =
        static_cast<std::size_t>(std::count_if(group.workers.begin(), group.workers.end(), [&](const Worker& worker) {
          return worker.busy_since && *worker.busy_since <= hanging_since;
        }));
    return group.workers.size() < max_threads_ + std::min(hanging, kMaxHangingThreads);
  }

  bool start_worker(Group& group) {
    const auto worker = group.workers.emplace(group.workers.end());
    ++group.idle_workers;
    auto thread = start_thread([state = shared_from_this(), &group, worker] { state->run(group, worker); }, "strand");
    if (thread) {
      worker->thread = std::move(*thread);
      has_logged_shortage_ = false;
      return true;
    }
    --group.idle_workers;
    group.workers.erase(worker);
    if (!std::exchange(has_logged_shortage_, true))
      log(LogLevel::error, "threads", "{}: {} (trying again)", group.ready.front()->name, thread.error().message);
    return false;
  }

  void run(Group& group, std::list<Worker>::iterator worker) {
    std::unique_lock lock(mutex_);
    const auto can_continue = [&] { return is_stopped_ || !group.ready.empty(); };
    while (group.changed.wait_for(lock, max_idle_, can_continue) && !is_stopped_) {
      --group.idle_workers;
      run_next_function(group, *worker, lock);
      ++group.idle_workers;
    }
    --group.idle_workers;
    if (is_stopped_) return;  // stop() has taken the thread
    ended_threads_.push_back(std::move(worker->thread));
    group.workers.erase(worker);
  }

  void run_next_function(Group& group, Worker& worker, std::unique_lock<std::mutex>& lock) {
    StrandQueue& queue = *group.ready.front();
    group.ready.pop_front();
    Work work = std::exchange(queue.work.front(), {});
    queue.work.pop_front();
    worker.busy_since = Clock::now();
    name_this_thread(queue.name);  // before the lock is released, since after abandon() the queue may be destroyed
    lock.unlock();
    work();
    work = {};  // destroyed without the lock, since it can own files
    lock.lock();
    worker.busy_since.reset();
    if (is_stopped_) return;
    if (queue.work.empty()) {
      queues_.erase(queues_.find(queue.name));
    } else {
      group.ready.push_back(&queue);  // after the other strands of the group
    }
  }

  // Ended threads have released the lock for the last time, so joining them does not block.
  void join_ended_threads() {
    for (std::thread& thread : ended_threads_) thread.join();
    ended_threads_.clear();
  }

  const std::size_t max_threads_;
  const std::chrono::milliseconds max_idle_;
  std::mutex mutex_;
  std::map<std::string, StrandQueue> queues_;  // by name of the strand
  std::map<std::string, Group> groups_;        // by name of the group
  std::list<std::thread> ended_threads_;
  bool is_stopped_ = false;
  bool has_logged_shortage_ = false;
};

StrandPool::StrandPool(std::size_t max_threads, int max_idle_ms)
    : state_(std::make_shared<State>(max_threads, max_idle_ms)) {}

bool StrandPool::post(const Strand& strand, Work work) { return state_->post(strand, std::move(work)); }

bool StrandPool::start_missing_threads() { return state_->start_missing_threads(); }

void StrandPool::stop() {
  for (std::thread& thread : state_->stop()) thread.join();
  state_->clear();
}

void StrandPool::abandon() {
  for (std::thread& thread : state_->stop()) thread.detach();
}

std::size_t StrandPool::thread_count() const { return state_->thread_count(); }

}  // namespace mycojobs
