#include "workflows/deployment/deployment_inbox.h"

#include <algorithm>
#include <utility>

namespace mycojobs {
namespace {

const std::string kAnybody;                 // queue of the entries with unknown targets
constexpr std::uint64_t kEntryBytes = 600;  // memory of an entry without its texts

std::uint64_t bytes_of(const InboxEntry& mail) {
  std::uint64_t bytes = kEntryBytes;
  for (const auto& [name, text] : mail.fields) bytes += name.size() + text.size();
  return bytes;
}

}  // namespace

Result<void> DeploymentInbox::read(WorkflowStore& store, Id context, const std::string& deployment,
                                   const Targets& targets) {
  group_by_instance(targets);
  if (bytes_ >= limits_.bytes) return {};
  if (empty()) last_read_.clear();  // An inbox that was deleted or restored starts with lower ids.
  const std::uint64_t max = std::min(kMaxMailBytes, limits_.bytes - bytes_);
  MJ_TRY(mail, store.mail(context, deployment, limits_.page, max, last_read_));
  for (InboxEntry& each : mail) {
    last_read_ = each.id;
    bytes_ += bytes_of(each);
    unsorted_.push_back(std::move(each));
  }
  group_by_instance(targets);
  return {};
}

void DeploymentInbox::group_by_instance(const Targets& targets) {
  while (!unsorted_.empty()) {
    auto wanted = targets(unsorted_.front());
    const bool before = wanted ? queues_.contains(kAnybody) : waiting_ > 0 && !queues_.contains(kAnybody);
    if (before) return;
    auto entry = std::make_shared<Entry>();
    entry->targets = wanted ? std::move(*wanted) : std::vector{kAnybody};
    std::sort(entry->targets.begin(), entry->targets.end());
    entry->targets.erase(std::unique(entry->targets.begin(), entry->targets.end()), entry->targets.end());
    entry->mail = std::move(unsorted_.front());
    unsorted_.pop_front();
    entry->bytes = bytes_of(entry->mail);
    add(std::move(entry));
  }
}

void DeploymentInbox::add(std::shared_ptr<Entry> entry) {
  ++waiting_;
  for (const std::string& target : entry->targets) {
    auto& queue = queues_[target];
    if (queue.empty()) ++entry->first_of;
    queue.push_back(entry);
  }
  if (entry->first_of == entry->targets.size()) next_.push_back(std::move(entry));
}

std::optional<InboxEntry> DeploymentInbox::take(const std::function<bool(const std::string&)>& waits) {
  const auto free = [&](const std::shared_ptr<Entry>& entry) {
    return !waits || std::none_of(entry->targets.begin(), entry->targets.end(), waits);
  };
  const auto found = std::find_if(next_.begin(), next_.end(), free);
  if (found == next_.end()) return std::nullopt;
  const std::shared_ptr<Entry> entry = *found;
  next_.erase(found);
  for (const std::string& target : entry->targets) {
    const auto queue = queues_.find(target);
    queue->second.pop_front();
    if (queue->second.empty()) {
      queues_.erase(queue);
      continue;
    }
    const auto& first = queue->second.front();
    if (++first->first_of == first->targets.size()) next_.push_back(first);
  }
  --waiting_;
  bytes_ -= entry->bytes;
  return std::move(entry->mail);
}

}  // namespace mycojobs
