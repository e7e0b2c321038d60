// Two coordinators are alive. The first is suspended at any of its calls, briefly or until the other has finished the
// flow, and then resumes. Nothing is done twice.
#include "progress_stage.h"

namespace mycojobs {
namespace {

// A store that is suspended before one of its calls.
class StoppedFlows final : public FlowStore {
 public:
  StoppedFlows(std::unique_ptr<FlowStore> inner, std::uint64_t at, std::function<void()> meanwhile)
      : inner_(std::move(inner)), at_(at), meanwhile_(std::move(meanwhile)) {}
  std::uint64_t calls() const { return calls_; }

  Result<FlowIds> create(const FlowDraft& draft) override { return go().create(draft); }
  Result<bool> adopt(Id context, Id flow, Id caller) override { return go().adopt(context, flow, caller); }
  Result<void> put_jobs(Id context, Id flow, std::span<const Job> jobs) override {
    return go().put_jobs(context, flow, jobs);
  }
  Result<void> put_flow(const Flow& flow, const std::string& definition) override {
    return go().put_flow(flow, definition);
  }
  Result<std::string> definition(Id context, const std::string& hash) override {
    return go().definition(context, hash);
  }
  Result<FlowReadResult> read(Id context, Id flow, std::optional<std::uint64_t> after) override {
    return go().read(context, flow, after);
  }
  Result<std::uint64_t> commit(const FlowCommit& commit) override { return go().commit(commit); }
  Result<std::vector<FlowJobView>> job_views(Id context, std::span<const std::string> keys) override {
    return go().job_views(context, keys);
  }
  Result<void> await_flow(Id context, Id flow, Id other) override { return go().await_flow(context, flow, other); }
  Result<std::pair<std::vector<Id>, std::uint64_t>> due_flows(Id context, std::uint32_t max) override {
    return go().due_flows(context, max);
  }
  Result<std::vector<Id>> active_flows(Id context, Id after, std::uint32_t max) override {
    return go().active_flows(context, after, max);
  }
  Result<void> mark_due(Id context, Id flow) override { return go().mark_due(context, flow); }
  Result<bool> acquire_leadership(Id context, const std::string& instance, const std::string& where,
                                  std::uint32_t ttl_ms) override {
    return go().acquire_leadership(context, instance, where, ttl_ms);
  }
  Result<void> release_leadership(Id context, const std::string& instance) override {
    return go().release_leadership(context, instance);
  }
  Result<std::pair<std::string, std::string>> leader(Id context) override { return go().leader(context); }
  Result<std::vector<FlowSummary>> list(Id context, const std::string& name, Id before, std::uint32_t max,
                                        std::vector<std::string>* malformed) override {
    return go().list(context, name, before, max, malformed);
  }
  Result<std::uint32_t> retire(Id context, std::uint64_t retention_ms, std::uint32_t max) override {
    return go().retire(context, retention_ms, max);
  }
  Result<void> remove(Id context, Id flow) override { return go().remove(context, flow); }
  Result<void> put_schedule(Id context, const Schedule& schedule, const std::string& definition,
                            std::uint64_t expected) override {
    return go().put_schedule(context, schedule, definition, expected);
  }
  Result<std::vector<FlowWait>> flow_waits(Id context, Id flow, std::span<const Id> others) override {
    return go().flow_waits(context, flow, others);
  }
  Result<std::vector<CatalogEntry>> catalog(Id context, const std::string& name, const std::string& after,
                                            std::uint32_t max) override {
    return go().catalog(context, name, after, max);
  }
  Result<void> drop_entry(Id context, const std::string& name, const CatalogEntry& entry) override {
    return go().drop_entry(context, name, entry);
  }
  Result<std::vector<ScheduleIndexEntries>> schedule_states(Id context, std::span<const std::string> names) override {
    return go().schedule_states(context, names);
  }
  Result<void> repair_schedule(Id context, const std::string& name) override {
    return go().repair_schedule(context, name);
  }
  Result<std::vector<Schedule>> schedules(Id context) override { return go().schedules(context); }
  Result<void> remove_schedule(Id context, const std::string& name) override {
    return go().remove_schedule(context, name);
  }
  Result<FlowIndexEntries> read_index_entries(Id context, Id flow) override {
    return go().read_index_entries(context, flow);
  }
  Result<void> repair(Id context, Id flow, const FlowRepair& how) override { return go().repair(context, flow, how); }
  Result<std::uint64_t> now_ms(Id context) override { return go().now_ms(context); }

