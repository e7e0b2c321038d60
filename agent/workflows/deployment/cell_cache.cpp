#include "workflows/deployment/cell_cache.h"

#include <iterator>
#include <utility>

namespace mycojobs {

std::size_t estimate_memory(const InstanceState& instance) {
  std::size_t bytes = 2000 + 2 * (instance.id.workflow.size() + instance.id.key.size()) + instance.message.size() +
                      300 * instance.completed_intents.size();
  if (instance.state) bytes += instance.state->bytes.size();
  return bytes;
}

void CellCache::add(const InstanceState& instance, bool is_dirty) {
  remove(instance.id);
  WorkflowCache& cache = workflows_[instance.id.workflow];
  const List list = is_dirty ? dirty : clean;
  cache.lists[list].push_back(instance.id);
  const std::size_t bytes = estimate_memory(instance);
  cache.bytes += bytes;
  entries_[instance.id] = {list, std::prev(cache.lists[list].end()), bytes};
}

void CellCache::remove(const InstanceId& id) {
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return;
  WorkflowCache& cache = workflows_[id.workflow];
  cache.bytes -= entry->second.bytes;
  cache.lists[entry->second.list].erase(entry->second.position);
  entries_.erase(entry);
}

std::vector<InstanceId> CellCache::pop_excess() {
  std::vector<InstanceId> removed;
  for (auto& [workflow, cache] : workflows_) {
    for (auto& list : cache.lists) {
      while (!list.empty() && (cache.lists[clean].size() + cache.lists[dirty].size() > limits_.max_cells ||
                               cache.bytes > limits_.max_bytes)) {
        removed.push_back(list.front());
        remove(removed.back());
      }
    }
  }
  return removed;
}

}  // namespace mycojobs
