// Entries of the inbox of a deployment, read ahead from the store. The inbox is served round-robin by instance, so a
// busy instance does not starve the others. For one instance the order of the inbox is kept. Entries stay in the store
// until the commit that consumes them, so that a crash loses none. Not thread-safe.
//
//   read() --> [instance 7: e1 e2 e3 ...] [instance 8: e4] ... --> pop(): e1 e4 e2 e3 ...
//
// An entry for several instances is delivered when it is the next entry of each of them.
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
  std::uint32_t page = 1000;        // entries for each read
  std::uint64_t bytes = 32U << 20;  // maximum size of the entries in memory; further entries stay in the store
};

class DeploymentInbox {
 public:
  // Returns the store_name() of each instance that an entry is for. An empty list means that the entry waits for no
  // instance. No value means that the targets are unknown: such an entry is delivered after all entries before it and
  // before all entries after it.
  using TargetFinder = std::function<std::optional<std::vector<std::string>>(const InboxEntry&)>;
  explicit DeploymentInbox(InboxLimits limits = {}) : limits_(limits) {}

  // Reads the entries that arrived since the previous call. Errors are those of the store.
  Result<void> read(WorkflowStore&, Id context, const std::string& deployment, const TargetFinder&);
  // Removes and returns the next entry none of whose instances is held back. Returns no value if there is no such
  // entry.
  std::optional<InboxEntry> pop(const std::function<bool(const std::string& instance)>& is_held_back = nullptr);
  bool empty() const { return entry_count_ == 0 && unsorted_entries_.empty(); }

 private:
  struct Entry {
    InboxEntry entry;
    std::vector<std::string> targets;
    std::size_t ready_targets = 0;  // number of targets for which this entry is the next one
    std::uint64_t bytes = 0;
  };
  void group_by_instance(const TargetFinder&);
  void add(std::shared_ptr<Entry>);

  InboxLimits limits_;
  std::string last_read_id_;
  std::deque<InboxEntry> unsorted_entries_;                           // entries behind an entry with unknown targets
  std::map<std::string, std::deque<std::shared_ptr<Entry>>> queues_;  // by instance
  std::deque<std::shared_ptr<Entry>> deliverable_entries_;            // in round-robin order
  std::size_t entry_count_ = 0;                                       // entries in queues_ and deliverable_entries_
  std::uint64_t bytes_ = 0;
};

}  // namespace mycojobs
