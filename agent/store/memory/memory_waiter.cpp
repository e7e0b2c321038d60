#include "store/memory/memory_waiter.h"

#include <algorithm>
#include <chrono>

namespace mycojobs {

MemoryWaiter::MemoryWaiter(MemoryServer& server, const std::vector<std::pair<Id, std::string>>& queues,
                           const std::string& topic)
    : server_(server), queues_(queues) {
  std::lock_guard lock(server_.mutex_);
  if (!topic.empty()) server_.subscribers_.emplace(topic, &hints_);
  server_.subscribers_.emplace("mj:wake", &announced_);
}

MemoryWaiter::~MemoryWaiter() {
  std::lock_guard lock(server_.mutex_);
  std::erase_if(server_.subscribers_,
                [&](const auto& each) { return each.second == &hints_ || each.second == &announced_; });
}

Result<Woken> MemoryWaiter::wait(std::uint32_t timeout_ms, bool for_work) {
  std::unique_lock lock(server_.mutex_);
  Woken woken;
  server_.changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
    woken.work = for_work && (!announced_.empty() || has_work());
    return woken.work || called_ || !hints_.empty();
  });
  called_ = false;
  announced_.clear();
  woken.hints.assign(hints_.begin(), hints_.end());
  hints_.clear();
  return woken;
}

void MemoryWaiter::set_paused(Id context, const std::vector<std::string>& queues) {
  std::lock_guard lock(server_.mutex_);
  paused_[context] = {queues.begin(), queues.end()};
}

void MemoryWaiter::wake() {
  std::lock_guard lock(server_.mutex_);
  called_ = true;
  server_.changed_.notify_all();
}

bool MemoryWaiter::has_work() const {
  return std::any_of(queues_.begin(), queues_.end(), [&](const auto& each) {
    const auto& [context, queue] = each;
    const auto paused = paused_.find(context);
    if (paused != paused_.end() && paused->second.contains(queue)) return false;
    const auto& databases = server_.redis_.databases();
    const auto database = databases.find(context);
    if (database == databases.end()) return false;
    const auto found = database->second.find(queue);
    return found != database->second.end() && std::holds_alternative<memory::List>(found->second);
  });
}

}  // namespace mycojobs
