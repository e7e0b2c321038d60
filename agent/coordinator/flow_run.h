// The run of a flow in memory: read from checkpoint and journal, kept for the next look, written on the flow's record.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "domain/flow_decide.h"
#include "domain/flow_plan.h"
#include "domain/flow_state.h"
#include "domain/result_values.h"
#include "mycojobs/flows.h"
#include "mycojobs/result.h"

namespace mycojobs {

// FlowStore::read() after this revision, the last that can be, brings the record alone.
inline constexpr std::uint64_t kRecordAlone = 9'007'199'254'740'991;

struct LoadedRun {
  Flow record;
  std::shared_ptr<const FlowPlan> plan;
  RunState state;
  std::vector<std::string> anomalies;  // of the journal: entries that are no facts
  std::uint64_t checkpoint_at = 0;     // the revision of the latest checkpoint
};

// Runs in memory: a cache, right or wrong, of what the journal says; commits find out. One thread.
class RunCache {
 public:
  explicit RunCache(std::uint32_t max_nodes = 500000) : max_nodes_(max_nodes) {}
  std::optional<LoadedRun> take(Id context, Id flow);  // nothing: not there
  bool holds(Id context, Id flow) const { return runs_.contains({context, flow}); }
  void keep(Id context, Id flow, LoadedRun);
  void forget_runs();  // a server that came back may have lost what was read from it
  std::shared_ptr<const FlowPlan> plan(Id context, const std::string& hash) const;
  void keep_plan(Id context, std::shared_ptr<const FlowPlan>);

 private:
  std::uint32_t max_nodes_;
  std::uint32_t nodes_ = 0;
  std::map<std::pair<Id, Id>, LoadedRun> runs_;
  std::map<std::pair<Id, std::string>, std::shared_ptr<const FlowPlan>> plans_;
};

// From checkpoint and journal. Errors: not_found (no such flow), invalid (its definition is missing, changed or not to
// be read: named, with the remedy).
Result<LoadedRun> load_run(FlowStore&, Id context, Id flow, RunCache&);
// `read`: what was read last, with the events.
Result<LoadedRun> load_run(FlowStore&, Id context, Id flow, RunCache&, RunRead& read);
// Folds what was read and the pages that follow it.
Result<void> fold_facts(FlowStore&, Id context, Id flow, LoadedRun&, RunRead& read);

// The key of a node's job.
std::string node_job_key(const LoadedRun&, std::uint32_t node);
// The node of a job of this flow; nothing: it has no such job.
std::optional<std::uint32_t> node_of_job(const LoadedRun&, std::string_view job_key);
std::pair<Id, std::string> parent_of(const Flow&);  // flow and node; 0: none

// What plain clients read on the record.
inline constexpr std::size_t kNodesAlways = 100;  // of so many nodes the record tells at every commit
std::vector<FlowNode> nodes_of(const LoadedRun&);
std::string nodes_text(const LoadedRun&);
// A job's result as it stands on its record. Another client may have written values that are no texts.
HandedBack result_on_record(const std::string& result, const std::string& json_keys);
std::uint64_t result_bytes(const TextMap&);
void read_result(const PlanNode&, const std::string& result, JobSeen&);

}  // namespace mycojobs
