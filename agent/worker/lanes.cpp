#include "worker/lanes.h"

#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace mycojobs {

void Lanes::post(const std::string& name, Work work) {
  if (stopped_) return;
  auto& lane = lanes_[name];
  if (!lane) {
    lane = std::make_unique<Lane>();
    start(name, *lane);
  }
  {
    const std::lock_guard lock(lane->mutex);
    lane->waiting.push_back(std::move(work));
  }
  lane->changed.notify_one();
}

bool Lanes::start(const std::string& name, Lane& lane) {
  if (lane.thread.joinable()) return true;
  auto thread = start_thread([&lane] { lane.loop(); }, name);
  if (thread) {
    lane.thread = std::move(*thread);
    return true;
  }
  if (!std::exchange(is_short_, true))
    log(LogLevel::error, "worker", "{}: {} (trying again)", name, thread.error().message);
  return false;
}

bool Lanes::retry() {
  if (!is_short_) return true;
  bool all = true;
  for (auto& [name, lane] : lanes_) all = start(name, *lane) && all;
  is_short_ = !all;
  return all;
}

void Lanes::Lane::loop() {
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

void Lanes::stop() {
  stopped_ = true;
  for (auto& [name, lane] : lanes_) {
    {
      const std::lock_guard lock(lane->mutex);
      lane->stop = true;
    }
    lane->changed.notify_one();
  }
  for (auto& [name, lane] : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
  }
  lanes_.clear();
}

}  // namespace mycojobs
