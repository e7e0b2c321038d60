#include "sandbox/launcher/warm_table.h"

#include <algorithm>
#include <utility>

namespace mycojobs::sandbox {

std::optional<std::uint64_t> WarmTable::take(const Warm& warm) {
  const auto found = std::find_if(resting_.rbegin(), resting_.rend(),
                                  [&](std::uint64_t id) { return all_.at(id).warm.key == warm.key; });
  if (found == resting_.rend()) return {};
  const std::uint64_t id = *found;
  Process& process = all_.at(id);
  resting_.erase(process.place);
  process.rests = false;
  return id;
}

std::uint64_t WarmTable::give_up(std::list<std::uint64_t>::iterator place) {
  const std::uint64_t id = *place;
  gone(id);
  return id;
}

std::size_t WarmTable::processes_over_share(ContextId context) const {
  const std::size_t part = most_ / held_.size(), has = held_.at(context);
  return has - std::min(has, part);
}

// Returns the resting process to discard; the end of the list: none may be discarded.
std::list<std::uint64_t>::iterator WarmTable::eviction_candidate() {
  auto found = resting_.end();
  std::size_t most_over = 0;
  for (auto place = resting_.begin(); place != resting_.end(); ++place) {
    const std::size_t its = processes_over_share(all_.at(*place).context);
    if (its <= most_over) continue;
    most_over = its;
    found = place;
  }
  return found;
}

WarmTable::Ids WarmTable::made(std::uint64_t id, const Warm& warm, ContextId context) {
  all_[id] = {warm, context};
  ++held_[context];
  newest_[warm.family] = warm.key;
  Ids leave;
  while (all_.size() > most_) {
    const auto place = eviction_candidate();
    if (place == resting_.end()) break;
    leave.push_back(give_up(place));
  }
  return leave;
}

WarmTable::Ids WarmTable::renewed(const Warm& warm) {
  const auto newest = newest_.find(warm.family);
  if (newest == newest_.end() || newest->second == warm.key) return {};
  newest->second = warm.key;
  Ids leave;
  for (auto place = resting_.begin(); place != resting_.end();) {
    const auto each = place++;
    const Warm& other = all_.at(*each).warm;
    if (other.family == warm.family && other.key != warm.key) leave.push_back(give_up(each));
  }
  return leave;
}

WarmTable::Ids WarmTable::forget(const std::string& key) {
  for (auto& [id, process] : all_) process.leaves = process.leaves || process.warm.key == key;
  Ids leave;
  for (auto place = resting_.begin(); place != resting_.end();) {
    const auto each = place++;
    if (all_.at(*each).leaves) leave.push_back(give_up(each));
  }
  return leave;
}

bool WarmTable::can_rest(std::uint64_t id) const {
  const auto found = all_.find(id);
  if (found == all_.end() || found->second.rests || found->second.leaves) return false;
  if (all_.size() > most_ && processes_over_share(found->second.context) > 0) return false;
  const Warm& warm = found->second.warm;
  const auto newest = newest_.find(warm.family);
  return newest == newest_.end() || newest->second == warm.key;
}

bool WarmTable::return_process(std::uint64_t id, std::uint64_t now_boot_ms) {
  if (!can_rest(id)) return false;
  Process& process = all_.at(id);
  process.rests = true;
  process.until_boot_ms = now_boot_ms + process.warm.idle_ms;
  process.place = resting_.insert(resting_.end(), id);
  return true;
}

void WarmTable::gone(std::uint64_t id) {
  const auto found = all_.find(id);
  if (found == all_.end()) return;
  const std::string family = found->second.warm.family;
  if (found->second.rests) resting_.erase(found->second.place);
  if (const auto held = held_.find(found->second.context); --held->second == 0) held_.erase(held);
  all_.erase(found);
  if (std::none_of(all_.begin(), all_.end(), [&](const auto& each) { return each.second.warm.family == family; }))
    newest_.erase(family);
}

WarmTable::Ids WarmTable::expired(std::uint64_t now_boot_ms) {
  Ids leave;
  for (auto place = resting_.begin(); place != resting_.end();) {
    const auto each = place++;
    if (all_.at(*each).until_boot_ms <= now_boot_ms) leave.push_back(give_up(each));
  }
  return leave;
}

std::optional<std::uint64_t> WarmTable::next_expiry() const {
  std::optional<std::uint64_t> next;
  for (const std::uint64_t id : resting_) {
    const std::uint64_t at = all_.at(id).until_boot_ms;
    next = next ? std::min(*next, at) : at;
  }
  return next;
}

}  // namespace mycojobs::sandbox
