// explain_flow(): what holds or moves single nodes.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "inspect/explain_flow_parts.h"
#include "inspect/runners.h"

namespace mycojobs::explaining_flow {
namespace {

constexpr std::size_t kAlike = 5;  // nodes that stand alike and are told one by one

std::string who_may(const NodeView& node) {
  if (node.approvers.empty())
    return "who made the flow may decide, and the context's admins; without a record of it anybody";
  return fmt::format("{} {} may decide, and the context's admins", node.approvers.size() == 1 ? "actor" : "actors",
                     fmt::join(node.approvers, ", "));
}

std::string limit(const NodeView& node, std::uint64_t now_ms) {
  if (node.until_ms == 0) return "";
  return node.until_ms > now_ms ? fmt::format("fails in {} if nothing comes", span_text(node.until_ms - now_ms))
                                : "its time limit is over";
}

void add_evidence(FlowReason& reason, std::string line) {
  if (!line.empty()) reason.evidence.push_back(std::move(line));
}

FlowReason of_gate(const Known& known, const NodeView& node, const std::string& gate) {
  const std::uint64_t now = known.view.now_ms;
  FlowReason reason{node.name, "", named(node) + " waits for " + gate + since(node.since_ms, now), {}, ""};
  const std::string name = gate.substr(std::min(gate.size(), gate.find(':') + 1));
  if (gate.starts_with("approval:")) {
    reason.cause = "approval";
    add_evidence(reason, who_may(node));
    reason.next =
        command(known, "approve", name + " --actor ID") + ", or " + command(known, "reject", name + " --actor ID");
  } else if (gate.starts_with("signal:")) {
    reason.cause = "signal";
    reason.next = command(known, "signal", name);
  } else {
    reason.cause = "other_flow";
    reason.next = fmt::format("`mycojobs flow explain {}{}` says why that one is not over", name,
                              known.context == 1 ? "" : fmt::format(" --context {}", known.context));
  }
  add_evidence(reason, limit(node, now));
  return reason;
}

FlowReason of_person(const Known& known, const NodeView& node) {
  const std::uint64_t now = known.view.now_ms;
  const bool approval = node.detail == "approval";
  FlowReason reason{node.name,
                    approval ? "approval" : "pause",
                    named(node) + (approval ? " waits for approval" : " is a pause") + since(node.since_ms, now),
                    {},
                    ""};
  if (!node.asks.empty()) add_evidence(reason, "asks: " + node.asks);
  add_evidence(reason, who_may(node));
  add_evidence(reason, limit(node, now));
  reason.next = approval ? command(known, "approve", node.name + " --actor ID") + ", or " +
                               command(known, "reject", node.name + " --actor ID")
                         : command(known, "resume", node.name);
  return reason;
}

FlowReason of_child(const Known& known, const NodeView& node) {
  const std::string context = known.context == 1 ? "" : fmt::format(" --context {}", known.context);
  if (node.child == 0) {
    return {node.name,
            "child_flow",
            named(node) + " starts a flow, and has not been told its id yet" + since(node.since_ms, known.view.now_ms),
            {},
            "wait: the coordinator creates it next"};
  }
  return {node.name,
          "child_flow",
          fmt::format("{} waits for its child, flow {}{}", named(node), node.child,
                      since(node.since_ms, known.view.now_ms)),
          {},
          fmt::format("`mycojobs flow explain {}{}` says where that one is", node.child, context)};
}

std::optional<FlowReason> of_node(const Known& known, const NodeView& node) {
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

// Ready nodes stand alike: one reason for all of them.
void tell_ready(const Known& known, std::vector<FlowReason>& out) {
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
  static const std::map<std::string_view, std::string_view> kCauses = {{"running", "running"},
                                                                       {"cancelling", "cancelling"},
                                                                       {"unkillable", "unkillable"},
                                                                       {"runner_silent", "runner_silent"},
                                                                       {"lease_over", "lease_over"},
                                                                       {"queue_paused", "queue_paused"},
                                                                       {"no_runner", "no_runner"},
                                                                       {"slots_busy", "queued"},
                                                                       {"behind_others", "queued"},
                                                                       {"next", "queued"},
                                                                       {"not_yet_due", "delayed"},
                                                                       {"due", "delayed"},
                                                                       {"retry_wait", "retry_wait"},
                                                                       {"dependencies", "dependencies"},
                                                                       {"dependency_absent", "dependencies"},
                                                                       {"cycle", "dependencies"},
                                                                       {"not_met", "prerequisites"},
                                                                       {"not_checked", "prerequisites"},
                                                                       {"slots_taken", "concurrency"},
                                                                       {"slot_free", "concurrency"}};
  const auto found = kCauses.find(cause);
  return found == kCauses.end() ? "" : found->second;
}

}  // namespace

std::vector<FlowReason> of_nodes(const Known& known) {
  std::vector<FlowReason> out;
  std::map<std::string, std::size_t> alike;
  // What a flow that goes to its end will not begin any more waits for nothing.
  const std::string& detail = known.view.detail;
  const bool ending = detail == "stopping" || detail == "cancelling" || detail == "compensating";
  for (const NodeView& node : known.view.nodes) {
    if (ending && node.status == NodeStatus::pending) continue;
    auto reason = of_node(known, node);
    if (reason && ++alike[reason->cause] <= kAlike) out.push_back(std::move(*reason));
  }
  for (FlowReason& reason : out) {
    const std::size_t all = alike[reason.cause];
    if (all > kAlike) reason.evidence.push_back(fmt::format("{} nodes stand like this, {} are told", all, kAlike));
  }
  if (!ending && detail != "paused") tell_ready(known, out);
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
    if (++alike[std::string(word(node.status)) + " " + node.detail] <= kAlike) out.push_back(node.index);
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
      // A gate is the flow's: its job is in no queue yet.
      if ((node.kind.empty() || node.kind == "job") && node.status != NodeStatus::pending) ask(node);
    }
  }
  return out;
}

FlowReason of_job(const Known& known, const JobReason& job) {
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

}  // namespace mycojobs::explaining_flow
