// A pass of the driver reads a run, decides its events, and stores the decisions in one commit.
#include "flows/flow_progress.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/parse.h"
#include "flows/flow_creation.h"
#include "flows/node_job.h"
#include "jobs/state_machines.h"
#include "model/codec.h"
#include "model/result_values.h"
#include "model/trace_context.h"
#include "text/json.h"
#include "text/plural.h"

namespace mycojobs {
namespace {

// The decisions of one pass, which one commit stores.
class FlowCommitBuilder {
 public:
  FlowCommitBuilder(LoadedRun& run, std::uint64_t now_ms);
  // After an error the state of the run is undefined, and the run must be loaded again.
  Result<void> apply(decltype(FlowEvent::body) event);
  bool is_full() const;
  // Return whether the decisions of this pass end or start the flow.
  bool ends_flow() const;
  bool starts_flow() const;
  std::uint64_t now_ms() const { return now_ms_; }
  LoadedRun& run() { return run_; }
  const LoadedRun& run() const { return run_; }
  const RunState& state() const { return run_.state; }

  std::vector<RunFact> facts;
  std::vector<Effect> effects;
  std::vector<std::string> planned_job_keys;  // jobs that are dispatched in the journal but planned in the store
  std::uint32_t applied_event_count = 0;

 private:
  LoadedRun& run_;
  std::uint64_t now_ms_;
  FlowStatus initial_status_;
  std::size_t new_record_bytes_ = 0;  // size of the records that the commit will write
};

// Follow-up actions on other flows, which a commit cannot perform. Each action can be repeated.
struct PostCommitActions {
  std::vector<std::uint32_t> create;                // nodes that need a new child flow
  std::vector<std::pair<std::uint32_t, Id>> start;  // node and child flow that is linked but not started
  std::vector<Id> cancel;
  std::vector<Id> await;
  bool empty() const { return create.empty() && start.empty() && cancel.empty() && await.empty(); }
};

// Applies the events that were read.
Result<void> apply_events(FlowStore&, const FlowReadResult&, FlowCommitBuilder&);
// Applies the states of all active jobs, independent of events. Returns false if the commit was full before all jobs
// were processed.
Result<bool> apply_job_states(FlowStore&, FlowCommitBuilder&);
Result<FlowObserved> observe_flow(FlowStore&, Id context, Id flow);

void collect_child_actions(const std::vector<Effect>&, const RunState&, PostCommitActions&);
// Collects unfinished follow-up actions of a run that this process has not advanced before, and decides the ends of
// child flows. Linked child flows that were not started are added to the actions.
Result<void> check_children(FlowStore&, FlowCommitBuilder&, PostCommitActions&);
Result<Id> create_child(FlowStore&, const LoadedRun&, std::uint32_t node);  // does not start the child
Result<void> start_child(FlowStore&, RunCache&, Id context, Id parent, Id caller, Id child);
Result<void> cancel_child(FlowStore&, RunCache&, const LoadedRun&, Id child, const std::string& reason);
// Error conflict: the flow has a parent that no longer waits for the flow.
Result<void> check_parent(FlowStore&, const LoadedRun&);

// Builds the commit without due_ms. Reads the results of the jobs if the commit ends the flow.
Result<FlowCommit> build_commit(FlowStore&, FlowCommitBuilder&);

// Collects the results of all completed nodes, up to the size limit.
Result<ResultValues> gather_results(FlowStore&, const FlowCommitBuilder&);

constexpr std::size_t kMaxEventsBatch = 100;       // events, or observed jobs, whose results can have 1 MiB each
constexpr std::size_t kMaxResultsBatch = 100;      // jobs for each read
constexpr std::size_t kMaxPlannedJobsBatch = 200;  // jobs for each commit

JobObserved observe_job(const LoadedRun& run, std::uint32_t node, const FlowJobView& view) {
  JobObserved observed;
  observed.node = node;
  if (view.state == "absent") {
    observed.ended = true;
    observed.status = to_string(JobStatus::error);
    observed.detail = "dead_letter";
    observed.error = view.job_key + " has no record any more: another client deleted it";
    return observed;
  }
  // A record without a state was written by another client, or its claim was deleted.
  observed.ended = view.state == kJobStateEnded ||
                   (view.state.empty() &&
                    (view.status == to_string(JobStatus::finished) || view.status == to_string(JobStatus::error)));
  if (!observed.ended) return observed;
  observed.status = view.status;
  observed.detail = view.detail;
  observed.error = view.error;
  read_job_result(run.plan->nodes[node], view.result, observed);
  return observed;
}

FlowCommitBuilder::FlowCommitBuilder(LoadedRun& run, std::uint64_t now_ms)
    : run_(run), now_ms_(now_ms), initial_status_(run.state.status) {}

Result<void> FlowCommitBuilder::apply(decltype(FlowEvent::body) event) {
  // Limits the size of a commit if many events arrive at the same time.
  DecideLimits limits;
  constexpr std::uint32_t kMinFacts = 50;
  limits.max_facts = std::max(
      kMinFacts, limits.max_facts - static_cast<std::uint32_t>(std::min<std::size_t>(limits.max_facts, facts.size())));
  limits.max_bytes -= std::min(limits.max_bytes, new_record_bytes_);
  auto decided = decide(*run_.plan, std::move(run_.state), {now_ms_, std::move(event)}, limits);
  if (!decided) return fail(decided.error(), "flow " + std::to_string(run_.record.id));
  run_.state = std::move(decided->state);
  for (const Effect& effect : decided->effects) {
    const bool queues_job = effect.kind == Effect::Kind::dispatch || effect.kind == Effect::Kind::requeue;
    const bool writes_record = queues_job && run_.plan->nodes[effect.node].each_node;
    if (writes_record) new_record_bytes_ += estimate_element_bytes(*run_.plan, effect.node);
  }
  std::move(decided->facts.begin(), decided->facts.end(), std::back_inserter(facts));
  std::move(decided->effects.begin(), decided->effects.end(), std::back_inserter(effects));
  return {};
}

bool FlowCommitBuilder::is_full() const { return facts.size() >= DecideLimits().max_facts; }
bool FlowCommitBuilder::ends_flow() const { return !is_terminal(initial_status_) && is_terminal(run_.state.status); }
bool FlowCommitBuilder::starts_flow() const {
  return initial_status_ != FlowStatus::started && run_.state.status == FlowStatus::started;
}

// The result for a flow without a record. A caller that may not read a flow gets the same result, so that it does not
// learn whether the flow exists.
FlowObserved make_absent_flow(Id flow) {
  FlowObserved observed;
  observed.flow = flow;
  observed.error = "flow " + std::to_string(flow) + " does not exist";
  return observed;
}

Result<FlowObserved> observe_flow(FlowStore& store, Id context, Id flow) {
  MJ_TRY(read, store.read(context, flow, kMaxFlowRevision));
  if (read.record.empty()) return make_absent_flow(flow);
  FlowObserved observed;
  observed.flow = flow;
  auto decoded = decode<Flow>(read.record);
  observed.status = decoded.record.status;
  observed.error = std::move(decoded.record.error);
  if (observed.status == FlowStatus::error && observed.error.empty()) {
    observed.error = "flow " + std::to_string(flow) + " ended as error (" + decoded.record.detail + ")";
  }
  observed.result = std::move(decoded.record.result);
  observed.result_json = std::move(decoded.record.result_json);
  return observed;
}

Result<void> apply_events(FlowStore& store, const FlowReadResult& read, FlowCommitBuilder& builder) {
  const std::size_t count = std::min(read.events.size(), kMaxEventsBatch);
  std::vector<std::string> keys;
  std::set<std::string> added_keys;
  for (std::size_t i = 0; i < count; ++i) {
    const FlowEventText& event = read.events[i];
    if (event.kind == "job" && find_node_of_job(builder.run(), event.key) && added_keys.insert(event.key).second)
      keys.push_back(event.key);
  }
  std::map<std::string, FlowJobView> views;
  for (const FlowJobView& view : read.jobs) views[view.job_key] = view;
  std::erase_if(keys, [&](const std::string& key) { return views.contains(key); });
  if (!keys.empty()) {
    MJ_TRY(missing_views, store.job_views(builder.run().record.context_id, keys));
    for (FlowJobView& view : missing_views) views[view.job_key] = std::move(view);
  }
  std::size_t invalid_event_count = 0;
  std::string first_invalid_event;
  for (std::size_t i = 0; i < count && !builder.is_full(); ++i) {
    const FlowEventText& event = read.events[i];
    std::uint64_t flow = 0;
    if (const auto node = event.kind == "job" ? find_node_of_job(builder.run(), event.key) : std::nullopt) {
      if (const auto view = views.find(event.key); view != views.end()) {
        MJ_CHECK(builder.apply(observe_job(builder.run(), *node, view->second)));
      }
    } else if ((event.kind == "flow" || event.kind == "absent") && event.key.starts_with("flow:") &&
               parse_u64(std::string_view(event.key).substr(5), flow) && flow > 0 && flow <= UINT32_MAX) {
      const Id id = static_cast<Id>(flow);
      MJ_TRY(observed_flow,
             event.kind == "absent" ? make_absent_flow(id) : observe_flow(store, builder.run().record.context_id, id));
      if (is_terminal(observed_flow.status)) MJ_CHECK(builder.apply(std::move(observed_flow)));
    } else if (invalid_event_count++ == 0) {
      first_invalid_event = event.kind.substr(0, 40) + ' ' + event.key.substr(0, 80);
    }
    ++builder.applied_event_count;
  }
  // All ignored events share one log line.
  if (invalid_event_count > 0) {
    log(LogLevel::warn, "coordinator", "flow {}: invalid journal entries were skipped: {}, the first is {}",
        append_trace_id(std::to_string(builder.run().record.id), builder.run().record.traceparent),
        count_with_noun(invalid_event_count, "event"), first_invalid_event);
  }
  return {};
}

Result<bool> apply_job_states(FlowStore& store, FlowCommitBuilder& builder) {
  std::vector<std::uint32_t> nodes;
  for (const std::uint32_t i : builder.state().in_flight) {
    if (builder.run().plan->nodes.at(i).kind == NodeKind::job) nodes.push_back(i);
  }
  // Ends are applied after all planned jobs were collected, so that this commit queues the planned jobs even if the
  // commit becomes full.
  std::vector<JobObserved> ended_jobs;
  for (std::size_t first = 0; first < nodes.size(); first += kMaxEventsBatch) {
    const std::size_t end = std::min(first + kMaxEventsBatch, nodes.size());
    std::vector<std::string> keys;
    for (std::size_t i = first; i < end; ++i) keys.push_back(node_job_key(builder.run(), nodes[i]));
    MJ_TRY(views, store.job_views(builder.run().record.context_id, keys));
    for (std::size_t i = first; i < end && i - first < views.size(); ++i) {
      const FlowJobView& view = views[i - first];
      if (view.state == kJobStatePlanned && builder.planned_job_keys.size() < kMaxPlannedJobsBatch)
        builder.planned_job_keys.push_back(view.job_key);
      JobObserved job = observe_job(builder.run(), nodes[i], view);
      if (job.ended) ended_jobs.push_back(std::move(job));
    }
  }
  for (JobObserved& job : ended_jobs) {
    if (builder.is_full()) return false;
    MJ_CHECK(builder.apply(std::move(job)));
  }
  return builder.planned_job_keys.size() < kMaxPlannedJobsBatch;
}

std::string format_flow_key(Id flow) { return "flow:" + std::to_string(flow); }

void collect_child_actions(const std::vector<Effect>& effects, const RunState& state, PostCommitActions& actions) {
  for (const Effect& effect : effects) {
    switch (effect.kind) {
      case Effect::Kind::start_child:
        actions.create.push_back(effect.node);
        break;
      case Effect::Kind::cancel_child: {
        const Id child = effect.flow != 0 ? effect.flow : state.nodes.at(effect.node).child;
        if (child != 0) actions.cancel.push_back(child);
        break;
      }
      case Effect::Kind::await_flow:
        actions.await.push_back(effect.flow);
        break;
      default:
        break;
    }
  }
}

Result<void> check_children(FlowStore& store, FlowCommitBuilder& builder, PostCommitActions& actions) {
  collect_child_actions(pending_child_actions(*builder.run().plan, builder.state()), builder.state(), actions);
  // A copy, since apply() changes the set.
  const auto awaited_flows = builder.state().awaited_flows;
  for (const auto& [child, node] : awaited_flows) {
    const NodeState& child_node = builder.state().nodes.at(node);
    if (child_node.child != child || is_terminal(child_node.status)) continue;
    MJ_TRY(observed, observe_flow(store, builder.run().record.context_id, child));
    if (is_terminal(observed.status)) {
      MJ_CHECK(builder.apply(std::move(observed)));
    } else if (observed.status == FlowStatus::dispatched && child_node.detail != "cancelling") {
      actions.start.emplace_back(node, child);
    }
  }
  return {};
}

Result<Id> create_child(FlowStore& store, const LoadedRun& run, std::uint32_t node) {
  const PlanNode& plan_node = run.plan->nodes.at(node);
  const std::string subject = format_flow_key(run.record.id) + " node " + plan_node.name;
  const auto definition = parse_json(plan_node.child, kMaxDefinitionBytes);
  if (!definition) return fail(definition.error(), subject);
  const ParsedPlan read = read_plan(*definition);
  if (!read.plan) return fail(Code::invalid, subject + ": flow: " + join(read.problems));
  NewFlow child;
  child.traceparent = run.record.traceparent;
  child.context = run.record.context_id;
  child.caller = run.record.caller_id;
  // Precedence of variables: the node, then the definition of the child, then the parent flow.
  child.env_vars = plan_node.job.env_vars;
  child.env_vars.insert(read.plan->env_vars.begin(), read.plan->env_vars.end());
  child.env_vars.insert(run.record.env_vars.begin(), run.record.env_vars.end());
  const std::string key = plan_node.child_key.empty() ? plan_node.name : plan_node.child_key;
  child.idempotency_key = "child:" + std::to_string(run.record.id) + ":" + key;
  // Each run of the node gets a child flow of its own.
  if (const auto runs = run.state.nodes.at(node).runs; runs > 1) child.idempotency_key += "#" + std::to_string(runs);
  child.parent = format_flow_key(run.record.id) + " " + plan_node.name;
  auto created = create_flow(store, *read.plan, child);
  if (!created) return fail(created.error(), subject);
  return created->id;
}

Result<void> start_child(FlowStore& store, RunCache& cache, Id context, Id parent, Id caller, Id child) {
  ProgressRequest request;
  request.context = context;
  request.flow = child;
  request.start = StartRun{format_flow_key(parent), caller};
  if (auto child_progress = advance_run(store, cache, request); !child_progress)
    return fail(child_progress.error(), format_flow_key(child));
  return {};
}

Result<void> cancel_child(FlowStore& store, RunCache& cache, const LoadedRun& run, Id child,
                          const std::string& reason) {
  MJ_TRY(observed, observe_flow(store, run.record.context_id, child));
  // The event of the end may have been lost, and a deleted flow sends none. An additional event has no effect.
  if (is_terminal(observed.status)) return store.await_flow(run.record.context_id, run.record.id, child);
  ProgressRequest request;
  request.context = run.record.context_id;
  request.flow = child;
  request.control = FlowControl{FlowControl::Verb::cancel, "", run.record.caller_id, true, reason, "", ""};
  auto child_progress = advance_run(store, cache, request);
  // A conflict means that the child has ended since. After not_found (the child's mark is lost) the parent stays due
  // and tries again.
  if (!child_progress && child_progress.error().code != Code::conflict)
    return fail(child_progress.error(), format_flow_key(child));
  return {};
}

Result<void> check_parent(FlowStore& store, const LoadedRun& run) {
  const auto [parent, node] = parse_parent(run.record);
  if (parent == 0) return {};
  MJ_TRY(read, store.read(run.record.context_id, parent, kMaxFlowRevision));
  const std::string name = format_flow_key(run.record.id);
  if (read.record.empty())
    return fail(Code::conflict, name + ": its parent " + format_flow_key(parent) + " no longer exists");
  const Flow record = decode<Flow>(read.record).record;
  if (is_terminal(record.status))
    return fail(Code::conflict, name + ": its parent " + format_flow_key(parent) + " has ended");
  return {};
}

// Returns the interval of checkpoints. A checkpoint is as large as the run, so the interval grows with the number of
// nodes.
std::uint64_t compute_checkpoint_interval(const LoadedRun& run) {
  constexpr std::uint64_t kMinFacts = 256;
  return std::max<std::uint64_t>(kMinFacts, run.plan->nodes.size() / 2);
}

FlowEnd make_node_end(const LoadedRun& run, const Effect& effect) {
  FlowEnd end{node_job_key(run, effect.node), {}};
  const bool is_finished = effect.kind == Effect::Kind::finish;
  end.fields.emplace_back("status", to_string(is_finished ? JobStatus::finished : JobStatus::error));
  end.fields.emplace_back("detail", effect.detail.empty() && is_finished ? "ok" : effect.detail);
  if (!effect.error.empty()) end.fields.emplace_back("error", effect.error);
  if (!effect.values.empty()) end.fields.emplace_back("result", dump_json(nlohmann::json(effect.values)));
  if (!effect.values_json.empty())
    end.fields.emplace_back("result_json", dump_json(nlohmann::json(effect.values_json)));
  return end;
}

// An element of an `each` node that was never dispatched has no record that could be ended or planned again.
bool has_record(const LoadedRun& run, std::uint32_t node) {
  return !run.plan->nodes[node].each_node || run.state.nodes[node].runs > 0;
}

void add_effects(const FlowCommitBuilder& builder, FlowCommit& commit) {
  const LoadedRun& run = builder.run();
  DispatchFieldBuilder dispatches(run);
  for (const Effect& effect : builder.effects) {
    if (!has_record(run, effect.node)) continue;
    switch (effect.kind) {
      case Effect::Kind::dispatch:
        commit.dispatches.push_back(dispatches.build(effect.node));
        break;
      case Effect::Kind::finish:
      case Effect::Kind::fail:
        commit.ends.push_back(make_node_end(run, effect));
        break;
      case Effect::Kind::cancel_job:
        commit.cancelled_jobs.push_back(node_job_key(run, effect.node));
        break;
      case Effect::Kind::requeue:
        commit.requeued_jobs.push_back(node_job_key(run, effect.node));
        // If a quota rejected the record of an element before, this dispatch writes the record.
        if (run.plan->nodes[effect.node].each_node) commit.dispatches.push_back(dispatches.build(effect.node));
        break;
      case Effect::Kind::replan:
        commit.replanned_jobs.push_back(node_job_key(run, effect.node));
        break;
      case Effect::Kind::start_child:
      case Effect::Kind::cancel_child:
      case Effect::Kind::await_flow:
        break;  // performed after the commit
    }
  }
  for (const std::string& key : builder.planned_job_keys) commit.dispatches.push_back({key, {}});
}

Fields make_record_fields(const FlowCommitBuilder& builder) {
  const RunState& state = builder.state();
  Fields fields{{"status", std::string(to_string(state.status))},
                {"detail", state.detail},
                {"error", state.error},
                {"started_ms", std::to_string(state.started_ms)},
                {"ended_ms", std::to_string(state.ended_ms)},
                {"updated_at", std::to_string(builder.now_ms() / 1000)}};
  const bool is_small = state.nodes.size() <= kMaxNodesInEachCommit;
  if (is_small || builder.starts_flow() || builder.ends_flow())
    fields.emplace_back("nodes", flow_nodes_json(builder.run()));
  return fields;
}

Result<ResultValues> gather_results(FlowStore& store, const FlowCommitBuilder& builder) {
  const LoadedRun& run = builder.run();
  std::map<std::uint32_t, ResultValues> new_results;  // results of this commit, which are not stored yet
  for (const Effect& effect : builder.effects) {
    if (effect.kind == Effect::Kind::finish) new_results[effect.node] = {effect.values, effect.values_json};
  }
  ResultValues results;
  std::size_t free_bytes = kMaxFlowResultBytes;
  // If the results exceed the limit, decide() has failed the flow, and its record gets the results that fit.
  const auto add = [&](std::uint32_t node, const ResultValues& values) {
    const std::size_t bytes = result_bytes(values.texts);
    if (bytes > free_bytes) return;
    free_bytes -= bytes;
    const std::string prefix = run.plan->nodes[node].name + ".";
    for (const auto& [key, value] : values.texts) results.texts[prefix + key] = value;
    for (const std::string& key : values.json) {
      if (values.texts.contains(key)) results.json.push_back(prefix + key);
    }
  };
  std::vector<std::string> keys;
  std::vector<std::uint32_t> nodes;
  const auto read_batch = [&]() -> Result<void> {
    MJ_TRY(views, store.job_views(run.record.context_id, keys));
    for (std::size_t i = 0; i < views.size() && i < nodes.size(); ++i) {
      if (views[i].status == kJobStatusFinished)
        add(nodes[i], parse_recorded_result(views[i].result, views[i].result_json));
    }
    keys.clear();
    nodes.clear();
    return {};
  };
  for (std::uint32_t i = 0; i < run.state.nodes.size(); ++i) {
    if (run.state.nodes[i].status != NodeStatus::completed) continue;
    if (const auto new_result = new_results.find(i); new_result != new_results.end()) {
      add(i, new_result->second);
      continue;
    }
    keys.push_back(node_job_key(run, i));
    nodes.push_back(i);
    if (keys.size() == kMaxResultsBatch) MJ_CHECK(read_batch());
  }
  if (!keys.empty()) MJ_CHECK(read_batch());
  return results;
}

Result<FlowCommit> build_commit(FlowStore& store, FlowCommitBuilder& builder) {
  LoadedRun& run = builder.run();
  FlowCommit commit;
  commit.context = run.record.context_id;
  commit.flow = run.record.id;
  commit.traceparent = run.record.traceparent;
  commit.expected_revision = run.state.revision - builder.facts.size();
  commit.applied_events = builder.applied_event_count;
  commit.facts = builder.facts;
  add_effects(builder, commit);
  commit.ended = is_terminal(run.state.status);
  commit.parent = commit.ended ? parse_parent(run.record).first : 0;
  if (builder.facts.empty()) return commit;
  commit.record_fields = make_record_fields(builder);
  if (builder.ends_flow()) {
    MJ_TRY(result, gather_results(store, builder));
    commit.record_fields.emplace_back("result", dump_json(nlohmann::json(result.texts)));
    commit.record_fields.emplace_back("result_json", dump_json(nlohmann::json(result.json)));
  }
  if (run.state.revision - run.checkpoint_revision >= compute_checkpoint_interval(run)) {
    commit.checkpoint = checkpoint(*run.plan, run.state);
  }
  return commit;
}

// Returns the number of nodes that wait for an approval or a gate. Scans at most kMaxChecks waiting nodes, so that no
// pass scans all nodes of a large flow.
std::size_t count_waiting_gates(const LoadedRun& run) {
  constexpr std::size_t kMaxChecks = 1000;
  std::size_t gates = run.state.gated.size(), check_count = 0;
  for (const std::uint32_t node : run.state.waiting) {
    const NodeKind kind = run.plan->nodes.at(node).kind;
    if (kind == NodeKind::approval || kind == NodeKind::pause) ++gates;
    if (++check_count == kMaxChecks) break;
  }
  return gates;
}

constexpr int kMaxCommits = 20;     // limit for each call, so that one flow does not delay other flows
constexpr int kMaxConflicts = 100;  // limit for each call; at each conflict another process has advanced the flow
// Due time of a flow while this call continues the work on it. If the call does not complete, another process finds the
// flow.
constexpr std::uint64_t kContinueDelayMs = 1000;

class FlowDriver {
 public:
  FlowDriver(FlowStore& store, RunCache& cache, const ProgressRequest& request)
      : store_(store), cache_(cache), request_(request), start_(request.start), control_(request.control) {
    is_due_ = request.is_due;
    must_check_jobs_ = request.must_check_jobs;
  }
  Result<FlowProgress> drive();

