#include "worker/lanes.h"

#include <pthread.h>

#include <utility>

namespace mycojobs {

void Lanes::post(const std::string& name, Work work) {
  constexpr std::size_t kLongestName = 15;  // of a thread
  if (stopped_) return;
  auto& lane = lanes_[name];
  if (!lane) {
    lane = std::make_unique<Lane>();
    lane->thread = std::thread([&own = *lane] { own.loop(); });
    ::pthread_setname_np(lane->thread.native_handle(), name.substr(0, kLongestName).c_str());
  }
  {
    const std::lock_guard lock(lane->mutex);
    lane->waiting.push_back(std::move(work));
  }
  lane->changed.notify_one();
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
  for (auto& [name, lane] : lanes_) lane->thread.join();
  lanes_.clear();
}

}  // namespace mycojobs
