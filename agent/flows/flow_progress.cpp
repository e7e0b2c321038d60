// A pass reads a run, decides, and makes one commit of it.
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
  Result<void> take(decltype(FlowEvent::what) what);
  bool full() const;
  bool ends_flow() const;    // the flow was not terminal before, and is terminal now
  bool begins_flow() const;  // the flow was not started before, and is started now
  std::uint64_t now_ms() const { return now_ms_; }
  LoadedRun& run() { return run_; }
  const LoadedRun& run() const { return run_; }
  const RunState& state() const { return run_.state; }

  std::vector<RunFact> facts;
  std::vector<Effect> effects;
  std::vector<std::string> again;  // jobs that are dispatched in the journal but planned in the store
  std::uint32_t events_taken = 0;

 private:
  LoadedRun& run_;
  std::uint64_t now_ms_;
  FlowStatus was_;
  std::size_t planted_bytes_ = 0;  // size of records that the commit will write
};

// Follow-up actions on other flows, which a commit cannot perform. Each action can be repeated.
struct PostCommitActions {
  std::vector<std::uint32_t> create;                // nodes that need a new child flow
  std::vector<std::pair<std::uint32_t, Id>> start;  // node and child flow that is linked but not started
  std::vector<Id> cancel;
  std::vector<Id> await;
  bool empty() const { return create.empty() && start.empty() && cancel.empty() && await.empty(); }
};

// Decides the events that were read.
Result<void> take_events(FlowStore&, const FlowReadResult&, FlowCommitBuilder&);
// Decides the states of all active jobs, independent of events. Returns false if the step was full before all jobs were
// processed.
Result<bool> take_jobs(FlowStore&, FlowCommitBuilder&);
Result<FlowObserved> look_at(FlowStore&, Id context, Id flow);

// Child flows.
void children_of(const std::vector<Effect>&, const RunState&, PostCommitActions&);
// Collects unfinished follow-up actions of a run that this process has not advanced before, and decides the ends of
// child flows. Linked child flows that were not started are added to the actions.
Result<void> check_children(FlowStore&, FlowCommitBuilder&, PostCommitActions&);
Result<Id> create_child(FlowStore&, const LoadedRun&, std::uint32_t node);  // does not start the child
Result<void> start_child(FlowStore&, RunCache&, Id context, Id parent, Id caller, Id child);
Result<void> cancel_child(FlowStore&, RunCache&, const LoadedRun&, Id child, const std::string& why);
// Error conflict: the flow has a parent that no longer waits for the flow.
Result<void> check_parent(FlowStore&, const LoadedRun&);

// Builds the commit without due_ms. Reads the results of the jobs if the step ends the flow.
Result<FlowCommit> commit_of(FlowStore&, FlowCommitBuilder&);

// Collects the results of all completed nodes, up to the size limit.
Result<ResultValues> gather_results(FlowStore&, const FlowCommitBuilder&);

constexpr std::size_t kMaxEventsBatch = 100;   // jobs; each result can have 1 MiB
constexpr std::size_t kMaxResultsBatch = 100;  // jobs for each read
constexpr std::size_t kAgain = 200;            // jobs for each commit

JobObserved seen(const LoadedRun& run, std::uint32_t node, const FlowJobView& view) {
  JobObserved seen;
  seen.node = node;
  if (view.state == "absent") {
    seen.ended = true;
    seen.status = to_string(JobStatus::error);
    seen.detail = "dead_letter";
    seen.error = view.job_key + " has no record any more: another client deleted it";
    return seen;
  }
  // A record without a state was written by another client, or its claim was deleted.
  seen.ended = view.state == "ended" || (view.state.empty() && (view.status == to_string(JobStatus::finished) ||
                                                                view.status == to_string(JobStatus::error)));
  if (!seen.ended) return seen;
  seen.status = view.status;
  seen.detail = view.detail;
  seen.error = view.error;
  read_result(run.plan->nodes[node], view.result, seen);
  return seen;
}

FlowCommitBuilder::FlowCommitBuilder(LoadedRun& run, std::uint64_t now_ms)
    : run_(run), now_ms_(now_ms), was_(run.state.status) {}

