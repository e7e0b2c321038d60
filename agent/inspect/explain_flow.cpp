#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "inspect/explain.h"
#include "inspect/explain_flow_parts.h"
#include "inspect/runners.h"

namespace mycojobs {
namespace {

// In the order in which they matter: what stands first is told first.
constexpr auto kFlowCauses = std::to_array<FlowCauseRow>({
    {"definition_missing", "the definition that it was started with is gone or changed: nothing of it can go on"},
    {"creation_unfinished", "it is being created, or whoever created it has left in the middle"},
    {"finished", "it has finished"},
    {"failed", "it has failed"},
    {"cancelled", "it was cancelled"},
    {"timeout", "it ran out of time"},
    {"not_started", "it was created and nobody has started it"},
    {"coordinator_missing", "no coordinator leads the context: what its jobs do is applied once one does"},
    {"node_failed", "a node failed, and the flow has ended or is stopping because of it"},
    {"cancelling", "somebody wants it cancelled; what runs is told to end"},
    {"stopping", "a node failed: nothing new begins, what is in flight may end"},
    {"compensating", "it ends badly, and what completed is undone in reverse order"},
    {"paused", "it is paused: what runs goes on, nothing new begins"},
    {"job_lost", "the job of a node is not where it should be: another client's doing"},
    {"lease_over", "the lease of a node's job has run out; any agent puts it back on its queue"},
    {"unkillable", "a process of a node's job does not end on KILL"},
    {"runner_silent", "the runner of a node's job has not been heard of; its lease still lasts"},
    {"no_runner", "no live runner serves the queue of a node's job"},
    {"queue_paused", "the queue of a node's job is paused"},
    {"approval", "a node waits to be approved"},
    {"pause", "a node is a pause, and waits to be resumed"},
    {"signal", "a node waits for a signal"},
    {"prerequisites", "the prerequisites of a node's job are not met"},
    {"dependencies", "the job of a node waits for jobs outside of the flow"},
    {"concurrency", "as many jobs of its concurrency key run as may"},
    {"retry_wait", "the last attempt of a node's job failed; the next one is due later"},
    {"delayed", "the job of a node was asked to run later"},
    {"child_flow", "a node waits for the flow that it has started"},
    {"other_flow", "a node waits for another flow"},
    {"timer", "a node waits for a time"},
    {"running", "a runner has the job of a node"},
    {"queued", "the job of a node is in its queue and will be taken"},
    {"max_parallel", "as many of its jobs are in flight as its definition allows"},
    {"unapplied", "something has happened, and the coordinator applies it next"},
    {"ready", "a node is ready, and the coordinator dispatches it next"},
    {"anomaly", "something stands in its journal or record that does not fit"},
});

constexpr std::size_t kMostReasons = 20;

std::size_t rank(const FlowReason& reason) {
  const auto row = std::find_if(kFlowCauses.begin(), kFlowCauses.end(),
                                [&](const FlowCauseRow& each) { return each.cause == reason.cause; });
  return static_cast<std::size_t>(row - kFlowCauses.begin());
}

bool has_ended(const FlowView& view) { return view.status == "finished" || view.status == "error"; }

Result<explaining_flow::Known> learn(FlowStore& flows, Store& store, Id context, Id flow) {
  MJ_TRY(reading, read_flow(flows, context, flow));
  explaining_flow::Known known;
  known.context = context;
  if (reading.plan) known.max_parallel = reading.plan->max_parallel;
  known.undone = reading.state.compensating;
  MJ_TRY(view, view_of(std::move(reading), flows, store, context, 5000));
  known.view = std::move(view);
  MJ_TRY(leader, flows.leader(context));
  known.leader = std::move(leader);
  return known;
}

}  // namespace

std::vector<FlowCauseRow> flow_causes() { return {kFlowCauses.begin(), kFlowCauses.end()}; }

Result<std::vector<FlowReason>> explain_flow(FlowStore& flows, Store& store, Id context, Id flow) {
  MJ_TRY(known, learn(flows, store, context, flow));
  std::vector<FlowReason> reasons = explaining_flow::of_flow(known);
  if (!has_ended(known.view)) {
    for (FlowReason& reason : explaining_flow::of_nodes(known)) reasons.push_back(std::move(reason));
    for (std::uint32_t index : explaining_flow::jobs_to_ask(known.view, kMostReasons)) {
      MJ_TRY(why, explain(store, context, known.view.nodes[index].job_key));
      reasons.push_back(explaining_flow::of_job(known, {index, why.cause, why.reason, why.next, why.evidence}));
    }
  }
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const FlowReason& a, const FlowReason& b) { return rank(a) < rank(b); });
  if (reasons.size() > kMostReasons) reasons.resize(kMostReasons);
  return reasons;
}

namespace explaining_flow {

std::string command(const Known& known, std::string_view verb, std::string_view rest) {
  return fmt::format("`mycojobs flow {} {}{}{}{}`", verb, known.view.record.id, rest.empty() ? "" : " ", rest,
                     known.context == 1 ? "" : fmt::format(" --context {}", known.context));
}

std::string since(std::uint64_t at_ms, std::uint64_t now_ms) {
  if (at_ms == 0 || at_ms > now_ms) return "";
  static constexpr std::uint64_t kDay = 24ULL * 3600 * 1000;
  const auto at = fmt::gmtime(static_cast<std::time_t>(std::min<std::uint64_t>(at_ms / 1000, 253402300799)));
  return (now_ms - at_ms < kDay ? fmt::format(" since {:%H:%M} UTC", at)
                                : fmt::format(" since {:%Y-%m-%d %H:%M} UTC", at)) +
         fmt::format(" ({})", span_text(now_ms - at_ms));
}

std::string named(const NodeView& node) { return "node " + node.name; }

}  // namespace explaining_flow
}  // namespace mycojobs
