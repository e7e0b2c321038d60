#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "coordinator/create.h"
#include "coordinator/progress_parts.h"
#include "domain/codec.h"
#include "domain/transitions.h"

namespace mycojobs {
namespace {

std::string name_of(Id flow) { return "flow:" + std::to_string(flow); }

}  // namespace

std::pair<Id, std::string> parent_of(const Flow& record) {
  const std::string_view text = record.parent;
  const auto blank = std::min(text.find(' '), text.size());
  std::uint64_t flow = 0;
  if (!text.starts_with("flow:") || !parse_u64(text.substr(5, blank - 5), flow) || flow > UINT32_MAX) return {0, ""};
  return {static_cast<Id>(flow), std::string(text.substr(std::min(blank + 1, text.size())))};
}

void children_of(const std::vector<Effect>& effects, const RunState& state, Afterwards& afterwards) {
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

Result<void> look_at_children(FlowStore& store, Step& step, Afterwards& afterwards) {
  children_of(owed(*step.run().plan, step.state()), step.state(), afterwards);
  // A copy: what is taken in changes the set.
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
  const PlanRead read = read_plan(*definition);
  if (!read.plan) return fail(Code::invalid, what + ": flow: " + join(read.problems));
  NewFlow child;
  child.context = run.record.context_id;
  child.caller = run.record.caller_id;
  // What is said nearer to the job wins.
  child.env_vars = planned.job.env_vars;
  child.env_vars.insert(read.plan->env_vars.begin(), read.plan->env_vars.end());
  child.env_vars.insert(run.record.env_vars.begin(), run.record.env_vars.end());
  const std::string key = planned.child_key.empty() ? planned.name : planned.child_key;
  child.idempotency_key = "child:" + std::to_string(run.record.id) + ":" + key;
  // Another run of the node is another child.
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
  if (is_terminal(seen.status)) return {};
  ProgressRequest request;
  request.context = run.record.context_id;
  request.flow = child;
  request.control = FlowControl{FlowControl::Verb::cancel, "", run.record.caller_id, true, why, "", ""};
  auto done = progress(store, cache, request);
  // It has ended meanwhile.
  if (!done && done.error().code != Code::conflict && done.error().code != Code::not_found) {
    return fail(done.error(), name_of(child));
  }
  return {};
}

Result<void> check_parent(FlowStore& store, const LoadedRun& run) {
  const auto [parent, node] = parent_of(run.record);
  if (parent == 0) return {};
  MJ_TRY(read, store.read(run.record.context_id, parent, kRecordAlone));
  const std::string name = name_of(run.record.id);
  if (read.record.empty()) return fail(Code::conflict, name + ": its parent " + name_of(parent) + " is gone");
  const Flow record = decode<Flow>(read.record).record;
  if (is_terminal(record.status)) return fail(Code::conflict, name + ": its parent " + name_of(parent) + " has ended");
  return {};
}

}  // namespace mycojobs