Result<void> FlowCommitBuilder::take(decltype(FlowEvent::what) what) {
  // Limits the size of a commit if many events arrive at the same time.
  DecideLimits limits;
  constexpr std::uint32_t kMinFacts = 50;
  limits.max_facts = std::max(
      kMinFacts, limits.max_facts - static_cast<std::uint32_t>(std::min<std::size_t>(limits.max_facts, facts.size())));
  limits.max_bytes -= std::min(limits.max_bytes, planted_bytes_);
  auto decided = decide(*run_.plan, std::move(run_.state), {now_ms_, std::move(what)}, limits);
  if (!decided) return fail(decided.error(), "flow " + std::to_string(run_.record.id));
  run_.state = std::move(decided->state);
  for (const Effect& each : decided->effects) {
    const bool writes = each.kind == Effect::Kind::dispatch || each.kind == Effect::Kind::requeue;
    const bool place = writes && run_.plan->nodes[each.node].each;
    if (place) planted_bytes_ += each_element_bytes(*run_.plan, each.node);
  }
  std::move(decided->facts.begin(), decided->facts.end(), std::back_inserter(facts));
  std::move(decided->effects.begin(), decided->effects.end(), std::back_inserter(effects));
  return {};
}

bool FlowCommitBuilder::full() const { return facts.size() >= DecideLimits().max_facts; }
bool FlowCommitBuilder::ends_flow() const { return !is_terminal(was_) && is_terminal(run_.state.status); }
bool FlowCommitBuilder::begins_flow() const {
  return was_ != FlowStatus::started && run_.state.status == FlowStatus::started;
}

// Also the answer to a caller that may not read the flow, so that the answer does not reveal whether the flow exists.
FlowObserved absent(Id flow) {
  FlowObserved seen;
  seen.flow = flow;
  seen.error = "flow " + std::to_string(flow) + " does not exist";
  return seen;
}

Result<FlowObserved> look_at(FlowStore& store, Id context, Id flow) {
  MJ_TRY(read, store.read(context, flow, kRecordAlone));
  if (read.record.empty()) return absent(flow);
  FlowObserved seen;
  seen.flow = flow;
  auto decoded = decode<Flow>(read.record);
  seen.status = decoded.record.status;
  seen.error = std::move(decoded.record.error);
  if (seen.status == FlowStatus::error && seen.error.empty()) {
    seen.error = "flow " + std::to_string(flow) + " ended as error (" + decoded.record.detail + ")";
  }
  seen.result = std::move(decoded.record.result);
  seen.result_json = std::move(decoded.record.result_json);
  return seen;
}

Result<void> take_events(FlowStore& store, const FlowReadResult& read, FlowCommitBuilder& step) {
  const std::size_t count = std::min(read.events.size(), kMaxEventsBatch);
  std::vector<std::string> keys;
  std::set<std::string> once;
  for (std::size_t i = 0; i < count; ++i) {
    const FlowEventText& event = read.events[i];
    if (event.kind == "job" && node_of_job(step.run(), event.key) && once.insert(event.key).second)
      keys.push_back(event.key);
  }
  std::map<std::string, FlowJobView> views;
  for (const FlowJobView& view : read.jobs) views[view.job_key] = view;
  std::erase_if(keys, [&](const std::string& key) { return views.contains(key); });
  if (!keys.empty()) {
    MJ_TRY(found, store.jobs(step.run().record.context_id, keys));
    for (FlowJobView& view : found) views[view.job_key] = std::move(view);
  }
  std::size_t nonsense = 0;
  std::string first;
  for (std::size_t i = 0; i < count && !step.full(); ++i) {
    const FlowEventText& event = read.events[i];
    std::uint64_t flow = 0;
    if (const auto node = event.kind == "job" ? node_of_job(step.run(), event.key) : std::nullopt) {
      if (const auto view = views.find(event.key); view != views.end()) {
        MJ_CHECK(step.take(seen(step.run(), *node, view->second)));
      }
    } else if ((event.kind == "flow" || event.kind == "absent") && event.key.starts_with("flow:") &&
               parse_u64(std::string_view(event.key).substr(5), flow) && flow > 0 && flow <= UINT32_MAX) {
      const Id id = static_cast<Id>(flow);
      MJ_TRY(other, event.kind == "absent" ? absent(id) : look_at(store, step.run().record.context_id, id));
      if (is_terminal(other.status)) MJ_CHECK(step.take(std::move(other)));
    } else if (nonsense++ == 0) {
      first = event.kind.substr(0, 40) + ' ' + event.key.substr(0, 80);
    }
    ++step.events_taken;
  }
  // All ignored events share one log line.
  if (nonsense > 0) {
    log(LogLevel::warn, "coordinator", "flow {}: invalid journal entries were skipped: {}, the first is {}",
        in_trace(std::to_string(step.run().record.id), step.run().record.traceparent),
        count_with_noun(nonsense, "event"), first);
  }
  return {};
}

