// The run of a flow in memory: it is loaded from checkpoint and journal, cached for the next commit, and written to the
// record of the flow.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "flows/flow_decider.h"
#include "flows/flow_plan.h"
#include "flows/flow_state.h"
#include "model/result_values.h"
#include "store/flow_store.h"

namespace mycojobs {

// The highest possible revision. FlowStore::read() after this revision returns the record without journal entries.
inline constexpr std::uint64_t kMaxFlowRevision = 9'007'199'254'740'991;

struct LoadedRun {
  Flow record;
  std::shared_ptr<const FlowPlan> plan;
  RunState state;
  std::vector<std::string> anomalies;     // entries of the journal that are not valid facts
  std::uint64_t checkpoint_revision = 0;  // revision of the latest checkpoint
};

// Cache of runs. An entry may be older than the journal: a commit with an old revision fails, and the caller loads the
// run again. Not thread-safe.
class RunCache {
 public:
  explicit RunCache(std::uint32_t max_nodes = 500000) : max_nodes_(max_nodes) {}
  // Removes and returns the run. Returns no value if the run is not cached.
  std::optional<LoadedRun> pop_cached_run(Id context, Id flow);
  bool is_cached(Id context, Id flow) const { return runs_.contains({context, flow}); }
  void cache_run(Id context, Id flow, LoadedRun);
  // Must be called after a reconnection, because the server may have lost writes.
  void clear_runs();
  std::shared_ptr<const FlowPlan> plan(Id context, const std::string& hash) const;
  void cache_plan(Id context, std::shared_ptr<const FlowPlan>);

 private:
  std::uint32_t max_nodes_;
  std::uint32_t nodes_ = 0;  // number of nodes of all cached runs
  std::map<std::pair<Id, Id>, LoadedRun> runs_;
  std::map<std::pair<Id, std::string>, std::shared_ptr<const FlowPlan>> plans_;
};

// Loads a run from checkpoint and journal. Errors: not_found (no such flow); invalid (the definition is missing,
// changed or unreadable; the message names it and the remedy).
Result<LoadedRun> load_run(FlowStore&, Id context, Id flow, RunCache&);
// Same, and stores the last page that was read, with its events, in `read`.
Result<LoadedRun> load_run(FlowStore&, Id context, Id flow, RunCache&, FlowReadResult& read);
// Applies the facts in `read` and all following pages to the run.
Result<void> fold_facts(FlowStore&, Id context, Id flow, LoadedRun&, FlowReadResult& read);

// Returns the key of the job of a node.
std::string node_job_key(const LoadedRun&, std::uint32_t node);
// Returns the node of a job of this flow, or no value if the flow has no such job.
std::optional<std::uint32_t> find_node_of_job(const LoadedRun&, std::string_view key);
// Returns flow and node of the parent. The flow is 0 without a parent.
std::pair<Id, std::string> parse_parent(const Flow&);

// Fields of the record for clients that read the record itself. The list of nodes is updated at every commit for flows
// of at most kMaxNodesInEachCommit nodes.
std::vector<FlowNode> build_flow_nodes(const LoadedRun&);
std::string flow_nodes_json(const LoadedRun&);
// Reads the result of a job from its record. Another client may have written values that are not texts.
ResultValues parse_recorded_result(const std::string& result, const std::string& json_keys);
void read_job_result(const PlanNode&, const std::string& result, JobObserved&);

}  // namespace mycojobs
