#include "workflows/deployment/step_pool.h"

#include <algorithm>
#include <utility>

#include "base/thread.h"

namespace mycojobs {

StepPool::~StepPool() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
    for (Queue& each : queues_) each.steps.clear();
  }
  queued_.notify_all();
  for (std::thread& each : threads_) each.join();
}

void StepPool::submit(Id owner, const std::string& deployment, Step step) {
  std::unique_lock lock(mutex_);
  auto queue = std::find_if(queues_.begin(), queues_.end(),
                            [&](const Queue& each) { return each.deployment == deployment && each.owner == owner; });
  if (queue == queues_.end()) queue = queues_.insert(queues_.end(), Queue{deployment, owner, {}, 0});
  queue->steps.push_back(std::move(step));
  ++waiting_;
  if (idle_threads_ < waiting_ && threads_.size() < shares_.threads) add_thread();
  if (threads_.empty()) return run_one(lock, queue);
  queued_.notify_one();
}

void StepPool::add_thread() {
  auto thread = start_thread([this] { run(); }, "steps");
  if (thread) threads_.push_back(std::move(*thread));
  const std::size_t threads = std::max<std::size_t>(threads_.size(), 1);
  capacity_ = thread ? std::max(capacity_, threads) : threads;
}

void StepPool::drop_queued(const std::string& deployment) {
  const std::lock_guard lock(mutex_);
  for (auto each = queues_.begin(); each != queues_.end();) {
    if (each->deployment == deployment) {
      waiting_ -= each->steps.size();
      each->steps.clear();
    }
    each = each->steps.empty() && each->running == 0 ? queues_.erase(each) : std::next(each);
  }
}

bool StepPool::wait(std::uint64_t most_ms, const std::function<bool()>& done) {
  std::unique_lock lock(mutex_);
  waited_for_ = true;
  const bool is_done = finished_.wait_for(lock, std::chrono::milliseconds(most_ms), done);
  waited_for_ = false;
  return is_done;
}

std::set<std::string> StepPool::pop_finished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_deployments_, {});
}

bool StepPool::can_run(const Queue& queue) const {
  if (queue.steps.empty() || queue.running >= shares_.per_deployment) return false;
  const auto found = owners_.find(queue.owner);
  if (found == owners_.end() || found->second.running == 0) return true;
  const bool is_short = running_ + shares_.reserve >= capacity_;
  const bool is_punished = found->second.penalty_until > std::chrono::steady_clock::now();
  return !is_short && !is_punished && found->second.running < shares_.per_owner;
}

std::list<StepPool::Queue>::iterator StepPool::next() {
  return std::find_if(queues_.begin(), queues_.end(), [&](const Queue& each) { return can_run(each); });
}

void StepPool::run() {
  std::unique_lock lock(mutex_);
  while (!stops_) {
    const auto queue = next();
    if (queue != queues_.end()) {
      run_one(lock, queue);
      continue;
    }
    ++idle_threads_;
    queued_.wait(lock);
    --idle_threads_;
  }
}

void StepPool::run_one(std::unique_lock<std::mutex>& lock, std::list<Queue>::iterator queue) {
  Step step = std::move(queue->steps.front());
  queue->steps.pop_front();
  --waiting_;
  queues_.splice(queues_.end(), queues_, queue);  // the other queues have their turns first
  const Id owner = queue->owner;
  ++queue->running;
  ++owners_[owner].running;
  ++running_;
  lock.unlock();
  const bool worked = step();
  step = nullptr;
  lock.lock();
  --running_;
  --queue->running;
  Owner& of = owners_[owner];
  --of.running;
  const TimePoint now = std::chrono::steady_clock::now();
  if (!worked) of.penalty_until = now + std::chrono::milliseconds(shares_.penalty_ms);
  if (of.running == 0 && of.penalty_until <= now) owners_.erase(owner);
  finished_deployments_.insert(queue->deployment);
  if (queue->steps.empty() && queue->running == 0) queues_.erase(queue);
  finished_.notify_all();
  queued_.notify_one();  // a share has become free, perhaps for a queue that no idle thread could serve
  if (!waited_for_) {
    lock.unlock();
    on_finished_();
    lock.lock();
  }
}

}  // namespace mycojobs
