// Entries of the inbox of a deployment, read ahead from the store. The instances are served round-robin, so a busy
// instance does not starve the others. Each instance receives its entries in the order of the inbox. Entries stay in
// the store until the commit that consumes them, so a crash loses no entry. Not thread-safe.
//
//   read() --> [instance 7: e1 e2 e3 ...] [instance 8: e4] ... --> pop(): e1 e4 e2 e3 ...
//
// An entry for several instances is delivered once, when it is the next entry of each of these instances.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/workflow_store.h"

namespace mycojobs {

struct InboxLimits {
  std::uint32_t max_read_entries = 1000;  // number of entries that one call of read() reads
  std::uint64_t max_bytes = 32U << 20;    // size of the entries in memory; further entries stay in the store
};

class DeploymentInbox {
 public:
  // Returns the names (store_name()) of the instances that receive an entry, or no value if the receivers are unknown.
  // An entry with unknown receivers is delivered after all earlier entries and before all later entries. An entry with
  // an empty list is delivered after all earlier entries with unknown receivers.
  using TargetFinder = std::function<std::optional<std::vector<std::string>>(const InboxEntry&)>;
  explicit DeploymentInbox(InboxLimits limits = {}) : limits_(limits) {}

  // Reads the entries that arrived since the previous call, within the limits. Errors: those of read_inbox().
  Result<void> read(WorkflowStore&, Id context, const std::string& deployment, const TargetFinder&);
  // Removes the next entry from memory and returns it. Returns no value if no entry can be delivered. Entries for an
  // instance for which `is_blocked` returns true are skipped and stay in the inbox.
  std::optional<InboxEntry> pop(const std::function<bool(const std::string& instance)>& is_blocked = nullptr);
  // Returns the names of the instances that receive the next entries, of at most `max_entries` entries.
  std::vector<std::string> next_targets(std::size_t max_entries) const;
  bool empty() const { return entry_count_ == 0 && unsorted_entries_.empty(); }

 private:
  struct Entry {
    InboxEntry entry;
    std::vector<std::string> targets;
    std::size_t ready_targets = 0;  // number of targets whose next entry is this one
    std::uint64_t bytes = 0;
  };
  // Moves entries from unsorted_entries_ to queues_ until an entry must wait for earlier entries.
  void group_by_instance(const TargetFinder&);
  void add(std::shared_ptr<Entry>);

  InboxLimits limits_;
  std::string last_read_id_;
  std::deque<InboxEntry> unsorted_entries_;  // entries that were read but are not in queues_ yet, in order of the inbox
  std::map<std::string, std::deque<std::shared_ptr<Entry>>> queues_;  // by instance
  std::deque<std::shared_ptr<Entry>> deliverable_entries_;            // in round-robin order
  std::size_t entry_count_ = 0;                                       // entries in queues_ and deliverable_entries_
  std::uint64_t bytes_ = 0;
};

}  // namespace mycojobs
