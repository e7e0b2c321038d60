#include "workflows/deployment/step_pool.h"

#include <algorithm>
#include <utility>

#include "base/thread.h"

namespace mycojobs {

StepPool::~StepPool() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    for (Queue& queue : queues_) queue.steps.clear();
  }
  step_queued_.notify_all();
  for (std::vector<std::thread>* threads : {&threads_, &ended_threads_})
    for (std::thread& thread : *threads) thread.join();
  for (std::size_t i = 1; i < threads_.size() && shares_.shared_limit; ++i) shares_.shared_limit->release();
}

std::size_t StepPool::thread_count() const {
  const std::lock_guard lock(mutex_);
  return threads_.size();
}

void StepPool::submit(Id owner, const std::string& deployment, Step step) {
  std::unique_lock lock(mutex_);
  auto queue = std::find_if(queues_.begin(), queues_.end(), [&](const Queue& candidate) {
    return candidate.deployment == deployment && candidate.owner == owner;
  });
  if (queue == queues_.end()) queue = queues_.insert(queues_.end(), Queue{deployment, owner, {}, 0});
  queue->steps.push_back(std::move(step));
  ++queued_count_;
  if (idle_thread_count_ < queued_count_ && threads_.size() < shares_.max_threads) add_thread();
  if (threads_.empty()) return run_one(lock, queue);
  step_queued_.notify_one();
}

Result<std::thread> StepPool::create_thread() {
  const bool is_counted = shares_.shared_limit && !threads_.empty();
  if (is_counted && !shares_.shared_limit->acquire())
    return fail(Code::unavailable, "the pools have the maximum number of threads");
  auto thread = start_thread([this] { run_steps(); }, "steps");
  if (is_counted && !thread) shares_.shared_limit->release();
  return thread;
}

void StepPool::remove_this_thread() {
  const auto self = std::find_if(threads_.begin(), threads_.end(), [](const std::thread& thread) {
    return thread.get_id() == std::this_thread::get_id();
  });
  ended_threads_.push_back(std::move(*self));
  threads_.erase(self);
  capacity_ = std::max<std::size_t>(shares_.max_threads, 1);  // a shortage of threads may be over
  if (shares_.shared_limit && !threads_.empty()) shares_.shared_limit->release();
}

void StepPool::add_thread() {
  for (std::thread& thread : ended_threads_) thread.join();
  ended_threads_.clear();
  auto thread = create_thread();
  if (thread) threads_.push_back(std::move(*thread));
  const std::size_t thread_count = std::max<std::size_t>(threads_.size(), 1);
  capacity_ = thread ? std::max(capacity_, thread_count) : thread_count;
}

void StepPool::drop_queued(const std::string& deployment) {
  const std::lock_guard lock(mutex_);
  for (auto queue = queues_.begin(); queue != queues_.end();) {
    if (queue->deployment == deployment) {
      queued_count_ -= queue->steps.size();
      queue->steps.clear();
    }
    queue = queue->steps.empty() && queue->running_count == 0 ? queues_.erase(queue) : std::next(queue);
  }
}

bool StepPool::wait(std::uint64_t timeout_ms, const std::function<bool()>& is_done) {
  std::unique_lock lock(mutex_);
  has_waiter_ = true;
  const bool result = step_finished_.wait_for(lock, std::chrono::milliseconds(timeout_ms), is_done);
  has_waiter_ = false;
  return result;
}

std::set<std::string> StepPool::pop_finished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_deployments_, {});
}

bool StepPool::can_run(const Queue& queue) const {
  if (queue.steps.empty() || queue.running_count >= shares_.max_per_deployment) return false;
  const auto owner = owners_.find(queue.owner);
  if (owner == owners_.end() || owner->second.running_count == 0) return true;
  const bool is_only_reserve_free = running_count_ + shares_.reserved_threads >= capacity_;
  const bool has_penalty = owner->second.penalty_until > std::chrono::steady_clock::now();
  return !is_only_reserve_free && !has_penalty && owner->second.running_count < shares_.max_per_owner;
}

std::list<StepPool::Queue>::iterator StepPool::find_runnable_queue() {
  return std::find_if(queues_.begin(), queues_.end(), [&](const Queue& queue) { return can_run(queue); });
}

void StepPool::run_steps() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    const auto queue = find_runnable_queue();
    if (queue != queues_.end()) {
      run_one(lock, queue);
      continue;
    }
    ++idle_thread_count_;
    const auto result = step_queued_.wait_for(lock, std::chrono::milliseconds(shares_.thread_idle_ms));
    --idle_thread_count_;
    if (result == std::cv_status::timeout && !is_stopping_ && find_runnable_queue() == queues_.end())
      return remove_this_thread();
  }
}

void StepPool::run_one(std::unique_lock<std::mutex>& lock, std::list<Queue>::iterator queue) {
  Step step = std::move(queue->steps.front());
  queue->steps.pop_front();
  --queued_count_;
  queues_.splice(queues_.end(), queues_, queue);  // the other queues are served first
  const Id owner = queue->owner;
  ++queue->running_count;
  ++owners_[owner].running_count;
  ++running_count_;
  lock.unlock();
  const bool worked = step();
  step = nullptr;
  lock.lock();
  --running_count_;
  --queue->running_count;
  Owner& owner_state = owners_[owner];
  --owner_state.running_count;
  const TimePoint now = std::chrono::steady_clock::now();
  if (!worked) owner_state.penalty_until = now + std::chrono::milliseconds(shares_.penalty_ms);
  if (owner_state.running_count == 0 && owner_state.penalty_until <= now) owners_.erase(owner);
  finished_deployments_.insert(queue->deployment);
  if (queue->steps.empty() && queue->running_count == 0) queues_.erase(queue);
  step_finished_.notify_all();
  step_queued_.notify_one();  // a share has become free, perhaps for a queue that no idle thread could serve
  if (!has_waiter_) {
    lock.unlock();
    on_finished_();
    lock.lock();
  }
}

}  // namespace mycojobs
