#include <fmt/chrono.h>
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inspect/explain.h"
#include "inspect/flow_view.h"
#include "inspect/runner_view.h"
#include "store/keys.h"
#include "text/plural.h"
#include "text/shell_word.h"

namespace mycojobs {
namespace {

// The data from which the reasons of a flow are derived.
struct FlowEvidence {
  Id context = 1;
  FlowView view;
  std::uint32_t max_parallel = 0;  // limit in the definition
  bool is_compensating = false;    // a compensation was called, so that the flow cannot be retried
  bool has_mark = true;            // the state key exists, or is not needed because another client wrote the flow
  bool is_listed = true;           // the catalog of flows has a valid entry for it
  std::pair<std::string, std::string> leader;  // see FlowStore::leader(); empty: no coordinator is the leader
};

// Finds the reasons that hold or advance the flow as a whole.
std::vector<FlowReason> find_flow_reasons(const FlowEvidence&);
// Finds the reasons of single nodes: approvals, pauses, gates, waits, child flows, and a reached limit.
std::vector<FlowReason> find_node_reasons(const FlowEvidence&);
// Makes a reason from the explanation of the job of a node.
FlowReason make_job_reason(const FlowEvidence&, const NodeView&, const Explanation& job);
// Selects the nodes whose jobs are explained, the most informative first, with only a few nodes per state.
std::vector<std::uint32_t> select_jobs(const FlowView&, std::size_t max);

// Formats the option " --context 3", or an empty text for the default context.
std::string format_context_flag(const FlowEvidence& evidence) {
  return evidence.context == 1 ? "" : fmt::format(" --context {}", evidence.context);
}
// Formats a command for the user: "`mycojobs flow approve 12 ok --context 3`".
std::string format_command(const FlowEvidence&, std::string_view verb, std::string_view rest = "");
// Formats " since 14:02 UTC (3 min)"; empty if the time is not known.
std::string format_since(std::uint64_t at_ms, std::uint64_t now_ms);
std::string format_node(const NodeView&);  // "node deploy"

constexpr std::size_t kMaxListedPerState = 5;  // further nodes of the same state are only counted

std::string format_approvers(const NodeView& node) {
  if (node.approvers.empty())
    return "the creator of the flow and the admins of the context may decide; without a record of the context, any "
           "actor";
  return fmt::format("{} {} may decide, and the context's admins", node.approvers.size() == 1 ? "actor" : "actors",
                     fmt::join(node.approvers, ", "));
}

std::string format_time_limit(const NodeView& node, std::uint64_t now_ms) {
  if (node.until_ms == 0) return "";
  return node.until_ms > now_ms ? fmt::format("fails in {} without a decision", format_duration(node.until_ms - now_ms))
                                : "its time limit is over";
}

void add_evidence(FlowReason& reason, std::string line) {
  if (!line.empty()) reason.evidence.push_back(std::move(line));
}

FlowReason make_gate_reason(const FlowEvidence& evidence, const NodeView& node, const std::string& gate) {
  const std::uint64_t now_ms = evidence.view.now_ms;
  FlowReason reason{
      node.name, "", format_node(node) + " waits for " + gate + format_since(node.since_ms, now_ms), {}, ""};
  const std::string name = quote_for_shell(gate.substr(std::min(gate.size(), gate.find(':') + 1)));
  if (gate.starts_with("approval:")) {
    reason.cause = "approval";
    add_evidence(reason, format_approvers(node));
    reason.next_action = format_command(evidence, "approve", name + " --actor ID") + ", or " +
                         format_command(evidence, "reject", name + " --actor ID");
  } else if (gate.starts_with("signal:")) {
    reason.cause = "signal";
    reason.next_action = format_command(evidence, "signal", name);
  } else {
    reason.cause = "other_flow";
    reason.next_action = fmt::format("`mycojobs flow explain {}{}` explains why that flow has not ended", name,
                                     format_context_flag(evidence));
  }
  add_evidence(reason, format_time_limit(node, now_ms));
  return reason;
}

FlowReason make_decision_reason(const FlowEvidence& evidence, const NodeView& node) {
  const std::uint64_t now_ms = evidence.view.now_ms;
  const bool is_approval = node.detail == "approval";
  FlowReason reason{
      node.name,
      is_approval ? "approval" : "pause",
      format_node(node) + (is_approval ? " waits for approval" : " is a pause") + format_since(node.since_ms, now_ms),
      {},
      ""};
  if (!node.prompt.empty()) add_evidence(reason, "asks: " + node.prompt);
  add_evidence(reason, format_approvers(node));
  add_evidence(reason, format_time_limit(node, now_ms));
  reason.next_action = is_approval ? format_command(evidence, "approve", node.name + " --actor ID") + ", or " +
                                         format_command(evidence, "reject", node.name + " --actor ID")
                                   : format_command(evidence, "resume", node.name);
  return reason;
}

FlowReason make_child_reason(const FlowEvidence& evidence, const NodeView& node) {
  const std::string context = format_context_flag(evidence);
  if (node.child == 0) {
    return {node.name,
            "child_flow",
            format_node(node) + " starts a flow, and has no id of it yet" +
                format_since(node.since_ms, evidence.view.now_ms),
            {},
            "wait: the coordinator creates it next"};
  }
  return {node.name,
          "child_flow",
          fmt::format("{} waits for its child, flow {}{}", format_node(node), node.child,
                      format_since(node.since_ms, evidence.view.now_ms)),
          {},
          fmt::format("`mycojobs flow explain {}{}` explains the state of that flow", node.child, context)};
}

std::optional<FlowReason> find_node_reason(const FlowEvidence& evidence, const NodeView& node) {
  const std::uint64_t now_ms = evidence.view.now_ms;
  if (node.status == NodeStatus::pending && node.detail == "gate" && !node.gates.empty())
    return make_gate_reason(evidence, node, node.gates.front());
  if (node.status != NodeStatus::dispatched) return std::nullopt;
  if (node.detail == "approval" || node.detail == "pause") return make_decision_reason(evidence, node);
  if (node.detail == "flow") return make_child_reason(evidence, node);
  if (node.detail != "wait") return std::nullopt;
  return FlowReason{node.name,
                    "timer",
                    node.until_ms > now_ms
                        ? fmt::format("{} waits {} more", format_node(node), format_duration(node.until_ms - now_ms))
                        : format_node(node) + " has waited long enough",
                    {},
                    "wait"};
}

// Adds one reason for all ready nodes.
void add_ready_reason(const FlowEvidence& evidence, std::vector<FlowReason>& out) {
  std::vector<const NodeView*> ready_nodes;
  std::size_t in_flight_count = 0;
  for (const NodeView& node : evidence.view.nodes) {
    if (node.status == NodeStatus::ready && node.until_ms == 0) ready_nodes.push_back(&node);
    const bool is_delayed = node.status == NodeStatus::ready && node.until_ms != 0;
    in_flight_count +=
        node.status == NodeStatus::dispatched || node.status == NodeStatus::running || is_delayed ? 1 : 0;
  }
  if (ready_nodes.empty()) return;
  const std::string subject =
      ready_nodes.size() == 1
          ? format_node(*ready_nodes.front()) + " is"
          : fmt::format("{} and {} more are", format_node(*ready_nodes.front()), ready_nodes.size() - 1);
  const bool is_at_limit = evidence.max_parallel > 0 && in_flight_count >= evidence.max_parallel;
  FlowReason reason{ready_nodes.front()->name, is_at_limit ? "max_parallel" : "ready", subject + " ready", {}, ""};
  if (is_at_limit) {
    reason.reason += fmt::format(", and {} of {} places are taken", in_flight_count, evidence.max_parallel);
    reason.evidence.push_back(fmt::format("max_parallel of the definition: {}", evidence.max_parallel));
    reason.next_action = "wait for one in flight to end; a definition with a larger max_parallel lets more run";
  } else {
    reason.reason += " and not dispatched yet";
    reason.next_action = "wait: the coordinator dispatches next";
  }
  out.push_back(std::move(reason));
}

std::string_view to_flow_cause(std::string_view cause) {
  static const std::map<std::string_view, std::string_view> kFlowCauseOfJob = {{"running", "running"},
                                                                               {"cancelling", "cancelling"},
                                                                               {"unkillable", "unkillable"},
                                                                               {"runner_silent", "runner_silent"},
                                                                               {"lease_over", "lease_over"},
                                                                               {"queue_paused", "queue_paused"},
                                                                               {"no_runner", "no_runner"},
                                                                               {"slots_busy", "queued"},
                                                                               {"behind_others", "queued"},
                                                                               {"next", "queued"},
                                                                               {"postponed", "delayed"},
                                                                               {"due", "delayed"},
                                                                               {"quota", "quota"},
                                                                               {"retry_wait", "retry_wait"},
                                                                               {"dependencies", "dependencies"},
                                                                               {"dependency_absent", "dependencies"},
                                                                               {"cycle", "dependencies"},
                                                                               {"not_met", "prerequisites"},
                                                                               {"not_checked", "prerequisites"},
                                                                               {"slots_taken", "concurrency"},
                                                                               {"slot_free", "concurrency"}};
  const auto found = kFlowCauseOfJob.find(cause);
  return found == kFlowCauseOfJob.end() ? "" : found->second;
}

std::vector<FlowReason> find_node_reasons(const FlowEvidence& evidence) {
  std::vector<FlowReason> out;
  std::map<std::string, std::size_t> count_by_state;
  // A flow that is ending starts no pending nodes, so these nodes wait for nothing.
  const std::string& detail = evidence.view.detail;
  const bool is_ending = detail == "stopping" || detail == "cancelling" || detail == "compensating";
  for (const NodeView& node : evidence.view.nodes) {
    if (is_ending && node.status == NodeStatus::pending) continue;
    auto reason = find_node_reason(evidence, node);
    if (reason && ++count_by_state[reason->cause] <= kMaxListedPerState) out.push_back(std::move(*reason));
  }
  for (FlowReason& reason : out) {
    const std::size_t count = count_by_state[reason.cause];
    if (count > kMaxListedPerState)
      reason.evidence.push_back(fmt::format("{} nodes are in this state, {} are shown", count, kMaxListedPerState));
  }
  if (!is_ending && detail != "paused") add_ready_reason(evidence, out);
  return out;
}

std::vector<std::uint32_t> select_jobs(const FlowView& view, std::size_t max) {
  std::vector<std::uint32_t> out;
  std::map<std::string, std::size_t> count_by_state;
  const std::vector<std::uint32_t>* const kOrder[] = {&view.expired, &view.unapplied, &view.waiting, &view.visible,
                                                      &view.claimed};
  const auto select = [&](const NodeView& node) {
    if (node.job_key.empty() || out.size() >= max) return;
    if (std::find(out.begin(), out.end(), node.index) != out.end()) return;
    if (++count_by_state[std::string(to_string(node.status)) + " " + node.detail] <= kMaxListedPerState)
      out.push_back(node.index);
  };
  for (const NodeView& node : view.nodes) {
    if (node.status == NodeStatus::dispatched && (node.detail == "absent" || node.detail == "queued")) {
      const bool is_visible = std::binary_search(view.visible.begin(), view.visible.end(), node.index);
      if (!is_visible) select(node);
    }
  }
  for (const auto* list : kOrder) {
    for (std::uint32_t index : *list) {
      if (index >= view.nodes.size()) continue;
      const NodeView& node = view.nodes[index];
      // A closed gate belongs to the flow; the job of the node is not queued yet.
      if ((node.kind.empty() || node.kind == "job") && node.status != NodeStatus::pending) select(node);
    }
  }
  return out;
}

FlowReason make_job_reason(const FlowEvidence& evidence, const NodeView& node, const Explanation& job) {
  FlowReason out{node.name, std::string(to_flow_cause(job.cause)), "", job.evidence, job.next_action};
  const std::uint64_t now_ms = evidence.view.now_ms;
  if (node.detail == "ended") {
    out.cause = "unapplied";
    out.reason =
        fmt::format("the job of {} has ended ({}), and that was not applied yet", format_node(node), job.cause);
    out.next_action = evidence.leader.first.empty() ? "start a coordinator" : "wait: the coordinator applies it next";
    return out;
  }
  if (out.cause.empty()) out.cause = "job_lost";
  out.reason = fmt::format("{} ({}): {}", format_node(node), node.job_key, job.reason);
  if (node.status == NodeStatus::running) {
    const std::string lease =
        node.until_ms >= now_ms
            ? fmt::format("lease of runner {} expires in {}", node.runner, format_duration(node.until_ms - now_ms))
            : fmt::format("lease of runner {} expired {} ago", node.runner, format_duration(now_ms - node.until_ms));
    out.reason += format_since(node.started_ms, now_ms) + "; " + lease;
  }
  return out;
}

constexpr std::size_t kMaxShownFailures = 5;
constexpr std::size_t kMaxShownFlowAnomalies = 5;

// Formats the request that holds the flow, " by 12 since 14:02 UTC (3 min): comment"; empty if there is none.
std::string format_request(const FlowEvidence& evidence) {
  if (!evidence.view.hold_request) return "";
  const FlowAnswer& request = *evidence.view.hold_request;
  return fmt::format(" by {}{}{}{}", request.actor, format_since(request.at_ms, evidence.view.now_ms),
                     request.comment.empty() ? "" : ": ", request.comment);
}

std::string format_state_counts(const FlowView& view) {
  std::string text = fmt::format("{} of {} nodes settled", view.applied.size(), view.nodes.size());
  const std::pair<const char*, std::size_t> kinds[] = {
      {"running", view.claimed.size()},   {"with an expired lease", view.expired.size()},
      {"queued", view.visible.size()},    {"waiting", view.waiting.size()},
      {"for people", view.manual.size()}, {"ended and not applied", view.unapplied.size()}};
  for (const auto& [label, count] : kinds) {
    if (count > 0) text += fmt::format(", {} {}", count, label);
  }
  return text;
}

FlowReason make_flow_reason(const FlowEvidence& evidence, std::string cause, std::string reason,
                            std::string next_action) {
  return {"", std::move(cause), std::move(reason), {format_state_counts(evidence.view)}, std::move(next_action)};
}

// Returns whether a node failed for a reason other than a failed dependency.
bool has_failed(const NodeView& node) {
  return node.status == NodeStatus::failed && node.detail != "dependency_failed";
}

void add_failure_reasons(const FlowEvidence& evidence, std::vector<FlowReason>& out) {
  std::size_t failure_count = 0;
  for (const NodeView& node : evidence.view.nodes) {
    if (!has_failed(node) || ++failure_count > kMaxShownFailures) continue;
    FlowReason reason{node.name, "node_failed", "", {}, ""};
    reason.reason =
        fmt::format("{} failed: {}{}{}", format_node(node), node.detail, node.error.empty() ? "" : ": ", node.error);
    if (!node.job_key.empty()) {
      const std::string job = node.job_key.substr(4);
      const std::string context = format_context_flag(evidence);
      reason.evidence.push_back(fmt::format("{}, attempt {}{}", node.job_key, std::max(node.attempt, 1U),
                                            node.runner == 0 ? "" : fmt::format(", runner {}", node.runner)));
      reason.next_action = fmt::format("`mycojobs job logs {}{}` shows its output", job, context);
    }
    if (!evidence.is_compensating)
      reason.next_action +=
          (reason.next_action.empty() ? "" : "; ") + format_command(evidence, "retry", node.name) + " runs it again";
    out.push_back(std::move(reason));
  }
}

std::string list_failed_nodes(const FlowView& view) {
  std::string names;
  std::size_t count = 0;
  for (const NodeView& node : view.nodes) {
    if (!has_failed(node)) continue;
    if (++count <= 3) names += (names.empty() ? "" : ", ") + node.name;
  }
  return count > 3 ? fmt::format("{} and {} more", names, count - 3) : names;
}

FlowReason make_end_reason(const FlowEvidence& evidence) {
  const FlowView& view = evidence.view;
  if (view.status == kFlowStatusFinished) {
    return make_flow_reason(evidence, "finished", fmt::format("flow {} has finished", view.record.id),
                            "nothing; " + format_command(evidence, "result") + " shows its result");
  }
  const std::string error = view.record.error.empty() ? "" : ": " + view.record.error;
  const std::string replay = format_command(evidence, "replay") + " runs all of it again as a new flow";
  if (view.detail == "cancelled") {
    return make_flow_reason(evidence, "cancelled", "it was cancelled" + format_request(evidence), replay);
  }
  const std::string retry = evidence.is_compensating
                                ? replay + "; its completed nodes were undone, so it cannot be retried"
                                : format_command(evidence, "retry") + " resumes from the failed nodes; " + replay;
  if (view.detail == "timeout") return make_flow_reason(evidence, "timeout", "it ran out of time" + error, retry);
  const std::string failed_nodes = list_failed_nodes(view);
  return make_flow_reason(evidence, "failed",
                          "it failed" + (failed_nodes.empty() ? error : " because of " + failed_nodes + error), retry);
}

std::optional<FlowReason> find_hold_reason(const FlowEvidence& evidence) {
  const FlowView& view = evidence.view;
  if (view.detail == "cancelling") {
    return make_flow_reason(evidence, "cancelling", "it is being cancelled" + format_request(evidence),
                            "wait: running jobs receive TERM, and KILL after the grace time of the runner");
  }
  if (view.detail == "compensating") {
    return make_flow_reason(evidence, "compensating", "the flow fails; completed nodes are undone, the latest first",
                            "wait; " + format_command(evidence, "watch") + " shows it");
  }
  if (view.detail == "stopping") {
    const std::string failed_nodes = list_failed_nodes(view);
    return make_flow_reason(
        evidence, "stopping",
        "stopped by the failure of " + (failed_nodes.empty() ? "a node" : failed_nodes) + "; running nodes end first",
        evidence.is_compensating
            ? "wait for its end"
            : "wait for its end; " + format_command(evidence, "retry", "NODE") + " runs the failed node again");
  }
  if (view.detail == "paused") {
    return make_flow_reason(evidence, "paused", "paused" + format_request(evidence),
                            format_command(evidence, "resume") + " resumes it");
  }
  return std::nullopt;
}

std::vector<FlowReason> find_flow_reasons(const FlowEvidence& evidence) {
  const FlowView& view = evidence.view;
  std::vector<FlowReason> out;
  if (!view.has_plan && !has_ended(view) && view.detail != "creating") {
    FlowReason reason = make_flow_reason(evidence, "definition_missing",
                                         "its definition is missing or changed: the flow cannot continue",
                                         "write " + std::string(kDefinitionKey) + view.record.definition_hash +
                                             " from a backup; otherwise delete the flow and start it again");
    if (!view.anomalies.empty()) reason.evidence.push_back(view.anomalies.front());
    out.push_back(std::move(reason));
  }
  if (has_ended(view)) {
    out.push_back(make_end_reason(evidence));
    if (view.status == kFlowStatusError) add_failure_reasons(evidence, out);
  } else if (view.detail == "creating") {
    out.push_back(
        make_flow_reason(evidence, "creation_unfinished", "its creation has begun and is not finished",
                         "wait a few seconds; if the state persists, create it again: the same idempotency key resumes "
                         "the creation, otherwise retention deletes this flow"));
  } else if (view.status == kFlowStatusDispatched) {
    out.push_back(make_flow_reason(evidence, "not_started", "it was created but not started",
                                   format_command(evidence, "start") + " starts it"));
  } else {
    if (evidence.leader.first.empty()) {
      out.push_back(make_flow_reason(
          evidence, "coordinator_missing",
          fmt::format("no coordinator is the leader of context {}: running jobs continue, and no further nodes start",
                      evidence.context),
          fmt::format(
              "start one: `mycojobs coordinator --redis URL --context {}`; of the embedded default, `mycojobs dev`",
              evidence.context)));
    }
    if (auto reason = find_hold_reason(evidence)) out.push_back(std::move(*reason));
    if (view.detail == "stopping" || view.detail == "compensating") add_failure_reasons(evidence, out);
  }
  constexpr const char* kRebuild = "`mycojobs doctor --rebuild` restores it";
  if (!evidence.has_mark) {
    const std::string key = kFlowKey + std::to_string(view.record.id);
    out.push_back(make_flow_reason(evidence, "mark_missing", key + " is lost: the flow makes no progress", kRebuild));
  }
  if (!evidence.is_listed)
    out.push_back(make_flow_reason(evidence, "not_listed",
                                   std::string(kFlowCatalogKey) + " has no valid entry for it: `flow list` misses it",
                                   kRebuild));
  if (!view.anomalies.empty()) {
    FlowReason reason = make_flow_reason(
        evidence, "anomaly",
        count_with_noun(view.anomalies.size(), "entry", "entries") + " of its journal or record cannot be right",
        "`mycojobs verify` has details, `mycojobs doctor --rebuild` restores records");
    reason.evidence.assign(
        view.anomalies.begin(),
        view.anomalies.begin() + static_cast<std::ptrdiff_t>(std::min(kMaxShownFlowAnomalies, view.anomalies.size())));
    out.push_back(std::move(reason));
  }
  return out;
}

// The causes in the order of their importance: the first cause is shown first.
constexpr auto kFlowCauses = std::to_array<FlowCauseRow>({
    {"mark_missing", "the state key of the flow (mj:flow:<flow>) is lost: the flow makes no progress"},
    {"definition_missing", "the definition of the flow is missing or changed: the flow cannot continue"},
    {"creation_unfinished", "it is being created, or its creation was interrupted"},
    {"finished", "it has finished"},
    {"failed", "it has failed"},
    {"cancelled", "it was cancelled"},
    {"timeout", "it ran out of time"},
    {"not_started", "it was created but not started"},
    {"coordinator_missing",
     "no coordinator is the leader of the context: events of its jobs are applied once there is a leader"},
    {"node_failed", "a node failed, and the flow has ended or is stopping because of it"},
    {"cancelling", "a cancellation was requested; running jobs are requested to end"},
    {"stopping", "a node failed: no node starts, running nodes may end"},
    {"compensating", "the flow fails, and completed nodes are undone in reverse order"},
    {"paused", "it is paused: running nodes continue, no node starts"},
    {"job_lost", "the job of a node is not where it should be: another client's doing"},
    {"lease_over", "the lease of a node's job has expired; any agent returns it to its queue"},
    {"unkillable", "a process of a node's job does not end on KILL"},
    {"runner_silent", "the runner of a node's job sends no heartbeat; its lease has not expired"},
    {"no_runner", "no live runner serves the queue of a node's job"},
    {"queue_paused", "the queue of a node's job is paused"},
    {"approval", "a node waits to be approved"},
    {"pause", "a node is a pause, and waits to be resumed"},
    {"signal", "a node waits for a signal"},
    {"prerequisites", "the prerequisites of a node's job are not met"},
    {"dependencies", "the job of a node waits for jobs outside of the flow"},
    {"concurrency", "as many jobs of its concurrency key run as may"},
    {"retry_wait", "the last attempt of a node's job failed; the next one is due later"},
    {"delayed", "the job of a node was submitted to run later"},
    {"quota", "the jobs of the flow's caller keep more than a quota allows, so that no node starts"},
    {"child_flow", "a node waits for the flow that it has started"},
    {"other_flow", "a node waits for another flow"},
    {"timer", "a node waits for a time"},
    {"running", "a runner has the job of a node"},
    {"queued", "the job of a node is in its queue and will be taken"},
    {"max_parallel", "as many of its jobs are in flight as its definition allows"},
    {"unapplied", "an event is pending and is applied by the coordinator next"},
    {"ready", "a node is ready, and the coordinator dispatches it next"},
    {"anomaly", "its journal or record has an invalid entry"},
    {"not_listed", "the catalog has no entry for it, or a malformed one: `flow list` does not show it"},
});

constexpr std::size_t kMaxReasons = 20;

std::size_t get_cause_rank(const FlowReason& reason) {
  const auto row = std::find_if(kFlowCauses.begin(), kFlowCauses.end(),
                                [&](const FlowCauseRow& candidate) { return candidate.cause == reason.cause; });
  return static_cast<std::size_t>(row - kFlowCauses.begin());
}

Result<FlowEvidence> read_evidence(FlowStore& flows, Store& store, Id context, Id flow) {
  MJ_TRY(loaded_flow, load_flow(flows, context, flow));
  FlowEvidence evidence;
  evidence.context = context;
  if (loaded_flow.plan) evidence.max_parallel = loaded_flow.plan->max_parallel;
  evidence.is_compensating = loaded_flow.state.compensating;
  MJ_TRY(view, make_flow_view(std::move(loaded_flow), flows, store, context, 5000));
  evidence.view = std::move(view);
  MJ_TRY(leader, flows.leader(context));
  evidence.leader = std::move(leader);
  // Entries that cannot be read are reported by verify().
  if (const auto entries = flows.read_index_entries(context, flow)) {
    evidence.has_mark = !entries->state.empty() || evidence.view.record.definition_hash.empty();
    const bool is_created = !entries->state.empty() && entries->state != kFlowStateCreating;
    evidence.is_listed = !is_created || entries->in_catalog;
  }
  return evidence;
}

std::string format_command(const FlowEvidence& evidence, std::string_view verb, std::string_view rest) {
  return fmt::format("`mycojobs flow {} {}{}{}{}`", verb, evidence.view.record.id, rest.empty() ? "" : " ", rest,
                     format_context_flag(evidence));
}

std::string format_since(std::uint64_t at_ms, std::uint64_t now_ms) {
  if (at_ms == 0 || at_ms > now_ms) return "";
  static constexpr std::uint64_t kDay = 24ULL * 3600 * 1000;
  const auto utc_time = fmt::gmtime(static_cast<std::time_t>(std::min<std::uint64_t>(at_ms / 1000, 253402300799)));
  return (now_ms - at_ms < kDay ? fmt::format(" since {:%H:%M} UTC", utc_time)
                                : fmt::format(" since {:%Y-%m-%d %H:%M} UTC", utc_time)) +
         fmt::format(" ({})", format_duration(now_ms - at_ms));
}

std::string format_node(const NodeView& node) { return "node " + node.name; }

}  // namespace

std::vector<FlowCauseRow> flow_causes() { return {kFlowCauses.begin(), kFlowCauses.end()}; }

Result<std::vector<FlowReason>> explain_flow(FlowStore& flows, Store& store, Id context, Id flow) {
  MJ_TRY(evidence, read_evidence(flows, store, context, flow));
  std::vector<FlowReason> reasons = find_flow_reasons(evidence);
  if (!has_ended(evidence.view)) {
    for (FlowReason& reason : find_node_reasons(evidence)) reasons.push_back(std::move(reason));
    for (std::uint32_t index : select_jobs(evidence.view, kMaxReasons)) {
      MJ_TRY(explanation, explain(store, context, evidence.view.nodes[index].job_key));
      reasons.push_back(make_job_reason(evidence, evidence.view.nodes[index], explanation));
    }
  }
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const FlowReason& a, const FlowReason& b) { return get_cause_rank(a) < get_cause_rank(b); });
  if (reasons.size() > kMaxReasons) reasons.resize(kMaxReasons);
  return reasons;
}

}  // namespace mycojobs