Result<bool> take_jobs(FlowStore& store, FlowCommitBuilder& step) {
  std::vector<std::uint32_t> nodes;
  for (const std::uint32_t i : step.state().in_flight) {
    if (step.run().plan->nodes.at(i).kind == NodeKind::job) nodes.push_back(i);
  }
  // Ends are applied after all planned jobs were collected, so that this commit queues the planned jobs even if the
  // step becomes full.
  std::vector<JobObserved> ended;
  for (std::size_t from = 0; from < nodes.size(); from += kMaxEventsBatch) {
    const std::size_t to = std::min(from + kMaxEventsBatch, nodes.size());
    std::vector<std::string> keys;
    for (std::size_t i = from; i < to; ++i) keys.push_back(node_job_key(step.run(), nodes[i]));
    MJ_TRY(views, store.jobs(step.run().record.context_id, keys));
    for (std::size_t i = from; i < to && i - from < views.size(); ++i) {
      const FlowJobView& view = views[i - from];
      if (view.state == "planned" && step.again.size() < kAgain) step.again.push_back(view.job_key);
      JobObserved now = seen(step.run(), nodes[i], view);
      if (now.ended) ended.push_back(std::move(now));
    }
  }
  for (JobObserved& each : ended) {
    if (step.full()) return false;
    MJ_CHECK(step.take(std::move(each)));
  }
  return step.again.size() < kAgain;
}

std::string name_of(Id flow) { return "flow:" + std::to_string(flow); }

void children_of(const std::vector<Effect>& effects, const RunState& state, PostCommitActions& afterwards) {
  for (const Effect& effect : effects) {
    switch (effect.kind) {
      case Effect::Kind::start_child:
        afterwards.create.push_back(effect.node);
        break;
      case Effect::Kind::cancel_child: {
        const Id child = effect.flow != 0 ? effect.flow : state.nodes.at(effect.node).child;
        if (child != 0) afterwards.cancel.push_back(child);
        break;
      }
      case Effect::Kind::await_flow:
        afterwards.await.push_back(effect.flow);
        break;
      default:
        break;
    }
  }
}

Result<void> check_children(FlowStore& store, FlowCommitBuilder& step, PostCommitActions& afterwards) {
  children_of(pending_child_actions(*step.run().plan, step.state()), step.state(), afterwards);
  // A copy, since take() changes the set.
  const auto awaited = step.state().awaited;
  for (const auto& [child, node] : awaited) {
    const NodeState& at = step.state().nodes.at(node);
    if (at.child != child || is_terminal(at.status)) continue;
    MJ_TRY(seen, look_at(store, step.run().record.context_id, child));
    if (is_terminal(seen.status)) {
      MJ_CHECK(step.take(std::move(seen)));
    } else if (seen.status == FlowStatus::dispatched && at.detail != "cancelling") {
      afterwards.start.emplace_back(node, child);
    }
  }
  return {};
}

Result<Id> create_child(FlowStore& store, const LoadedRun& run, std::uint32_t node) {
  const PlanNode& planned = run.plan->nodes.at(node);
  const std::string what = name_of(run.record.id) + " node " + planned.name;
  const auto definition = parse_json(planned.child, kMaxDefinitionBytes);
  if (!definition) return fail(definition.error(), what);
  const ParsedPlan read = read_plan(*definition);
  if (!read.plan) return fail(Code::invalid, what + ": flow: " + join(read.problems));
  NewFlow child;
  child.traceparent = run.record.traceparent;
  child.context = run.record.context_id;
  child.caller = run.record.caller_id;
  // Precedence of variables: the node, then the definition of the child, then the parent flow.
  child.env_vars = planned.job.env_vars;
  child.env_vars.insert(read.plan->env_vars.begin(), read.plan->env_vars.end());
  child.env_vars.insert(run.record.env_vars.begin(), run.record.env_vars.end());
  const std::string key = planned.child_key.empty() ? planned.name : planned.child_key;
  child.idempotency_key = "child:" + std::to_string(run.record.id) + ":" + key;
  // Each run of the node gets a child flow of its own.
  if (const auto runs = run.state.nodes.at(node).runs; runs > 1) child.idempotency_key += "#" + std::to_string(runs);
  child.parent = name_of(run.record.id) + " " + planned.name;
  auto made = create_flow(store, *read.plan, child);
  if (!made) return fail(made.error(), what);
  return made->id;
}

