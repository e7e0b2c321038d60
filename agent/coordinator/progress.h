// How a flow moves on: read its run, decide, commit; again if another was faster. The one way, live and in recovery,
// for the coordinator's loop, for commands and for RPC: whoever calls it, the revision fences.
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

struct FlowProgress {
  FlowStatus status = FlowStatus::dispatched;
  std::string detail;
  std::uint64_t revision = 0;
  std::uint32_t facts = 0;  // that this call appended
  bool more = false;        // there is more to do at once
};
struct ProgressRequest {
  Id context = 0, flow = 0;
  std::optional<StartRun> start;       // this first
  std::optional<FlowControl> control;  // and this: its error is the answer
  bool due = false;                    // the store said so: it is put off until something is due again
  bool recover = false;  // look at every job, child and awaited flow that should be under way, whatever events say:
                         // planned but unscheduled first, then completed but unapplied
};
// The key of a node's job.
std::string node_job_key(const LoadedRun&, std::uint32_t node);
// The node of a job of this flow; nothing: it has no such job.
std::optional<std::uint32_t> node_of_job(const LoadedRun&, std::string_view job_key);

// Applies what has happened, what time has brought and what is asked for, until nothing is left or a bound is met.
Result<FlowProgress> progress(FlowStore&, RunCache&, const ProgressRequest&);

}  // namespace mycojobs
