#include "worker/runs/strands.h"

#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace mycojobs {

void StrandPool::post(const std::string& strand_name, Work work) {
  if (stopped_) return;
  auto& strand = strands_[strand_name];
  if (!strand) {
    strand = std::make_unique<Strand>();
    start_strand_thread(strand_name, *strand);
  }
  {
    const std::lock_guard lock(strand->mutex);
    strand->queue.push_back(std::move(work));
  }
  strand->changed.notify_one();
}

bool StrandPool::start_strand_thread(const std::string& name, Strand& strand) {
  if (strand.thread.joinable()) return true;
  auto thread = start_thread([&strand] { strand.run(); }, name);
  if (thread) {
    strand.thread = std::move(*thread);
    return true;
  }
  if (!std::exchange(has_missing_threads_, true))
    log(LogLevel::error, "worker", "{}: {} (trying again)", name, thread.error().message);
  return false;
}

bool StrandPool::create_missing_threads() {
  if (!has_missing_threads_) return true;
  bool is_complete = true;
  for (auto& [name, strand] : strands_) is_complete = start_strand_thread(name, *strand) && is_complete;
  has_missing_threads_ = !is_complete;
  return is_complete;
}

void StrandPool::Strand::run() {
  while (true) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return stop || !queue.empty(); });
    if (stop) return;
    const Work work = std::exchange(queue.front(), {});
    queue.pop_front();
    lock.unlock();
    work();
  }
}

void StrandPool::stop() {
  stopped_ = true;
  for (auto& [name, strand] : strands_) {
    {
      const std::lock_guard lock(strand->mutex);
      strand->stop = true;
    }
    strand->changed.notify_one();
  }
  for (auto& [name, strand] : strands_) {
    if (strand->thread.joinable()) strand->thread.join();
  }
  strands_.clear();
}

}  // namespace mycojobs
