// An in-memory run for tests: feeds decide(), keeps the journal, and applies effects to jobs and children as the store
// would. Checks the invariants after each decision.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "flows/flow_decider.h"
#include "flows/flow_plan.h"
#include "flows/flow_state.h"

namespace mycojobs {

// Flows used by several tests.
inline constexpr const char* kDiamond = R"(
name: diamond
jobs:
  a: {script: x, type: python}
  b: {needs: [a], script: x, type: python}
  c: {needs: [a], script: x, type: python}
  d: {needs: [b, c], script: x, type: python}
)";

inline constexpr const char* kSaga = R"({name: s, jobs: {
  a: {script: x, type: python, compensate: undo_a}, b: {needs: [a], script: x, type: python, compensate: undo_b},
  c: {needs: [b], script: x, type: python, compensate: undo_c}, undo_a: {script: x, type: python},
  undo_b: {script: x, type: python}, undo_c: {script: x, type: python}}})";

FlowPlan plan_of_yaml(const std::string& text);  // throws std::runtime_error with the problems

class RunWorld {
 public:
  enum class JobPhase { planned, queued, ended };
  struct JobRecord {
    JobPhase phase = JobPhase::planned;
    bool by_flow = false;  // the flow ended the job itself
    bool cancel_asked = false;
    std::string status, detail, error;
    TextMap values;
    int queued = 0;  // how often the job was queued
  };
  struct Child {
    std::uint32_t node = 0;
    bool cancel_asked = false, ended = false;
  };

  explicit RunWorld(FlowPlan plan);
  explicit RunWorld(const std::string& yaml) : RunWorld(plan_of_yaml(yaml)) {}

  // Decides, appends the facts, applies the effects, and continues while work is left.
  Result<void> apply(const decltype(FlowEvent::body)& event, bool continues = true);
  void start() { (void)apply(StartRun{"manual", 0}); }
  // Ends a job as its runner would, and notifies the run.
  void end_job(const std::string& name, const std::string& status = "finished", const TextMap& values = {});
  void fail_job(const std::string& name) { end_job(name, "error"); }
  void observe_job(std::uint32_t node);  // the run reads the current state of the job
  Result<void> control(FlowControl::Verb, const std::string& target = "", const std::string& key = "", Id actor = 7);
  void advance_clock(std::uint64_t ms);

  // Simulates a crash: the in-memory state is rebuilt from the journal, or from a checkpoint and the facts after it.
  void crash();
  void crash_to_checkpoint(const std::string& checkpoint);

  std::uint32_t index(const std::string& name) const { return *plan.find(name); }
  const NodeState& node(const std::string& name) const { return run.nodes[index(name)]; }
  const JobRecord& job(const std::string& name) const { return jobs[index(name)]; }
  std::string describe_node(const std::string& name) const;  // such as "completed ok"
  std::string describe_flow() const;                         // such as "started running"
  int count(const std::string& kind, const std::string& node = "") const;
  // Names of the nodes in the order of their facts of this kind.
  std::vector<std::string> get_order(const std::string& kind) const;

  FlowPlan plan;
  RunState run;
  std::vector<RunFact> journal;
  std::vector<JobRecord> jobs;
  std::map<Id, Child> children;
  std::set<std::pair<Id, std::uint32_t>> awaited;
  std::vector<std::string> violations;  // violated invariants; must stay empty
  std::uint64_t now = 1000;
  DecideLimits limits;
  bool start_children = true;
  Id next_child = 100;
  std::size_t decisions = 0;

 private:
  void effect(const Effect&);
  void check(const RunState& before, const Decision&);
};

}  // namespace mycojobs
