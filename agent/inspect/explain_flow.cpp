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
#include "text/plural.h"
#include "text/shell_word.h"

namespace mycojobs {
namespace {

// The data from which reasons are derived.
struct FlowEvidence {
  Id context = 1;
  FlowView view;
  std::uint32_t max_parallel = 0;  // limit in the definition
  bool undone = false;             // a compensation was called, so that the flow cannot be retried
  bool has_mark = true;            // also true if no mark is needed because another client wrote the flow
  bool is_listed = true;
  std::pair<std::string, std::string> leader;
};

// The explanation of the job of a waiting node.
struct JobReason {
  std::uint32_t node = 0;
  std::string cause, reason, next;  // see inspect/explain.h
  std::vector<std::string> evidence;
};

std::vector<FlowReason> of_flow(const FlowEvidence&);   // reasons that hold or advance the flow as a whole
std::vector<FlowReason> of_nodes(const FlowEvidence&);  // approvals, pauses, gates, waits, child flows, a reached limit
FlowReason of_job(const FlowEvidence&, const JobReason&);
// Selects nodes for which the job is explained, the most informative first, with only a few nodes per state.
std::vector<std::uint32_t> jobs_to_ask(const FlowView&, std::size_t max);

// For example "`mycojobs flow approve 12 ok --context 3`".
std::string command(const FlowEvidence&, std::string_view verb, std::string_view rest = "");
// For example "since 14:02 UTC (3 min)".
std::string since(std::uint64_t at_ms, std::uint64_t now_ms);
std::string named(const NodeView&);  // For example "node deploy".

// Reasons that hold or advance single nodes.

constexpr std::size_t kAlike = 5;  // maximum number of nodes of the same state that are listed one by one

std::string allowed_roles(const NodeView& node) {
  if (node.approvers.empty())
    return "the creator of the flow and the admins of the context may decide; without a record of the context, any "
           "actor";
  return fmt::format("{} {} may decide, and the context's admins", node.approvers.size() == 1 ? "actor" : "actors",
                     fmt::join(node.approvers, ", "));
}

std::string limit(const NodeView& node, std::uint64_t now_ms) {
  if (node.until_ms == 0) return "";
  return node.until_ms > now_ms ? fmt::format("fails in {} without a decision", span_text(node.until_ms - now_ms))
                                : "its time limit is over";
}

void add_evidence(FlowReason& reason, std::string line) {
  if (!line.empty()) reason.evidence.push_back(std::move(line));
}

FlowReason of_gate(const FlowEvidence& known, const NodeView& node, const std::string& gate) {
  const std::uint64_t now = known.view.now_ms;
  FlowReason reason{node.name, "", named(node) + " waits for " + gate + since(node.since_ms, now), {}, ""};
  const std::string name = quote_for_shell(gate.substr(std::min(gate.size(), gate.find(':') + 1)));
  if (gate.starts_with("approval:")) {
    reason.cause = "approval";
    add_evidence(reason, allowed_roles(node));
    reason.next =
        command(known, "approve", name + " --actor ID") + ", or " + command(known, "reject", name + " --actor ID");
  } else if (gate.starts_with("signal:")) {
    reason.cause = "signal";
    reason.next = command(known, "signal", name);
  } else {
    reason.cause = "other_flow";
    reason.next = fmt::format("`mycojobs flow explain {}{}` explains why that flow has not ended", name,
                              known.context == 1 ? "" : fmt::format(" --context {}", known.context));
  }
  add_evidence(reason, limit(node, now));
  return reason;
}

FlowReason of_person(const FlowEvidence& known, const NodeView& node) {
  const std::uint64_t now = known.view.now_ms;
  const bool approval = node.detail == "approval";
  FlowReason reason{node.name,
                    approval ? "approval" : "pause",
                    named(node) + (approval ? " waits for approval" : " is a pause") + since(node.since_ms, now),
                    {},
                    ""};
  if (!node.asks.empty()) add_evidence(reason, "asks: " + node.asks);
  add_evidence(reason, allowed_roles(node));
  add_evidence(reason, limit(node, now));
  reason.next = approval ? command(known, "approve", node.name + " --actor ID") + ", or " +
                               command(known, "reject", node.name + " --actor ID")
                         : command(known, "resume", node.name);
  return reason;
}

FlowReason of_child(const FlowEvidence& known, const NodeView& node) {
  const std::string context = known.context == 1 ? "" : fmt::format(" --context {}", known.context);
  if (node.child == 0) {
    return {node.name,
            "child_flow",
            named(node) + " starts a flow, and has no id of it yet" + since(node.since_ms, known.view.now_ms),
            {},
            "wait: the coordinator creates it next"};
  }
  return {node.name,
          "child_flow",
          fmt::format("{} waits for its child, flow {}{}", named(node), node.child,
                      since(node.since_ms, known.view.now_ms)),
          {},
          fmt::format("`mycojobs flow explain {}{}` explains the state of that flow", node.child, context)};
}

std::optional<FlowReason> of_node(const FlowEvidence& known, const NodeView& node) {
  const std::uint64_t now = known.view.now_ms;
  if (node.status == NodeStatus::pending && node.detail == "gate" && !node.gates.empty())
    return of_gate(known, node, node.gates.front());
  if (node.status != NodeStatus::dispatched) return std::nullopt;
  if (node.detail == "approval" || node.detail == "pause") return of_person(known, node);
  if (node.detail == "flow") return of_child(known, node);
  if (node.detail != "wait") return std::nullopt;
  return FlowReason{node.name,
                    "timer",
                    node.until_ms > now ? fmt::format("{} waits {} more", named(node), span_text(node.until_ms - now))
                                        : named(node) + " has waited long enough",
                    {},
                    "wait"};
}

// Adds one reason for all ready nodes.
void report_ready(const FlowEvidence& known, std::vector<FlowReason>& out) {
  std::vector<const NodeView*> ready;
  std::size_t in_flight = 0;
  for (const NodeView& node : known.view.nodes) {
    if (node.status == NodeStatus::ready && node.until_ms == 0) ready.push_back(&node);
    const bool delayed = node.status == NodeStatus::ready && node.until_ms != 0;
    in_flight += node.status == NodeStatus::dispatched || node.status == NodeStatus::running || delayed ? 1 : 0;
  }
  if (ready.empty()) return;
  const std::string who = ready.size() == 1
                              ? named(*ready.front()) + " is"
                              : fmt::format("{} and {} more are", named(*ready.front()), ready.size() - 1);
  const bool bounded = known.max_parallel > 0 && in_flight >= known.max_parallel;
  FlowReason reason{ready.front()->name, bounded ? "max_parallel" : "ready", who + " ready", {}, ""};
  if (bounded) {
    reason.reason += fmt::format(", and {} of {} places are taken", in_flight, known.max_parallel);
    reason.evidence.push_back(fmt::format("max_parallel of the definition: {}", known.max_parallel));
    reason.next = "wait for one in flight to end; a definition with a larger max_parallel lets more run";
  } else {
    reason.reason += " and not dispatched yet";
    reason.next = "wait: the coordinator dispatches next";
  }
  out.push_back(std::move(reason));
}

std::string_view cause_of_job(std::string_view cause) {
  static const std::map<std::string_view, std::string_view> kOfFlows = {{"running", "running"},
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
  const auto found = kOfFlows.find(cause);
  return found == kOfFlows.end() ? "" : found->second;
}

std::vector<FlowReason> of_nodes(const FlowEvidence& known) {
  std::vector<FlowReason> out;
  std::map<std::string, std::size_t> alike;
  // A flow that is ending starts no pending nodes, so these nodes wait for nothing.
  const std::string& detail = known.view.detail;
  const bool ending = detail == "stopping" || detail == "cancelling" || detail == "compensating";
  for (const NodeView& node : known.view.nodes) {
    if (ending && node.status == NodeStatus::pending) continue;
    auto reason = of_node(known, node);
    if (reason && ++alike[reason->cause] <= kAlike) out.push_back(std::move(*reason));
  }
  for (FlowReason& reason : out) {
    const std::size_t all = alike[reason.cause];
    if (all > kAlike) reason.evidence.push_back(fmt::format("{} nodes are in this state, {} are shown", all, kAlike));
  }
  if (!ending && detail != "paused") report_ready(known, out);
  return out;
}

std::vector<std::uint32_t> jobs_to_ask(const FlowView& view, std::size_t max) {
  std::vector<std::uint32_t> out;
  std::map<std::string, std::size_t> alike;
  const std::vector<std::uint32_t>* const kOrder[] = {&view.expired, &view.unapplied, &view.waiting, &view.visible,
                                                      &view.claimed};
  const auto ask = [&](const NodeView& node) {
    if (node.job_key.empty() || out.size() >= max) return;
    if (std::find(out.begin(), out.end(), node.index) != out.end()) return;
    if (++alike[std::string(to_string(node.status)) + " " + node.detail] <= kAlike) out.push_back(node.index);
  };
  for (const NodeView& node : view.nodes) {
    if (node.status == NodeStatus::dispatched && (node.detail == "absent" || node.detail == "queued")) {
      const bool placed = std::binary_search(view.visible.begin(), view.visible.end(), node.index);
      if (!placed) ask(node);
    }
  }
  for (const auto* list : kOrder) {
    for (std::uint32_t index : *list) {
      if (index >= view.nodes.size()) continue;
      const NodeView& node = view.nodes[index];
      // A closed gate belongs to the flow; the job of the node is not queued yet.
      if ((node.kind.empty() || node.kind == "job") && node.status != NodeStatus::pending) ask(node);
    }
  }
  return out;
}

FlowReason of_job(const FlowEvidence& known, const JobReason& job) {
  const NodeView& node = known.view.nodes[job.node];
  FlowReason out{node.name, std::string(cause_of_job(job.cause)), "", job.evidence, job.next};
  const std::uint64_t now = known.view.now_ms;
  if (node.detail == "ended") {
    out.cause = "unapplied";
    out.reason = fmt::format("the job of {} has ended ({}), and that was not applied yet", named(node), job.cause);
    out.next = known.leader.first.empty() ? "start a coordinator" : "wait: the coordinator applies it next";
    return out;
  }
  if (out.cause.empty()) out.cause = "job_lost";
  out.reason = fmt::format("{} ({}): {}", named(node), node.job_key, job.reason);
  if (node.status == NodeStatus::running) {
    const std::string lease =
        node.until_ms >= now
            ? fmt::format("lease of runner {} expires in {}", node.runner, span_text(node.until_ms - now))
            : fmt::format("lease of runner {} expired {} ago", node.runner, span_text(now - node.until_ms));
    out.reason += since(node.started_ms, now) + "; " + lease;
  }
  return out;
}

// Reasons that hold or advance a flow as a whole.

constexpr std::size_t kFailuresShown = 5;
constexpr std::size_t kAnomaliesShown = 5;

// For example " by 12 since 14:02 UTC (3 min): comment"; empty: the actor is unknown.
std::string by_actor(const FlowEvidence& known) {
  if (!known.view.held_by) return "";
  const FlowAnswer& who = *known.view.held_by;
  return fmt::format(" by {}{}{}{}", who.actor, since(who.at_ms, known.view.now_ms), who.comment.empty() ? "" : ": ",
                     who.comment);
}

std::string counts(const FlowView& view) {
  std::string text = fmt::format("{} of {} nodes settled", view.applied.size(), view.nodes.size());
  const std::pair<const char*, std::size_t> kinds[] = {
      {"running", view.claimed.size()},   {"with an expired lease", view.expired.size()},
      {"queued", view.visible.size()},    {"waiting", view.waiting.size()},
      {"for people", view.manual.size()}, {"ended and not applied", view.unapplied.size()}};
  for (const auto& [what, count] : kinds) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  }
  return text;
}

FlowReason about(const FlowEvidence& known, std::string cause, std::string reason, std::string next) {
  return {"", std::move(cause), std::move(reason), {counts(known.view)}, std::move(next)};
}

// Returns whether a node failed for a reason other than a failed dependency.
bool failed_itself(const NodeView& node) {
  return node.status == NodeStatus::failed && node.detail != "dependency_failed";
}

void report_failures(const FlowEvidence& known, std::vector<FlowReason>& out) {
  std::size_t shown_failures = 0;
  for (const NodeView& node : known.view.nodes) {
    if (!failed_itself(node) || ++shown_failures > kFailuresShown) continue;
    FlowReason reason{node.name, "node_failed", "", {}, ""};
    reason.reason =
        fmt::format("{} failed: {}{}{}", named(node), node.detail, node.error.empty() ? "" : ": ", node.error);
    if (!node.job_key.empty()) {
      const std::string job = node.job_key.substr(4);
      const std::string context = known.context == 1 ? "" : fmt::format(" --context {}", known.context);
      reason.evidence.push_back(fmt::format("{}, attempt {}{}", node.job_key, std::max(node.attempt, 1U),
                                            node.runner == 0 ? "" : fmt::format(", runner {}", node.runner)));
      reason.next = fmt::format("`mycojobs job logs {}{}` shows its output", job, context);
    }
    if (!known.undone)
      reason.next += (reason.next.empty() ? "" : "; ") + command(known, "retry", node.name) + " runs it again";
    out.push_back(std::move(reason));
  }
}

std::string failures(const FlowView& view) {
  std::string names;
  std::size_t count = 0;
  for (const NodeView& node : view.nodes) {
    if (!failed_itself(node)) continue;
    if (++count <= 3) names += (names.empty() ? "" : ", ") + node.name;
  }
  return count > 3 ? fmt::format("{} and {} more", names, count - 3) : names;
}

FlowReason ended(const FlowEvidence& known) {
  const FlowView& view = known.view;
  if (view.status == "finished") {
    return about(known, "finished", fmt::format("flow {} has finished", view.record.id),
                 "nothing; " + command(known, "result") + " shows its result");
  }
  const std::string error = view.record.error.empty() ? "" : ": " + view.record.error;
  const std::string replay = command(known, "replay") + " runs all of it again as a new flow";
  if (view.detail == "cancelled") {
    return about(known, "cancelled", "it was cancelled" + by_actor(known), replay);
  }
  const std::string retry = known.undone ? replay + "; its completed nodes were undone, so it cannot be retried"
                                         : command(known, "retry") + " resumes from the failed nodes; " + replay;
  if (view.detail == "timeout") return about(known, "timeout", "it ran out of time" + error, retry);
  const std::string who = failures(view);
  return about(known, "failed", "it failed" + (who.empty() ? error : " because of " + who + error), retry);
}

std::optional<FlowReason> held_as_a_whole(const FlowEvidence& known) {
  const FlowView& view = known.view;
  if (view.detail == "cancelling") {
    return about(known, "cancelling", "it is being cancelled" + by_actor(known),
                 "wait: running jobs receive TERM, and KILL after the grace time of the runner");
  }
  if (view.detail == "compensating") {
    return about(known, "compensating", "the flow fails; completed nodes are undone, the latest first",
                 "wait; " + command(known, "watch") + " shows it");
  }
  if (view.detail == "stopping") {
    const std::string who = failures(view);
    return about(known, "stopping",
                 "stopped by the failure of " + (who.empty() ? "a node" : who) + "; running nodes end first",
                 known.undone ? "wait for its end"
                              : "wait for its end; " + command(known, "retry", "NODE") + " runs the failed node again");
  }
  if (view.detail == "paused") {
    return about(known, "paused", "paused" + by_actor(known), command(known, "resume") + " resumes it");
  }
  return std::nullopt;
}

std::vector<FlowReason> of_flow(const FlowEvidence& known) {
  const FlowView& view = known.view;
  const bool over = view.status == "finished" || view.status == "error";
  std::vector<FlowReason> out;
  if (!view.has_plan && !over && view.detail != "creating") {
    FlowReason reason =
        about(known, "definition_missing", "its definition is missing or changed: the flow cannot continue",
              "write mj:definition:" + view.record.definition_hash +
                  " from a backup; otherwise delete the flow and start it again");
    if (!view.anomalies.empty()) reason.evidence.push_back(view.anomalies.front());
    out.push_back(std::move(reason));
  }
  if (over) {
    out.push_back(ended(known));
    if (view.status == "error") report_failures(known, out);
  } else if (view.detail == "creating") {
    out.push_back(about(known, "creation_unfinished", "its creation has begun and is not finished",
                        "wait a few seconds; if the state persists, create it again: the same idempotency key resumes "
                        "the creation, otherwise retention deletes this flow"));
  } else if (view.status == "dispatched") {
    out.push_back(
        about(known, "not_started", "it was created but not started", command(known, "start") + " starts it"));
  } else {
    if (known.leader.first.empty()) {
      out.push_back(about(
          known, "coordinator_missing",
          fmt::format("no coordinator is the leader of context {}: running jobs continue, and no further nodes start",
                      known.context),
          fmt::format(
              "start one: `mycojobs coordinator --redis URL --context {}`; of the embedded default, `mycojobs dev`",
              known.context)));
    }
    if (auto reason = held_as_a_whole(known)) out.push_back(std::move(*reason));
    if (view.detail == "stopping" || view.detail == "compensating") report_failures(known, out);
  }
  constexpr const char* kRebuild = "`mycojobs doctor --rebuild` restores it";
  if (!known.has_mark) {
    const std::string key = "mj:flow:" + std::to_string(view.record.id);
    out.push_back(about(known, "mark_missing", key + " is lost: the flow makes no progress", kRebuild));
  }
  if (!known.is_listed)
    out.push_back(about(known, "not_listed", "mj:catalog has no valid entry for it: `flow list` misses it", kRebuild));
  if (!view.anomalies.empty()) {
    FlowReason reason =
        about(known, "anomaly",
              count_with_noun(view.anomalies.size(), "entry", "entries") + " of its journal or record cannot be right",
              "`mycojobs verify` has details, `mycojobs doctor --rebuild` restores records");
    reason.evidence.assign(
        view.anomalies.begin(),
        view.anomalies.begin() + static_cast<std::ptrdiff_t>(std::min(kAnomaliesShown, view.anomalies.size())));
    out.push_back(std::move(reason));
  }
  return out;
}

// Sorted by importance: the first cause is shown first.
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

std::size_t rank(const FlowReason& reason) {
  const auto row = std::find_if(kFlowCauses.begin(), kFlowCauses.end(),
                                [&](const FlowCauseRow& each) { return each.cause == reason.cause; });
  return static_cast<std::size_t>(row - kFlowCauses.begin());
}

bool has_ended(const FlowView& view) { return view.status == "finished" || view.status == "error"; }

Result<FlowEvidence> learn(FlowStore& flows, Store& store, Id context, Id flow) {
  MJ_TRY(reading, read_flow(flows, context, flow));
  FlowEvidence known;
  known.context = context;
  if (reading.plan) known.max_parallel = reading.plan->max_parallel;
  known.undone = reading.state.compensating;
  MJ_TRY(view, view_of(std::move(reading), flows, store, context, 5000));
  known.view = std::move(view);
  MJ_TRY(leader, flows.leader(context));
  known.leader = std::move(leader);
  // verify() reports places that cannot be read.
  if (const auto places = flows.places(context, flow)) {
    known.has_mark = !places->state.empty() || known.view.record.definition_hash.empty();
    const bool is_whole = !places->state.empty() && places->state != "creating";
    known.is_listed = !is_whole || places->listed;
  }
  return known;
}

std::string command(const FlowEvidence& known, std::string_view verb, std::string_view rest) {
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

}  // namespace

std::vector<FlowCauseRow> flow_causes() { return {kFlowCauses.begin(), kFlowCauses.end()}; }

Result<std::vector<FlowReason>> explain_flow(FlowStore& flows, Store& store, Id context, Id flow) {
  MJ_TRY(known, learn(flows, store, context, flow));
  std::vector<FlowReason> reasons = of_flow(known);
  if (!has_ended(known.view)) {
    for (FlowReason& reason : of_nodes(known)) reasons.push_back(std::move(reason));
    for (std::uint32_t index : jobs_to_ask(known.view, kMaxReasons)) {
      MJ_TRY(why, explain(store, context, known.view.nodes[index].job_key));
      reasons.push_back(of_job(known, {index, why.cause, why.reason, why.next, why.evidence}));
    }
  }
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const FlowReason& a, const FlowReason& b) { return rank(a) < rank(b); });
  if (reasons.size() > kMaxReasons) reasons.resize(kMaxReasons);
  return reasons;
}

}  // namespace mycojobs
