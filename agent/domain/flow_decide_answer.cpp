// Answers to what waits for people: approval and pause nodes, gates, signals.
#include <algorithm>

#include "domain/flow_decide_run.h"
#include "domain/transitions.h"
#include "domain/utf8.h"

namespace mycojobs::runs {
namespace {

using Verb = FlowControl::Verb;

bool may_answer(const NodeState& node, const FlowControl& control) {
  const auto& who = node.approvers;
  if (who.empty()) return control.steers || control.admin;
  return control.admin || std::find(who.begin(), who.end(), control.actor) != who.end();
}

tl::unexpected<Error> refuse_actor(const FlowControl& control, const std::string& what) {
  return fail(Code::denied, "actor: " + std::to_string(control.actor) + " is no approver of " + what +
                                ": one of its approvers, or an admin, has to say it");
}

std::string rejection(const FlowControl& control) {
  return "rejected by " + std::to_string(control.actor) + (control.comment.empty() ? "" : ": " + control.comment);
}

bool has_gate(const FlowPlan& plan, const std::string& gate) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [&](const PlanNode& node) {
    return std::find(node.gates.begin(), node.gates.end(), gate) != node.gates.end();
  });
}

}  // namespace
}  // namespace mycojobs::runs

namespace mycojobs {

bool names_approver(const FlowPlan& plan, Id actor) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [&](const PlanNode& node) {
    return std::find(node.approvers.begin(), node.approvers.end(), actor) != node.approvers.end();
  });
}

}  // namespace mycojobs

namespace mycojobs::runs {

Result<void> Deciding::answer(const FlowControl& control) {
  if (!control.steers && !control.admin && !names_approver(plan_, control.actor)) {
    return fail(Code::denied, "actor: " + std::to_string(control.actor) +
                                  " is no approver of this flow, and has not created it: one of its approvers, its "
                                  "creator, or an admin of the context has to say it");
  }
  if (control.target.empty()) {
    return fail(Code::invalid, "target: " + std::string(word(control.verb)) + " what? Name the node or the approval");
  }
  const auto target = plan_.find(control.target);
  const NodeKind kind = target ? planned(*target).kind : NodeKind::job;
  if (kind == NodeKind::approval || kind == NodeKind::pause) return answer_node(control, *target);
  const std::string gate = "approval:" + control.target;
  if (control.verb != Verb::resume && has_gate(plan_, gate)) return answer_gate(control, gate);
  if (!target) {
    return fail(Code::not_found, "target: there is no node and no approval " + shown(control.target) +
                                     " in this flow; `flow explain` names what waits");
  }
  for (const std::string& each : planned(*target).gates) {
    if (each.substr(0, 9) != "approval:" || control.verb == Verb::resume) continue;
    return fail(Code::conflict, "node " + control.target + " waits for " + each + ": name that, " + each.substr(9));
  }
  return fail(Code::conflict, "node " + control.target + " is a node of kind " + std::string(word(kind)) +
                                  ": there is nothing to " + std::string(word(control.verb)));
}

Result<void> Deciding::answer_node(const FlowControl& control, std::uint32_t i) {
  const std::string what = "node " + planned(i).name;
  if (control.verb == Verb::resume && planned(i).kind == NodeKind::approval) {
    return fail(Code::conflict, what + " is an approval: approve or reject it");
  }
  if (!in_flight(i)) {
    return fail(Code::conflict, what + " does not wait for an answer: it is " + std::string(word(node(i).status)) +
                                    ' ' + node(i).detail);
  }
  if (!may_answer(node(i), control)) return refuse_actor(control, what);
  record(control);
  if (control.verb == Verb::reject) {
    fail_node(i, "rejected", rejection(control), false);
    return {};
  }
  TextMap values{{"actor", std::to_string(control.actor)}};
  if (!control.comment.empty()) values["comment"] = control.comment;
  complete(i, values, false, bytes_of(values));
  return {};
}

// Every node that waits for it and that this actor may answer for.
Result<void> Deciding::answer_gate(const FlowControl& control, const std::string& gate) {
  std::vector<std::uint32_t> found;
  bool waits = false;
  for (const std::uint32_t i : run().gated) {
    const auto& gates = node(i).gates;
    if (std::find(gates.begin(), gates.end(), gate) == gates.end()) continue;
    waits = true;
    if (may_answer(node(i), control)) found.push_back(i);
  }
  if (!waits) return fail(Code::conflict, "nothing waits for " + gate + " now");
  if (found.empty()) return refuse_actor(control, gate);
  record(control);
  for (const std::uint32_t i : found) {
    if (control.verb == Verb::reject) {
      fail_node(i, "rejected", rejection(control), false);
    } else {
      open_gate(i, gate);
    }
  }
  return {};
}

// It opens its gates now and those that will be reached: who sends it need not know how far the flow is.
Result<void> Deciding::signal(const FlowControl& control) {
  if (control.target.empty()) return fail(Code::invalid, "target: name the signal");
  const std::string gate = "signal:" + control.target;
  if (!has_gate(plan_, gate)) {
    return fail(Code::not_found, "target: no node of this flow waits for " + gate);
  }
  record(control);
  const auto gated = run().gated;
  for (const std::uint32_t i : gated) {
    const auto& gates = node(i).gates;
    if (std::find(gates.begin(), gates.end(), gate) != gates.end()) open_gate(i, gate);
  }
  return {};
}

}  // namespace mycojobs::runs
