#include "coordinator/progress.h"

namespace mycojobs {

std::optional<LoadedRun> RunCache::take(Id context, Id flow) {
  auto node = runs_.extract({context, flow});
  if (node.empty()) return std::nullopt;
  nodes_ -= static_cast<std::uint32_t>(node.mapped().state.nodes.size());
  return std::move(node.mapped());
}

void RunCache::keep(Id context, Id flow, LoadedRun run) {
  const auto size = static_cast<std::uint32_t>(run.state.nodes.size());
  (void)take(context, flow);
  // What is dropped is read again from its checkpoint: any will do.
  while (!runs_.empty() && nodes_ + size > max_nodes_) {
    const auto [other_context, other_flow] = runs_.begin()->first;
    (void)take(other_context, other_flow);
  }
  nodes_ += size;
  runs_.emplace(std::pair{context, flow}, std::move(run));
}

void RunCache::forget_runs() {
  runs_.clear();
  nodes_ = 0;
}

std::shared_ptr<const FlowPlan> RunCache::plan(Id context, const std::string& hash) const {
  const auto found = plans_.find({context, hash});
  return found == plans_.end() ? nullptr : found->second;
}

void RunCache::keep_plan(Id context, std::shared_ptr<const FlowPlan> plan) {
  if (plans_.size() >= 1000) plans_.clear();
  std::string hash = plan->hash;
  plans_.insert_or_assign({context, std::move(hash)}, std::move(plan));
}

}  // namespace mycojobs