Result<void> start_child(FlowStore& store, RunCache& cache, Id context, Id parent, Id caller, Id child) {
  ProgressRequest request;
  request.context = context;
  request.flow = child;
  request.start = StartRun{name_of(parent), caller};
  if (auto done = progress(store, cache, request); !done) return fail(done.error(), name_of(child));
  return {};
}

Result<void> cancel_child(FlowStore& store, RunCache& cache, const LoadedRun& run, Id child, const std::string& why) {
  MJ_TRY(seen, look_at(store, run.record.context_id, child));
  // The event of the end may have been lost, and a deleted flow sends none. An additional event has no effect.
  if (is_terminal(seen.status)) return store.await_flow(run.record.context_id, run.record.id, child);
  ProgressRequest request;
  request.context = run.record.context_id;
  request.flow = child;
  request.control = FlowControl{FlowControl::Verb::cancel, "", run.record.caller_id, true, why, "", ""};
  auto done = progress(store, cache, request);
  // A conflict means that the child has ended since. After not_found (the child's mark is lost) the parent stays due
  // and tries again.
  if (!done && done.error().code != Code::conflict) return fail(done.error(), name_of(child));
  return {};
}

Result<void> check_parent(FlowStore& store, const LoadedRun& run) {
  const auto [parent, node] = parent_of(run.record);
  if (parent == 0) return {};
  MJ_TRY(read, store.read(run.record.context_id, parent, kRecordAlone));
  const std::string name = name_of(run.record.id);
  if (read.record.empty()) return fail(Code::conflict, name + ": its parent " + name_of(parent) + " no longer exists");
  const Flow record = decode<Flow>(read.record).record;
  if (is_terminal(record.status)) return fail(Code::conflict, name + ": its parent " + name_of(parent) + " has ended");
  return {};
}

// Returns the interval of checkpoints. A checkpoint is as large as the run, so the interval grows with the number of
// nodes.
std::uint64_t facts_between_checkpoints(const LoadedRun& run) {
  constexpr std::uint64_t kMinFacts = 256;
  return std::max<std::uint64_t>(kMinFacts, run.plan->nodes.size() / 2);
}

FlowEnd end_of(const LoadedRun& run, const Effect& effect) {
  FlowEnd end{node_job_key(run, effect.node), {}};
  const bool finished = effect.kind == Effect::Kind::finish;
  end.fields.emplace_back("status", to_string(finished ? JobStatus::finished : JobStatus::error));
  end.fields.emplace_back("detail", effect.detail.empty() && finished ? "ok" : effect.detail);
  if (!effect.error.empty()) end.fields.emplace_back("error", effect.error);
  if (!effect.values.empty()) end.fields.emplace_back("result", dump_json(nlohmann::json(effect.values)));
  if (!effect.values_json.empty())
    end.fields.emplace_back("result_json", dump_json(nlohmann::json(effect.values_json)));
  return end;
}

// An element of an `each` node that was never dispatched has no record that could be ended or planned again.
bool has_record(const LoadedRun& run, std::uint32_t node) {
  return !run.plan->nodes[node].each || run.state.nodes[node].runs > 0;
}

void add_effects(const FlowCommitBuilder& step, FlowCommit& commit) {
  const LoadedRun& run = step.run();
  DispatchFieldBuilder dispatches(run);
  for (const Effect& effect : step.effects) {
    if (!has_record(run, effect.node)) continue;
    switch (effect.kind) {
      case Effect::Kind::dispatch:
        commit.dispatch.push_back(dispatches.of(effect.node));
        break;
      case Effect::Kind::finish:
      case Effect::Kind::fail:
        commit.ends.push_back(end_of(run, effect));
        break;
      case Effect::Kind::cancel_job:
        commit.cancel.push_back(node_job_key(run, effect.node));
        break;
      case Effect::Kind::requeue:
        commit.requeue.push_back(node_job_key(run, effect.node));
        // If a quota rejected the record of an element before, this dispatch writes the record.
        if (run.plan->nodes[effect.node].each) commit.dispatch.push_back(dispatches.of(effect.node));
        break;
      case Effect::Kind::replan:
        commit.replan.push_back(node_job_key(run, effect.node));
        break;
      case Effect::Kind::start_child:
      case Effect::Kind::cancel_child:
      case Effect::Kind::await_flow:
        break;  // performed after the commit
    }
  }
  for (const std::string& key : step.again) commit.dispatch.push_back({key, {}});
}

