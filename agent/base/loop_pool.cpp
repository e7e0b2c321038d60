#include "base/loop_pool.h"

#include <algorithm>

#include "base/thread.h"

namespace mycojobs {
namespace {

constexpr std::chrono::milliseconds kThreadRetryDelay{1000};
// A loop that has been due for this time without an iteration waits for a thread.
constexpr std::chrono::milliseconds kMaxThreadWait{1000};
constexpr std::chrono::milliseconds kMaxLoopPause = std::chrono::hours(24);

}  // namespace

LoopPool::~LoopPool() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  work_changed_.notify_all();
  for (Worker& worker : workers_) worker.thread.join();
}

bool LoopPool::has_progressed() {
  const std::lock_guard lock(mutex_);
  const bool is_loop_delayed =
      !waiting_loops_.empty() && waiting_loops_.begin()->first + kMaxThreadWait <= Clock::now();
  if (is_loop_delayed && ended_iterations_ == checked_iterations_) return false;
  checked_iterations_ = ended_iterations_;
  return true;
}

void LoopPool::start_missing_thread() {
  const std::lock_guard lock(mutex_);
  if (!waiting_loops_.empty() && waiting_loops_.begin()->first <= Clock::now()) add_missing_thread();
}

std::size_t LoopPool::thread_count() const {
  const std::lock_guard lock(mutex_);
  return workers_.size();
}

Result<void> LoopPool::add(PooledLoop& loop) {
  const std::lock_guard lock(mutex_);
  if (workers_.empty()) MJ_CHECK(add_thread());
  loop.pool_ = this;
  set_due(loop, Clock::now());
  notify_due_loop();
  return {};
}

void LoopPool::wake(PooledLoop& loop, std::chrono::milliseconds delay) {
  const std::lock_guard lock(mutex_);
  const TimePoint due = Clock::now() + delay;
  if (loop.state_ == PooledLoop::State::running) loop.woken_for_ = std::min(loop.woken_for_, due);
  if (loop.state_ != PooledLoop::State::waiting) return;
  if (loop.due_ <= due) {
    if (loop.due_ <= Clock::now()) add_missing_thread();  // the loop waits for a thread, and all may be stuck
    return;
  }
  waiting_loops_.erase({loop.due_, &loop});
  set_due(loop, due);
  notify_due_loop();
}

void LoopPool::wait_for_end(PooledLoop& loop) {
  Lock lock(mutex_);
  loop_ended_.wait(lock, [&] { return loop.state_ == PooledLoop::State::ended; });
}

void LoopPool::set_due(PooledLoop& loop, TimePoint due) {
  loop.state_ = PooledLoop::State::waiting;
  loop.due_ = due;
  waiting_loops_.emplace(due, &loop);
}

void LoopPool::notify_due_loop() {
  if (waiting_loops_.empty() || waiting_loops_.begin()->first >= next_timeout_)
    return;  // An idle thread wakes in time.
  if (idle_count_ > 0) {
    work_changed_.notify_one();
  } else {
    add_missing_thread();
  }
}

std::size_t LoopPool::count_stuck_workers() const {
  const TimePoint now = Clock::now();
  return static_cast<std::size_t>(std::count_if(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.iteration_start <= now && now - worker.iteration_start >= limits_.stuck_after;
  }));
}

Result<void> LoopPool::add_thread() {
  Worker& worker = workers_.emplace_back();
  auto thread = start_thread([this, &worker] { run_loops(worker); }, name_);
  if (!thread) {
    workers_.pop_back();
    next_thread_attempt_ = Clock::now() + kThreadRetryDelay;
    return tl::unexpected<Error>(std::move(thread).error());
  }
  worker.thread = std::move(*thread);
  return {};
}

void LoopPool::add_missing_thread() {
  if (idle_count_ > 0 || is_stopping_ || Clock::now() < next_thread_attempt_) return;
  const std::size_t max_threads = limits_.max_threads + std::min(count_stuck_workers(), limits_.max_replacements);
  // After an error the present threads do the work, and a later call tries again.
  if (workers_.size() < max_threads) (void)add_thread();
}

void LoopPool::run_loops(Worker& worker) {
  Lock lock(mutex_);
  while (!is_stopping_) {
    const TimePoint now = Clock::now();
    const auto first = waiting_loops_.begin();
    if (first == waiting_loops_.end() || first->first > now) {
      wait_for_due_loop(lock, first == waiting_loops_.end() ? TimePoint::max() : first->first);
      continue;
    }
    PooledLoop& loop = *first->second;
    waiting_loops_.erase(first);
    loop.state_ = PooledLoop::State::running;
    loop.woken_for_ = TimePoint::max();
    notify_due_loop();  // During the iteration another thread waits for the next due time.
    worker.iteration_start = now;
    run_iteration(lock, loop);
    worker.iteration_start = TimePoint::max();
  }
}

void LoopPool::wait_for_due_loop(Lock& lock, TimePoint first_due) {
  ++idle_count_;
  if (first_due < next_timeout_) {
    next_timeout_ = first_due;
    work_changed_.wait_until(lock, first_due);
    if (next_timeout_ == first_due) next_timeout_ = TimePoint::max();
  } else {
    work_changed_.wait(lock);
  }
  --idle_count_;
}

void LoopPool::run_iteration(Lock& lock, PooledLoop& loop) {
  const bool is_last = loop.stopped();
  lock.unlock();
  ++loop.progress_;
  std::uint64_t pause_ms = 0;
  if (is_last) {
    loop.ended();
  } else {
    pause_ms = loop.run_once();
  }
  ++loop.progress_;
  lock.lock();
  ++ended_iterations_;
  if (is_last) {
    loop.state_ = PooledLoop::State::ended;
    loop_ended_.notify_all();
    return;
  }
  const auto pause = std::min<std::uint64_t>(pause_ms, static_cast<std::uint64_t>(kMaxLoopPause.count()));
  // No other thread is notified, since this thread waits for the next due time or runs the next loop.
  const TimePoint now = Clock::now();
  set_due(loop, loop.stopped() ? now : std::min(loop.woken_for_, now + std::chrono::milliseconds(pause)));
}

Result<void> PooledLoop::begin_loop(LoopPool& pool) { return pool.add(*this); }

void PooledLoop::end_loop() {
  stop();
  if (LoopPool* pool = pool_) pool->wait_for_end(*this);
}

}  // namespace mycojobs
