// What progress() is made of: a pass reads a run, decides, and makes one commit of it. Nobody else includes this.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/create.h"
#include "coordinator/progress.h"
#include "domain/result_values.h"

namespace mycojobs {

// load_run.cpp. `read`: what was read last, with the events.
Result<LoadedRun> load_run(FlowStore&, Id context, Id flow, RunCache&, RunRead& read);
// Folds what was read and the pages that follow it.
Result<void> fold_facts(FlowStore&, Id context, Id flow, LoadedRun&, RunRead& read);

// The decisions of one pass, one after the other: what one commit will hold.
class Step {
 public:
  Step(LoadedRun& run, std::uint64_t now_ms);
  // After an error the state of the run is gone: it must be loaded again.
  Result<void> take(decltype(FlowEvent::what) what);
  bool full() const;
  bool ends_flow() const;    // it was under way, and is no longer
  bool begins_flow() const;  // it was not under way, and is now
  std::uint64_t now_ms() const { return now_ms_; }
  LoadedRun& run() { return run_; }
  const LoadedRun& run() const { return run_; }
  const RunState& state() const { return run_.state; }

  std::vector<RunFact> facts;
  std::vector<Effect> effects;
  std::vector<std::string> again;  // jobs that the journal has dispatched and the store still has as planned
  std::uint32_t events_taken = 0;

 private:
  LoadedRun& run_;
  std::uint64_t now_ms_;
  FlowStatus was_;
  std::size_t planted_bytes_ = 0;  // of records that the commit will write
};

// What a commit cannot do itself: other flows. Each part may be done twice.
struct Afterwards {
  std::vector<std::uint32_t> create;                // children of these nodes
  std::vector<std::pair<std::uint32_t, Id>> start;  // node and child: linked, not begun yet
  std::vector<Id> cancel;
  std::vector<Id> await;
  bool empty() const { return create.empty() && start.empty() && cancel.empty() && await.empty(); }
};

// progress_events.cpp: what has happened, as decisions.
Result<void> take_events(FlowStore&, const RunRead&, Step&);
// How the jobs stand, whatever events say. False: the step is full before all were looked at.
Result<bool> take_jobs(FlowStore&, Step&);
Result<FlowSeen> look_at(FlowStore&, Id context, Id flow);

// progress_children.cpp
void children_of(const std::vector<Effect>&, const RunState&, Afterwards&);
// How other flows stand, of a run that nobody here has driven so far: what is owed, and children that were linked and
// never begun, or have ended.
Result<void> look_at_children(FlowStore&, Step&, Afterwards&);
Result<Id> create_child(FlowStore&, const LoadedRun&, std::uint32_t node);  // not started
Result<void> start_child(FlowStore&, RunCache&, Id context, Id parent, Id caller, Id child);
Result<void> cancel_child(FlowStore&, RunCache&, const LoadedRun&, Id child, const std::string& why);
// Error conflict: the flow has a parent, which no longer waits for it.
Result<void> check_parent(FlowStore&, const LoadedRun&);
std::pair<Id, std::string> parent_of(const Flow&);  // flow and node; 0: none

// progress_commit.cpp. All but due_ms. Reads the results if the step ends the flow.
Result<FlowCommit> commit_of(FlowStore&, Step&);

// create.cpp. Of jobs that exist: the definition of what their records and `nodes` say, and a flow of it under this id.
Result<FlowPlan> plan_of_jobs(const std::string& name, const TextMap& env_vars, const std::vector<Job>&,
                              const nlohmann::json& nodes);
Result<Flow> put_all(FlowStore&, const FlowPlan&, const NewFlow&, Id flow, std::vector<Job>);

// node_job.cpp: the record of a node's job, as it is created. A node of kind each stands for its places there.
Job job_of(const Flow&, const FlowPlan&, std::uint32_t node);
// What is known only when a job is queued: what the flow hands over, and whom it reads.
class Dispatches {
 public:
  explicit Dispatches(const LoadedRun& run) : run_(run) {}
  FlowDispatch of(std::uint32_t node);

 private:
  const std::vector<std::string>& elements(std::uint32_t each);

  const LoadedRun& run_;
  std::map<std::uint32_t, std::vector<std::string>> elements_;
};

// flow_record.cpp
inline constexpr std::size_t kNodesAlways = 100;  // of so many nodes the record tells at every commit
std::vector<FlowNode> nodes_of(const LoadedRun&);
std::string nodes_text(const LoadedRun&);
std::uint64_t result_bytes(const TextMap&);
void read_result(const PlanNode&, const std::string& result, JobSeen&);
// Of all completed nodes, as far as there is room.
Result<HandedBack> gather_results(FlowStore&, const Step&);

}  // namespace mycojobs