Fields record_of(const FlowCommitBuilder& step) {
  const RunState& state = step.state();
  Fields fields{{"status", std::string(to_string(state.status))},
                {"detail", state.detail},
                {"error", state.error},
                {"started_ms", std::to_string(state.started_ms)},
                {"ended_ms", std::to_string(state.ended_ms)},
                {"updated_at", std::to_string(step.now_ms() / 1000)}};
  const bool few = state.nodes.size() <= kNodesAlways;
  if (few || step.begins_flow() || step.ends_flow()) fields.emplace_back("nodes", nodes_text(step.run()));
  return fields;
}

Result<ResultValues> gather_results(FlowStore& store, const FlowCommitBuilder& step) {
  const LoadedRun& run = step.run();
  std::map<std::uint32_t, ResultValues> of_this_step;  // results of this step, which are not stored yet
  for (const Effect& effect : step.effects) {
    if (effect.kind == Effect::Kind::finish) of_this_step[effect.node] = {effect.values, effect.values_json};
  }
  ResultValues all;
  std::size_t room = kMaxFlowResultBytes;
  // If the results exceed the limit, decide() has failed the flow, and its record gets the results that fit.
  const auto add = [&](std::uint32_t node, const ResultValues& values) {
    const std::size_t bytes = result_bytes(values.texts);
    if (bytes > room) return;
    room -= bytes;
    const std::string prefix = run.plan->nodes[node].name + ".";
    for (const auto& [key, value] : values.texts) all.texts[prefix + key] = value;
    for (const std::string& key : values.json) {
      if (values.texts.contains(key)) all.json.push_back(prefix + key);
    }
  };
  std::vector<std::string> keys;
  std::vector<std::uint32_t> of;
  const auto read = [&]() -> Result<void> {
    MJ_TRY(views, store.jobs(run.record.context_id, keys));
    for (std::size_t i = 0; i < views.size() && i < of.size(); ++i) {
      if (views[i].status == "finished") add(of[i], result_on_record(views[i].result, views[i].result_json));
    }
    keys.clear();
    of.clear();
    return {};
  };
  for (std::uint32_t i = 0; i < run.state.nodes.size(); ++i) {
    if (run.state.nodes[i].status != NodeStatus::completed) continue;
    if (const auto own = of_this_step.find(i); own != of_this_step.end()) {
      add(i, own->second);
      continue;
    }
    keys.push_back(node_job_key(run, i));
    of.push_back(i);
    if (keys.size() == kMaxResultsBatch) MJ_CHECK(read());
  }
  if (!keys.empty()) MJ_CHECK(read());
  return all;
}

Result<FlowCommit> commit_of(FlowStore& store, FlowCommitBuilder& step) {
  LoadedRun& run = step.run();
  FlowCommit commit;
  commit.context = run.record.context_id;
  commit.flow = run.record.id;
  commit.traceparent = run.record.traceparent;
  commit.expected_revision = run.state.revision - step.facts.size();
  commit.events_taken = step.events_taken;
  commit.facts = step.facts;
  add_effects(step, commit);
  commit.ended = is_terminal(run.state.status);
  commit.parent = commit.ended ? parent_of(run.record).first : 0;
  if (step.facts.empty()) return commit;
  commit.record = record_of(step);
  if (step.ends_flow()) {
    MJ_TRY(result, gather_results(store, step));
    commit.record.emplace_back("result", dump_json(nlohmann::json(result.texts)));
    commit.record.emplace_back("result_json", dump_json(nlohmann::json(result.json)));
  }
  if (run.state.revision - run.checkpoint_at >= facts_between_checkpoints(run)) {
    commit.checkpoint = checkpoint(*run.plan, run.state);
  }
  return commit;
}

// Returns the number of nodes that wait for an approval or a gate. Scans at most kMaxChecks waiting nodes, so that no
// step scans all nodes of a large flow.
std::size_t waiting_gates(const LoadedRun& run) {
  constexpr std::size_t kMaxChecks = 1000;
  std::size_t gates = run.state.gated.size(), checks_done = 0;
  for (const std::uint32_t node : run.state.waiting) {
    const NodeKind kind = run.plan->nodes.at(node).kind;
    if (kind == NodeKind::approval || kind == NodeKind::pause) ++gates;
    if (++checks_done == kMaxChecks) break;
  }
  return gates;
}

