#include "sandbox/launcher/warm_table.h"

#include <algorithm>
#include <utility>

namespace mycojobs::sandbox {

std::optional<std::uint64_t> WarmTable::acquire(const WarmReuse& warm) {
  const auto found = std::find_if(idle_.rbegin(), idle_.rend(),
                                  [&](std::uint64_t id) { return processes_.at(id).warm.key == warm.key; });
  if (found == idle_.rend()) return {};
  const std::uint64_t id = *found;
  Process& process = processes_.at(id);
  idle_.erase(process.position);
  process.is_idle = false;
  return id;
}

std::uint64_t WarmTable::remove_at(std::list<std::uint64_t>::iterator position) {
  const std::uint64_t id = *position;
  remove_process(id);
  return id;
}

std::size_t WarmTable::count_processes_over_share(ContextId context) const {
  const std::size_t share = max_processes_ / counts_by_context_.size(), count = counts_by_context_.at(context);
  return count - std::min(count, share);
}

// Returns the idle process to discard, or the end of the list if no process may be discarded.
std::list<std::uint64_t>::iterator WarmTable::find_eviction_candidate() {
  auto found = idle_.end();
  std::size_t max_excess = 0;
  for (auto position = idle_.begin(); position != idle_.end(); ++position) {
    const std::size_t excess = count_processes_over_share(processes_.at(*position).context);
    if (excess <= max_excess) continue;
    max_excess = excess;
    found = position;
  }
  return found;
}

WarmTable::Ids WarmTable::add(std::uint64_t id, const WarmReuse& warm, ContextId context) {
  processes_[id] = {warm, context};
  ++counts_by_context_[context];
  newest_keys_[warm.family] = warm.key;
  Ids discarded;
  while (processes_.size() > max_processes_) {
    const auto position = find_eviction_candidate();
    if (position == idle_.end()) break;
    discarded.push_back(remove_at(position));
  }
  return discarded;
}

WarmTable::Ids WarmTable::discard_outdated(const WarmReuse& warm) {
  const auto newest = newest_keys_.find(warm.family);
  if (newest == newest_keys_.end() || newest->second == warm.key) return {};
  newest->second = warm.key;
  Ids discarded;
  for (auto position = idle_.begin(); position != idle_.end();) {
    const auto current = position++;
    const WarmReuse& other = processes_.at(*current).warm;
    if (other.family == warm.family && other.key != warm.key) discarded.push_back(remove_at(current));
  }
  return discarded;
}

WarmTable::Ids WarmTable::retire_key(const std::string& key) {
  for (auto& [id, process] : processes_) process.is_retired = process.is_retired || process.warm.key == key;
  Ids discarded;
  for (auto position = idle_.begin(); position != idle_.end();) {
    const auto current = position++;
    if (processes_.at(*current).is_retired) discarded.push_back(remove_at(current));
  }
  return discarded;
}

bool WarmTable::can_become_idle(std::uint64_t id) const {
  const auto found = processes_.find(id);
  if (found == processes_.end() || found->second.is_idle || found->second.is_retired) return false;
  if (processes_.size() > max_processes_ && count_processes_over_share(found->second.context) > 0) return false;
  const WarmReuse& warm = found->second.warm;
  const auto newest = newest_keys_.find(warm.family);
  return newest == newest_keys_.end() || newest->second == warm.key;
}

bool WarmTable::return_process(std::uint64_t id, std::uint64_t now_boot_ms) {
  if (!can_become_idle(id)) return false;
  Process& process = processes_.at(id);
  process.is_idle = true;
  process.expires_boot_ms = now_boot_ms + process.warm.idle_ms;
  process.position = idle_.insert(idle_.end(), id);
  return true;
}

void WarmTable::remove_process(std::uint64_t id) {
  const auto found = processes_.find(id);
  if (found == processes_.end()) return;
  const std::string family = found->second.warm.family;
  if (found->second.is_idle) idle_.erase(found->second.position);
  if (const auto count = counts_by_context_.find(found->second.context); --count->second == 0)
    counts_by_context_.erase(count);
  processes_.erase(found);
  if (std::none_of(processes_.begin(), processes_.end(),
                   [&](const auto& entry) { return entry.second.warm.family == family; }))
    newest_keys_.erase(family);
}

WarmTable::Ids WarmTable::discard_expired(std::uint64_t now_boot_ms) {
  Ids discarded;
  for (auto position = idle_.begin(); position != idle_.end();) {
    const auto current = position++;
    if (processes_.at(*current).expires_boot_ms <= now_boot_ms) discarded.push_back(remove_at(current));
  }
  return discarded;
}

std::optional<std::uint64_t> WarmTable::next_expiry() const {
  std::optional<std::uint64_t> next;
  for (const std::uint64_t id : idle_) {
    const std::uint64_t expiry = processes_.at(id).expires_boot_ms;
    next = next ? std::min(*next, expiry) : expiry;
  }
  return next;
}

}  // namespace mycojobs::sandbox