 private:
  Result<LoadedRun> load_current_run(FlowReadResult& read);
  Result<void> decide_step(const FlowReadResult& read, FlowCommitBuilder& builder);
  Result<bool> commit(FlowCommitBuilder& builder, const FlowReadResult& read, bool is_last);
  Result<void> run_post_commit_actions(const LoadedRun& run);

  FlowStore& store_;
  RunCache& cache_;
  const ProgressRequest& request_;
  std::optional<StartRun> start_;
  std::optional<FlowControl> control_;
  bool is_due_ = false, must_check_jobs_ = false;
  // The run was loaded or another process has advanced it, so its child flows must be checked.
  bool must_check_children_ = false;
  PostCommitActions post_commit_;
  std::vector<ChildStarted> started_children_;  // child flows to be linked in the journal
  FlowProgress result_;
  bool has_more_work_ = false;
};

Result<LoadedRun> FlowDriver::load_current_run(FlowReadResult& read) {
  if (auto cached = cache_.pop_cached_run(request_.context, request_.flow)) {
    MJ_TRY(newer, store_.read(request_.context, request_.flow, cached->state.revision));
    read = std::move(newer);
    if (!read.record.empty() && read.revision >= cached->state.revision) {
      // Another process has advanced the flow, and may have crashed before its follow-up actions.
      must_check_children_ = must_check_children_ || !read.facts.empty();
      MJ_CHECK(fold_facts(store_, request_.context, request_.flow, *cached, read));
      return std::move(*cached);
    }
  }
  must_check_children_ = true;
  return load_run(store_, request_.context, request_.flow, cache_, read);
}

Result<void> FlowDriver::decide_step(const FlowReadResult& read, FlowCommitBuilder& builder) {
  // A request has a commit of its own, since its error is returned to the caller.
  if (start_) {
    if (builder.state().status == FlowStatus::dispatched) MJ_CHECK(check_parent(store_, builder.run()));
    return builder.apply(*start_);
  }
  if (control_) return builder.apply(*control_);
  if (builder.state().status == FlowStatus::dispatched) {
    builder.applied_event_count = static_cast<std::uint32_t>(std::min(read.events.size(), kMaxEventsBatch));
    must_check_jobs_ = must_check_children_ = false;
    return {};  // a new flow changes only when it is started
  }
  for (const ChildStarted& started : started_children_) MJ_CHECK(builder.apply(started));
  if (must_check_jobs_ && !is_terminal(builder.state().status)) {
    if (auto checked = check_parent(store_, builder.run()); !checked) {
      if (checked.error().code != Code::conflict) return checked;
      FlowControl cancel;
      cancel.verb = FlowControl::Verb::cancel;
      cancel.actor = builder.run().record.caller_id;
      cancel.admin = true;
      cancel.comment = checked.error().message;
      if (!builder.state().cancelling) MJ_CHECK(builder.apply(std::move(cancel)));
    }
    MJ_TRY(is_complete, apply_job_states(store_, builder));
    must_check_jobs_ = !is_complete;
  }
  if (must_check_children_ && !is_terminal(builder.state().status))
    MJ_CHECK(check_children(store_, builder, post_commit_));
  must_check_children_ = false;
  if (!builder.is_full()) MJ_CHECK(apply_events(store_, read, builder));
  const std::uint64_t timer = next_timer_ms(builder.state());
  if ((timer != 0 && timer <= builder.now_ms()) || has_immediate_action(*builder.run().plan, builder.state())) {
    MJ_CHECK(builder.apply(TimePassed{}));
  }
  return {};
}

// Returns false if another process has committed first.
Result<bool> FlowDriver::commit(FlowCommitBuilder& builder, const FlowReadResult& read, bool is_last) {
  MJ_TRY(commit, build_commit(store_, builder));
  collect_child_actions(builder.effects, builder.state(), post_commit_);
  LoadedRun& run = builder.run();
  const bool has_ended = is_terminal(run.state.status);
  const bool has_events_left = read.events.size() > builder.applied_event_count;
  has_more_work_ = !has_ended && (must_check_jobs_ || has_events_left || has_immediate_action(*run.plan, run.state));
  const bool is_empty = commit.facts.empty() && commit.applied_events == 0 && commit.dispatches.empty();
  if (is_empty && !must_check_jobs_) has_more_work_ = false;  // another pass would not find any work
  if (start_ || control_) has_more_work_ = true;
  if (const std::uint64_t timer = next_timer_ms(run.state); timer != 0 && !has_ended) commit.due_ms = timer;
  if (has_more_work_ || !post_commit_.empty() || !started_children_.empty()) {
    const std::uint64_t continue_ms = is_last ? 0 : builder.now_ms() + kContinueDelayMs;
    commit.due_ms = std::min(commit.due_ms.value_or(continue_ms), continue_ms);
  }
  if (is_empty && !is_due_) return true;
  auto revision = store_.commit(commit);
  if (!revision && revision.error().code == Code::conflict) return false;
  if (!revision) return tl::unexpected<Error>(std::move(revision).error());
  run.state.revision = *revision;
  if (!commit.checkpoint.empty()) run.checkpoint_revision = *revision;
  result_.fact_count += static_cast<std::uint32_t>(commit.facts.size());
  is_due_ = false;
  return true;
}

// A child is linked in the journal before it is started. Otherwise the child could end before its parent waits for it.
Result<void> FlowDriver::run_post_commit_actions(const LoadedRun& run) {
  for (const ChildStarted& started : started_children_) {
    const NodeState& node = run.state.nodes.at(started.node);
    if (started.flow == 0) continue;
    if (node.child == started.flow && !is_terminal(node.status) && node.detail != "cancelling") {
      post_commit_.start.emplace_back(started.node, started.flow);
    } else {
      post_commit_.cancel.push_back(started.flow);
    }
  }
  started_children_.clear();
  const PostCommitActions actions = std::exchange(post_commit_, {});
  const std::string reason = "flow " + std::to_string(run.record.id) + " does not wait for it any more";
  for (const Id awaited : actions.await) MJ_CHECK(store_.await_flow(request_.context, request_.flow, awaited));
  for (const Id child : actions.cancel) MJ_CHECK(cancel_child(store_, cache_, run, child, reason));
  for (const auto& [node, child] : actions.start) {
    auto start_result = start_child(store_, cache_, request_.context, request_.flow, run.record.caller_id, child);
    if (!start_result && start_result.error().code != Code::conflict) return start_result;
  }
  for (const std::uint32_t node : actions.create) {
    if (is_terminal(run.state.nodes.at(node).status) || run.state.nodes.at(node).child != 0) continue;
    auto child = create_child(store_, run, node);
    if (child) {
      started_children_.push_back({node, *child, ""});
    } else if (child.error().code == Code::conflict || child.error().code == Code::invalid) {
      started_children_.push_back({node, 0, child.error().message});
    } else {
      return tl::unexpected<Error>(std::move(child).error());
    }
  }
  return {};
}

Result<FlowProgress> FlowDriver::drive() {
  int conflict_count = 0;
  for (int commits = 1;; ++commits) {
    FlowReadResult read;
    MJ_TRY(run, load_current_run(read));
    FlowCommitBuilder builder(run, read.now_ms);
    MJ_CHECK(decide_step(read, builder));
    const bool is_last = commits >= kMaxCommits;
    MJ_TRY(committed, commit(builder, read, is_last));
    if (!committed) {
      post_commit_ = {};
      must_check_children_ = true;
      if (++conflict_count > kMaxConflicts) {
        return fail(Code::conflict, "flow " + std::to_string(request_.flow) +
                                        " was changed by other clients during each attempt: try again");
      }
      --commits;
      continue;
    }
    start_.reset();
    control_.reset();
    result_.status = run.state.status;
    result_.detail = run.state.detail;
    result_.revision = run.state.revision;
    result_.waiting_gate_count = is_terminal(run.state.status) ? 0 : count_waiting_gates(run);
    MJ_CHECK(run_post_commit_actions(run));
    const bool continues = has_more_work_ || !started_children_.empty();
    result_.has_more_work = continues;
    if (!is_terminal(run.state.status)) cache_.cache_run(request_.context, request_.flow, std::move(run));
    if (!continues || is_last) return result_;
  }
}

}  // namespace

Result<FlowProgress> advance_run(FlowStore& store, RunCache& cache, const ProgressRequest& request) {
  return FlowDriver(store, cache, request).drive();
}

}  // namespace mycojobs