constexpr int kMaxCommits = 20;     // for each call, so that other flows get a turn
constexpr int kMaxConflicts = 100;  // each conflict means that another process has advanced the flow
// Due time of a flow while this call continues the work on it. If the call does not complete, another process finds the
// flow.
constexpr std::uint64_t kOnMs = 1000;

class FlowDriver {
 public:
  FlowDriver(FlowStore& store, RunCache& cache, const ProgressRequest& request)
      : store_(store), cache_(cache), asked_(request), start_(request.start), control_(request.control) {
    due_ = request.due;
    recover_ = request.recover;
  }
  Result<FlowProgress> drive();

 private:
  Result<LoadedRun> take_run(FlowReadResult& read);
  Result<void> decide_all(const FlowReadResult& read, FlowCommitBuilder& step);
  Result<bool> commit(FlowCommitBuilder& step, const FlowReadResult& read, bool last);
  Result<void> after(const LoadedRun& run);

  FlowStore& store_;
  RunCache& cache_;
  const ProgressRequest& asked_;
  std::optional<StartRun> start_;
  std::optional<FlowControl> control_;
  bool due_ = false, recover_ = false;
  // The run was loaded or another process has advanced it, so its child flows must be checked.
  bool restart_ = false;
  PostCommitActions afterwards_;
  std::vector<ChildStarted> links_;  // child flows to be linked in the journal
  FlowProgress done_;
  bool more_ = false;
};

Result<LoadedRun> FlowDriver::take_run(FlowReadResult& read) {
  if (auto known = cache_.take_cached_run(asked_.context, asked_.flow)) {
    MJ_TRY(newer, store_.read(asked_.context, asked_.flow, known->state.revision));
    read = std::move(newer);
    if (!read.record.empty() && read.revision >= known->state.revision) {
      // Another process has advanced the flow, and may have crashed before its follow-up actions.
      restart_ = restart_ || !read.facts.empty();
      MJ_CHECK(fold_facts(store_, asked_.context, asked_.flow, *known, read));
      return std::move(*known);
    }
  }
  restart_ = true;
  return load_run(store_, asked_.context, asked_.flow, cache_, read);
}

Result<void> FlowDriver::decide_all(const FlowReadResult& read, FlowCommitBuilder& step) {
  // A request has a commit of its own, since its error is returned to the caller.
  if (start_) {
    if (step.state().status == FlowStatus::dispatched) MJ_CHECK(check_parent(store_, step.run()));
    return step.take(*start_);
  }
  if (control_) return step.take(*control_);
  if (step.state().status == FlowStatus::dispatched) {
    step.events_taken = static_cast<std::uint32_t>(std::min<std::size_t>(read.events.size(), 100));
    recover_ = restart_ = false;
    return {};  // a new flow changes only when it is started
  }
  for (const ChildStarted& link : links_) MJ_CHECK(step.take(link));
  if (recover_ && !is_terminal(step.state().status)) {
    if (auto fits = check_parent(store_, step.run()); !fits) {
      if (fits.error().code != Code::conflict) return fits;
      FlowControl cancel;
      cancel.verb = FlowControl::Verb::cancel;
      cancel.actor = step.run().record.caller_id;
      cancel.admin = true;
      cancel.comment = fits.error().message;
      if (!step.state().cancelling) MJ_CHECK(step.take(std::move(cancel)));
    }
    MJ_TRY(all, take_jobs(store_, step));
    recover_ = !all;
  }
  if (restart_ && !is_terminal(step.state().status)) MJ_CHECK(check_children(store_, step, afterwards_));
  restart_ = false;
  if (!step.full()) MJ_CHECK(take_events(store_, read, step));
  const std::uint64_t timer = next_timer_ms(step.state());
  if ((timer != 0 && timer <= step.now_ms()) || has_more_work(*step.run().plan, step.state())) {
    MJ_CHECK(step.take(TimePassed{}));
  }
  return {};
}

