#include <algorithm>
#include <nlohmann/json.hpp>

#include "coordinator/progress_parts.h"
#include "domain/codec.h"
#include "domain/transitions.h"

namespace mycojobs {
namespace {

// A checkpoint costs as much as a run has nodes: so rarely that a fact's share of it stays small.
std::uint64_t facts_between_checkpoints(const LoadedRun& run) {
  constexpr std::uint64_t kLeast = 256;
  return std::max<std::uint64_t>(kLeast, run.plan->nodes.size() / 2);
}

FlowEnd end_of(const LoadedRun& run, const Effect& effect) {
  FlowEnd end{node_job_key(run, effect.node), {}};
  const bool finished = effect.kind == Effect::Kind::finish;
  end.fields.emplace_back("status", word(finished ? JobStatus::finished : JobStatus::error));
  end.fields.emplace_back("detail", effect.detail.empty() && finished ? "ok" : effect.detail);
  if (!effect.error.empty()) end.fields.emplace_back("error", effect.error);
  if (!effect.values.empty()) end.fields.emplace_back("result", dump_json(nlohmann::json(effect.values)));
  if (!effect.values_json.empty())
    end.fields.emplace_back("result_json", dump_json(nlohmann::json(effect.values_json)));
  return end;
}

// A place that was never dispatched has no record that could be ended or planned again.
bool has_record(const LoadedRun& run, std::uint32_t node) {
  return !run.plan->nodes[node].each || run.state.nodes[node].runs > 0;
}

void add_effects(const Step& step, FlowCommit& commit) {
  const LoadedRun& run = step.run();
  Dispatches dispatches(run);
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
        break;
      case Effect::Kind::replan:
        commit.replan.push_back(node_job_key(run, effect.node));
        break;
      case Effect::Kind::start_child:
      case Effect::Kind::cancel_child:
      case Effect::Kind::await_flow:
        break;  // afterwards
    }
  }
  for (const std::string& key : step.again) commit.dispatch.push_back({key, {}});
}

Fields record_of(const Step& step) {
  const RunState& state = step.state();
  Fields fields{{"status", std::string(word(state.status))},
                {"detail", state.detail},
                {"error", state.error},
                {"started_ms", std::to_string(state.started_ms)},
                {"ended_ms", std::to_string(state.ended_ms)},
                {"updated_at", std::to_string(step.now_ms() / 1000)}};
  const bool few = state.nodes.size() <= kNodesAlways;
  if (few || step.begins_flow() || step.ends_flow()) fields.emplace_back("nodes", nodes_text(step.run()));
  return fields;
}

}  // namespace

Result<FlowCommit> commit_of(FlowStore& store, Step& step) {
  LoadedRun& run = step.run();
  FlowCommit commit;
  commit.context = run.record.context_id;
  commit.flow = run.record.id;
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

}  // namespace mycojobs