 private:
  FlowStore& go() {
    if (++calls_ == at_) meanwhile_();
    return *inner_;
  }
  std::unique_ptr<FlowStore> inner_;
  std::uint64_t at_, calls_ = 0;
  std::function<void()> meanwhile_;
};

constexpr const char* kDefinition = R"(
name: two
jobs:
  a: {script: "ok n=1", type: python, compensate: undo}
  b: {script: ok, type: python}
  join: {needs: [a, b], script: ok, type: python}
  child: {needs: [a], flow: {name: inner, jobs: {x: {script: ok, type: python}, y: {needs: [x], log: done}}}}
  said: {needs: [join, child], log: "both"}
  last: {needs: [said], script: fail, type: python}
  undo: {script: ok, type: python}
)";

struct TwoCoordinatorResult {
  std::string outcome;
  std::uint64_t calls = 0;
};

// at: the call before which the first coordinator is suspended. long_stop: suspended until the other is done.
TwoCoordinatorResult play(std::uint64_t at, bool long_stop) {
  FlowStage stage;
  NewFlow asked;
  asked.context = 1;
  asked.caller = 12;
  const Id flow = create_flow(stage.flows(), plan_of_yaml(kDefinition), asked).value().id;
  RunCache other_cache;
  const auto move_all = [&](FlowStore& store, RunCache& cache, bool recover) {
    const auto active = stage.flows().active_flows(1, 0, 10).value();
    for (const Id each : active) {
      ProgressRequest request;
      request.context = 1;
      request.flow = each;
      request.is_due = true;
      request.must_check_jobs = recover;
      const auto done = advance_run(store, cache, request);
      if (!done) ADD_FAILURE() << at << ": " << done.error().message;
    }
  };
  StoppedFlows first(stage.server().open_flows().value(), at, [&] {
    for (int i = 0; i < (long_stop ? 40 : 1); ++i) {
      move_all(stage.flows(), other_cache, true);
      stage.run_jobs();
      stage.clock().now += 20;
    }
  });
  RunCache first_cache;
  ProgressRequest start;
  start.context = 1;
  start.flow = flow;
  start.start = StartRun{"manual", 12};
  EXPECT_TRUE(advance_run(stage.flows(), first_cache, start));
  for (int i = 0; i < 60; ++i) {
    move_all(first, first_cache, false);
    stage.run_jobs();
    stage.clock().now += 20;
  }
  TwoCoordinatorResult played{stage.outcome(), first.calls()};
  for (const std::string& line : stage.find_violations()) played.outcome += line + "\n";
  return played;
}

TEST(TwoCoordinators, CoordinatorResumedAnywhereRepeatsNothing) {
  const TwoCoordinatorResult alone = play(0, false);
  ASSERT_EQ(alone.outcome.find("started"), std::string::npos) << alone.outcome;
  ASSERT_NE(alone.outcome.find("flow 1 undo: finished ok claimed 1"), std::string::npos) << alone.outcome;
  ASSERT_GT(alone.calls, 20U);
  for (std::uint64_t at = 1; at <= alone.calls; ++at) {
    for (const bool long_stop : {false, true}) {
      EXPECT_EQ(play(at, long_stop).outcome, alone.outcome)
          << "stopped before call " << at << (long_stop ? ", long" : "");
    }
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace mycojobs
