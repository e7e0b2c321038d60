// The order in which idle instances of a deployment are removed from memory: for each workflow the least recently used
// instance first, and instances of the latest snapshot before instances that have changed since. An instance with work
// is not in the cache and stays in memory. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "workflows/workflow_state.h"

namespace mycojobs {

// Limits for each workflow.
struct CellCacheLimits {
  std::size_t max_cells = 4096;
  std::size_t max_bytes = 64U << 20;
};

class CellCache {
 public:
  explicit CellCache(CellCacheLimits limits = {}) : limits_(limits) {}
  CellCache(CellCache&&) = default;
  CellCache& operator=(CellCache&&) = default;

  // Adds an instance, or marks it as used.
  void add(const InstanceState&, bool is_dirty);
  void remove(const InstanceId&);
  // Removes instances until the limits are kept, and returns them.
  std::vector<InstanceId> pop_excess();

 private:
  enum List : std::size_t { clean, dirty };
  struct WorkflowCache {
    std::array<std::list<InstanceId>, 2> lists;  // the least recently used instance first
    std::size_t bytes = 0;
  };
  struct Entry {
    List list = clean;
    std::list<InstanceId>::iterator position;
    std::size_t bytes = 0;
  };
  CellCacheLimits limits_;
  std::map<std::string, WorkflowCache> workflows_;
  std::map<InstanceId, Entry> entries_;
};

// Returns the approximate size of an instance in memory.
std::size_t estimate_memory(const InstanceState&);

}  // namespace mycojobs
