#include "worker/runs/strands.h"

#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace mycojobs {

void StrandPool::post(const std::string& name, Work work) {
  if (stopped_) return;
  auto& strand = strands_[name];
  if (!strand) {
    strand = std::make_unique<Strand>();
    start(name, *strand);
  }
  {
    const std::lock_guard lock(strand->mutex);
    strand->waiting.push_back(std::move(work));
  }
  strand->changed.notify_one();
}

bool StrandPool::start(const std::string& name, Strand& strand) {
  if (strand.thread.joinable()) return true;
  auto thread = start_thread([&strand] { strand.loop(); }, name);
  if (thread) {
    strand.thread = std::move(*thread);
    return true;
  }
  if (!std::exchange(is_short_, true))
    log(LogLevel::error, "worker", "{}: {} (trying again)", name, thread.error().message);
  return false;
}

bool StrandPool::retry() {
  if (!is_short_) return true;
  bool all = true;
  for (auto& [name, strand] : strands_) all = start(name, *strand) && all;
  is_short_ = !all;
  return all;
}

void StrandPool::Strand::loop() {
  while (true) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return stop || !waiting.empty(); });
    if (stop) return;
    const Work work = std::exchange(waiting.front(), {});
    waiting.pop_front();
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