// Returns false if another process has committed first.
Result<bool> FlowDriver::commit(FlowCommitBuilder& step, const FlowReadResult& read, bool last) {
  MJ_TRY(commit, commit_of(store_, step));
  children_of(step.effects, step.state(), afterwards_);
  LoadedRun& run = step.run();
  const bool over = is_terminal(run.state.status);
  const bool events_left = read.events.size() > step.events_taken;
  more_ = !over && (recover_ || events_left || has_more_work(*run.plan, run.state));
  const bool nothing = commit.facts.empty() && commit.events_taken == 0 && commit.dispatch.empty();
  if (nothing && !recover_) more_ = false;  // another pass would find nothing either
  if (start_ || control_) more_ = true;
  if (const std::uint64_t timer = next_timer_ms(run.state); timer != 0 && !over) commit.due_ms = timer;
  if (more_ || !afterwards_.empty() || !links_.empty()) {
    const std::uint64_t on = last ? 0 : step.now_ms() + kOnMs;
    commit.due_ms = std::min(commit.due_ms.value_or(on), on);
  }
  if (nothing && !due_) return true;
  auto done = store_.commit(commit);
  if (!done && done.error().code == Code::conflict) return false;
  if (!done) return tl::unexpected<Error>(std::move(done).error());
  run.state.revision = *done;
  if (!commit.checkpoint.empty()) run.checkpoint_at = *done;
  done_.facts += static_cast<std::uint32_t>(commit.facts.size());
  due_ = false;
  return true;
}

// A child is linked in the journal before it is started. Otherwise the child could end before its parent waits for it.
Result<void> FlowDriver::after(const LoadedRun& run) {
  for (const ChildStarted& link : links_) {
    const NodeState& node = run.state.nodes.at(link.node);
    if (link.flow == 0) continue;
    if (node.child == link.flow && !is_terminal(node.status) && node.detail != "cancelling") {
      afterwards_.start.emplace_back(link.node, link.flow);
    } else {
      afterwards_.cancel.push_back(link.flow);
    }
  }
  links_.clear();
  const PostCommitActions now = std::exchange(afterwards_, {});
  const std::string why = "flow " + std::to_string(run.record.id) + " does not wait for it any more";
  for (const Id other : now.await) MJ_CHECK(store_.await_flow(asked_.context, asked_.flow, other));
  for (const Id child : now.cancel) MJ_CHECK(cancel_child(store_, cache_, run, child, why));
  for (const auto& [node, child] : now.start) {
    auto start_result = start_child(store_, cache_, asked_.context, asked_.flow, run.record.caller_id, child);
    if (!start_result && start_result.error().code != Code::conflict) return start_result;
  }
  for (const std::uint32_t node : now.create) {
    if (is_terminal(run.state.nodes.at(node).status) || run.state.nodes.at(node).child != 0) continue;
    auto child = create_child(store_, run, node);
    if (child) {
      links_.push_back({node, *child, ""});
    } else if (child.error().code == Code::conflict || child.error().code == Code::invalid) {
      links_.push_back({node, 0, child.error().message});
    } else {
      return tl::unexpected<Error>(std::move(child).error());
    }
  }
  return {};
}

Result<FlowProgress> FlowDriver::drive() {
  int conflicts = 0;
  for (int commits = 1;; ++commits) {
    FlowReadResult read;
    MJ_TRY(run, take_run(read));
    FlowCommitBuilder step(run, read.now_ms);
    MJ_CHECK(decide_all(read, step));
    const bool last = commits >= kMaxCommits;
    MJ_TRY(ours, commit(step, read, last));
    if (!ours) {
      afterwards_ = {};
      restart_ = true;
      if (++conflicts > kMaxConflicts) {
        return fail(Code::conflict, "flow " + std::to_string(asked_.flow) +
                                        " was changed by other clients during each attempt: try again");
      }
      --commits;
      continue;
    }
    start_.reset();
    control_.reset();
    done_.status = run.state.status;
    done_.detail = run.state.detail;
    done_.revision = run.state.revision;
    done_.gates = is_terminal(run.state.status) ? 0 : waiting_gates(run);
    MJ_CHECK(after(run));
    const bool on = more_ || !links_.empty();
    done_.more = on;
    if (!is_terminal(run.state.status)) cache_.cache_run(asked_.context, asked_.flow, std::move(run));
    if (!on || last) return done_;
  }
}

}  // namespace

Result<FlowProgress> progress(FlowStore& store, RunCache& cache, const ProgressRequest& request) {
  return FlowDriver(store, cache, request).drive();
}

}  // namespace mycojobs
