#include "artifacts/transfer/lingering_fetches.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/thread.h"

namespace mycojobs {

LingeringFetches::~LingeringFetches() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LingeringFetches::keep(Id actor, std::shared_ptr<void> fetch) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    auto thread = start_thread([this] { run(); }, "lingering");
    if (!thread) return;
    thread_ = std::move(*thread);
  }
  fetches_[std::move(fetch)] = {actor, std::chrono::steady_clock::now() + linger_};
  changed_.notify_all();
}

// The references are released without the lock, since the end of a fetch can wait for a thread.
bool LingeringFetches::release_all() {
  Fetches released;
  {
    const std::lock_guard lock(mutex_);
    released.swap(fetches_);
  }
  return !released.empty();
}

bool LingeringFetches::release_all_of(Id actor) {
  Fetches released;
  {
    const std::lock_guard lock(mutex_);
    for (auto entry = fetches_.begin(); entry != fetches_.end();) {
      const auto current = entry++;
      if (current->second.actor == actor) released.insert(fetches_.extract(current));
    }
  }
  return !released.empty();
}

void LingeringFetches::run() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_) {
    const auto now = std::chrono::steady_clock::now();
    std::vector<std::shared_ptr<void>> released;
    for (auto entry = fetches_.begin(); entry != fetches_.end();) {
      if (entry->second.end <= now) {
        released.push_back(entry->first);
        entry = fetches_.erase(entry);
      } else {
        ++entry;
      }
    }
    if (!released.empty()) {
      lock.unlock();
      released.clear();
      lock.lock();
      continue;
    }
    if (fetches_.empty()) {
      changed_.wait(lock);
    } else {
      const auto first = std::min_element(fetches_.begin(), fetches_.end(),
                                          [](const auto& a, const auto& b) { return a.second.end < b.second.end; });
      changed_.wait_until(lock, first->second.end);
    }
  }
}

}  // namespace mycojobs
