// What waits for a world, read ahead from its inbox. Instances take turns: who has much mail holds up nobody who has
// little, and for one instance the order stays that of the inbox. What is here still stands in the store, until the
// commit that takes it: who dies loses nothing. One thread.
//
//   read() --> [instance 7: e1 e2 e3 ...] [instance 8: e4] ... --> take(): e1 e4 e2 e3 ...
//
// An entry for several instances is next when it is next for each of them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mycojobs/workflows.h"

namespace mycojobs {

struct InboxLimits {
  std::uint32_t page = 1000;        // entries of a reading
  std::uint64_t bytes = 32U << 20;  // that are kept here; more waits in the store
};

class WorldInbox {
 public:
  // Whom an entry is for, by store_name(); none: nobody who has to wait for his turn. Nothing: that is not known. Such
  // ones are taken in their order, when all before them are, and before all after them.
  using Targets = std::function<std::optional<std::vector<std::string>>(const WorldMail&)>;
  explicit WorldInbox(InboxLimits limits = {}) : limits_(limits) {}

  // What has come since. Errors: the store's.
  Result<void> read(WorkflowStore&, Id context, const std::string& world, const Targets&);
  // The next one; nothing: none, or none for whom `waits` does not hold.
  std::optional<WorldMail> take(const std::function<bool(const std::string& instance)>& waits = nullptr);
  bool empty() const { return waiting_ == 0 && unsorted_.empty(); }

 private:
  struct Entry {
    WorldMail mail;
    std::vector<std::string> targets;
    std::size_t first_of = 0;  // so many of its targets have it next
    std::uint64_t bytes = 0;
  };
  void sort(const Targets&);
  void add(std::shared_ptr<Entry>);

  InboxLimits limits_;
  std::string last_read_;
  std::deque<WorldMail> unsorted_;                                    // behind what must be taken before it
  std::map<std::string, std::deque<std::shared_ptr<Entry>>> queues_;  // by instance
  std::deque<std::shared_ptr<Entry>> next_;                           // in turn
  std::size_t waiting_ = 0;                                           // in both
  std::uint64_t bytes_ = 0;
};

}  // namespace mycojobs
