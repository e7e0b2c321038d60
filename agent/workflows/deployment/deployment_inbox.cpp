#include "workflows/deployment/deployment_inbox.h"

#include <algorithm>
#include <utility>

namespace mycojobs {
namespace {

const std::string kUnknownTargets;                  // key of the queue of entries with unknown targets
constexpr std::uint64_t kEntryOverheadBytes = 600;  // memory of an entry without its texts

std::uint64_t compute_entry_bytes(const InboxEntry& entry) {
  std::uint64_t bytes = kEntryOverheadBytes;
  for (const auto& [name, text] : entry.fields) bytes += name.size() + text.size();
  return bytes;
}

}  // namespace

Result<void> DeploymentInbox::read(WorkflowStore& store, Id context, const std::string& deployment,
                                   const TargetFinder& find_targets) {
  group_by_instance(find_targets);
  if (bytes_ >= limits_.max_bytes) return {};
  if (empty()) last_read_id_.clear();  // An inbox that was deleted or restored starts with lower ids.
  const std::uint64_t max_read_bytes = std::min(kMaxInboxReadBytes, limits_.max_bytes - bytes_);
  MJ_TRY(entries, store.read_inbox(context, deployment, limits_.max_read_entries, max_read_bytes, last_read_id_));
  for (InboxEntry& entry : entries) {
    last_read_id_ = entry.id;
    bytes_ += compute_entry_bytes(entry);
    unsorted_entries_.push_back(std::move(entry));
  }
  group_by_instance(find_targets);
  return {};
}

void DeploymentInbox::group_by_instance(const TargetFinder& find_targets) {
  while (!unsorted_entries_.empty()) {
    auto targets = find_targets(unsorted_entries_.front());
    const bool must_wait =
        targets ? queues_.contains(kUnknownTargets) : entry_count_ > 0 && !queues_.contains(kUnknownTargets);
    if (must_wait) return;
    auto entry = std::make_shared<Entry>();
    entry->targets = targets ? std::move(*targets) : std::vector{kUnknownTargets};
    std::sort(entry->targets.begin(), entry->targets.end());
    entry->targets.erase(std::unique(entry->targets.begin(), entry->targets.end()), entry->targets.end());
    entry->entry = std::move(unsorted_entries_.front());
    unsorted_entries_.pop_front();
    entry->bytes = compute_entry_bytes(entry->entry);
    add(std::move(entry));
  }
}

void DeploymentInbox::add(std::shared_ptr<Entry> entry) {
  ++entry_count_;
  for (const std::string& target : entry->targets) {
    auto& queue = queues_[target];
    if (queue.empty()) ++entry->ready_targets;
    queue.push_back(entry);
  }
  if (entry->ready_targets == entry->targets.size()) deliverable_entries_.push_back(std::move(entry));
}

std::vector<std::string> DeploymentInbox::next_targets(std::size_t max_entries) const {
  std::vector<std::string> targets;
  for (std::size_t i = 0; i < std::min(max_entries, deliverable_entries_.size()); ++i)
    for (const std::string& target : deliverable_entries_[i]->targets)
      if (target != kUnknownTargets) targets.push_back(target);
  return targets;
}

std::optional<InboxEntry> DeploymentInbox::pop(const std::function<bool(const std::string&)>& is_blocked) {
  const auto is_deliverable = [&](const std::shared_ptr<Entry>& entry) {
    return !is_blocked || std::none_of(entry->targets.begin(), entry->targets.end(), is_blocked);
  };
  const auto next = std::find_if(deliverable_entries_.begin(), deliverable_entries_.end(), is_deliverable);
  if (next == deliverable_entries_.end()) return std::nullopt;
  const std::shared_ptr<Entry> entry = *next;
  deliverable_entries_.erase(next);
  for (const std::string& target : entry->targets) {
    const auto queue = queues_.find(target);
    queue->second.pop_front();
    if (queue->second.empty()) {
      queues_.erase(queue);
      continue;
    }
    const auto& first = queue->second.front();
    if (++first->ready_targets == first->targets.size()) deliverable_entries_.push_back(first);
  }
  --entry_count_;
  bytes_ -= entry->bytes;
  return std::move(entry->entry);
}

}  // namespace mycojobs
