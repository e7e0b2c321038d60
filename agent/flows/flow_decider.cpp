// Each fact is folded as soon as it is emitted, so that later parts of a decision use the state that recovery would
// see.
#include "flows/flow_decider.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/sha256.h"
#include "flows/flow_fold.h"
#include "jobs/state_machines.h"
#include "model/prerequisite.h"
#include "model/submitted_files.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// The next action that needs no event.
struct NextAction {
  enum class Kind { retry, send_cancel, settle_unrun, resolve, stop, evaluate, dispatch, compensate, end };
  Kind kind = Kind::end;
  std::uint32_t node = 0;
};
std::optional<NextAction> find_next_action(const FlowPlan&, const RunState&);

class FlowDecider {
 public:
  FlowDecider(const FlowPlan& plan, RunState run, std::uint64_t now_ms, const DecideLimits& limits)
      : plan_(plan), now_ms_(now_ms), limits_(limits) {
    decision_.state = std::move(run);
  }
  // Apply an event.
  void on_start(const StartRun&);
  void on_job_observed(const JobObserved&);
  void on_child_started(const ChildStarted&);
  void on_flow_observed(const FlowObserved&);
  void on_time_passed();
  Result<void> on_control(const FlowControl&);
  // Performs the actions that follow from the event, until none is left or the decision is full.
  void run_pending_actions();
  Decision release() { return std::move(decision_); }

 private:
  using Json = nlohmann::json;
  RunState& run_state() { return decision_.state; }
  const NodeState& node(std::uint32_t index) const { return decision_.state.nodes[index]; }
  const PlanNode& plan_node(std::uint32_t index) const { return plan_.nodes[index]; }
  bool is_full() const {
    return decision_.facts.size() >= limits_.max_facts || element_record_bytes_ >= limits_.max_bytes;
  }
  bool is_started() const { return decision_.state.status == FlowStatus::started; }
  bool is_in_flight(std::uint32_t index) const {
    return index < plan_.nodes.size() && node(index).status == NodeStatus::dispatched;
  }

  void emit(std::string_view kind, std::optional<std::uint32_t> node, const Json& data = Json::object());
  void add_effect(Effect::Kind kind, std::uint32_t node, std::string detail = {}, std::string error = {});

  // End a node. If `is_stored` is set, a runner has written the end to the record already.
  void complete_node(std::uint32_t index, const TextMap& values, bool is_stored, std::uint64_t bytes);
  void fail_node(std::uint32_t index, const std::string& detail, const std::string& error, bool is_stored);
  void cancel_node(std::uint32_t index, const std::string& detail, const std::string& reason, bool is_stored);

  bool is_blocked_by(std::uint32_t error_node, std::uint32_t index) const;

  void apply(NextAction);
  void evaluate_node(std::uint32_t index);
  void settle_unrun_node(std::uint32_t index);
  void send_cancel(std::uint32_t index);
  void dispatch_node(std::uint32_t index, Json when);
  void add_dispatch_effect(std::uint32_t index, bool is_retry);
  void expand_node(std::uint32_t index, std::size_t count, Json data);
  void retry_node(std::uint32_t index);
  void resolve_failure(std::uint32_t index);
  void end_flow();
  void stop_flow(const std::string& outcome, const std::string& error);
  void check_deadline();
  std::optional<std::string> find_skip_reason(std::uint32_t index, Json& when) const;

  Result<void> control_flow(const FlowControl&);
  Result<void> apply_answer(const FlowControl&);
  Result<void> answer_node(const FlowControl&, std::uint32_t index);
  Result<void> answer_gate(const FlowControl&, const std::string& gate);
  Result<void> apply_signal(const FlowControl&);
  Result<void> retry_run(const FlowControl&);
  void record_control(const FlowControl&);
  void open_gate(std::uint32_t index, const std::string& gate) { emit("gate_opened", index, {{"gate", gate}}); }

  const FlowPlan& plan_;
  std::uint64_t now_ms_;
  DecideLimits limits_;
  std::size_t element_record_bytes_ = 0;  // estimated size of the records of the element nodes dispatched so far
  Decision decision_;
};

bool has_free_slot(const FlowPlan&, const RunState&);
std::string compute_digest(const FlowControl&);

// Ends of nodes, and actions that follow without an event.

void FlowDecider::complete_node(std::uint32_t index, const TextMap& values, bool is_stored, std::uint64_t bytes) {
  Json data{{"detail", "ok"}};
  for (const std::string& key : plan_node(index).watched_keys) {
    if (const auto match = values.find(key); match != values.end()) data["values"][key] = match->second;
  }
  if (bytes != 0) data["bytes"] = bytes;
  emit("node_completed", index, data);
  if (is_stored) return;
  add_effect(Effect::Kind::finish, index);
  decision_.effects.back().values = values;
}

void FlowDecider::fail_node(std::uint32_t index, const std::string& detail, const std::string& error, bool is_stored) {
  const bool is_compensation = node(index).is_compensation;
  if (!is_stored) add_effect(Effect::Kind::fail, index, detail, error);
  if (plan_node(index).on_error == OnError::proceed && !is_compensation) {
    return emit("node_completed", index, {{"detail", "continued"}, {"failed", detail}, {"error", error}});
  }
  Json data{{"detail", detail}, {"error", error}};
  if (node(index).can_call_error_node && !run_state().stopping && !is_blocked_by(*plan_node(index).error_node, index))
    data["routed"] = true;
  emit("node_failed", index, data);
}

// Returns whether the error node, directly or through other error nodes, waits for the node. Error nodes may route to
// one another; an error node that has failed and waits for the node cannot handle its failure.
bool FlowDecider::is_blocked_by(std::uint32_t error_node, std::uint32_t index) const {
  // The loop is bounded because a forged journal could contain a cycle.
  for (std::size_t step = 0; step < plan_.nodes.size(); ++step) {
    if (node(error_node).status != NodeStatus::failed || node(error_node).settled_revision != 0) return false;
    error_node = *plan_node(error_node).error_node;
    if (error_node == index) return true;
  }
  return false;
}

void FlowDecider::cancel_node(std::uint32_t index, const std::string& detail, const std::string& reason,
                              bool is_stored) {
  if (!is_stored) add_effect(Effect::Kind::fail, index, detail, reason);
  emit("node_cancelled", index, {{"detail", detail}, {"error", reason}});
}

// Returns the reason why a node must not run although its needs have settled, or no value if it must run. Appends the
// conditions that hold to `when`, which is stored in the fact of the dispatch.
std::optional<std::string> FlowDecider::find_skip_reason(std::uint32_t index, Json& when) const {
  const PlanNode& node_plan = plan_node(index);
  bool has_completed_need = node_plan.on_call || node_plan.needs.empty();
  for (const std::uint32_t need : node_plan.needs) {
    if (node_plan.on_call) break;
    const NodeState& need_state = node(need);
    const auto& error_node = plan_node(need).error_node;
    if (need_state.detail == "handled" && need_state.status == NodeStatus::completed && error_node &&
        std::find(node_plan.needs.begin(), node_plan.needs.end(), *error_node) == node_plan.needs.end()) {
      return "node " + plan_node(need).name + " failed, and " + plan_node(*error_node).name + " ran instead";
    }
    has_completed_need = has_completed_need || need_state.status == NodeStatus::completed;
  }
  if (!has_completed_need) return "all that it needs was skipped";
  for (const FlowCondition& condition : node_plan.when) {
    const std::string& node_name = plan_node(condition.node).name;
    const TextMap& values = condition.is_input ? plan_.input_texts : node(condition.node).values;
    std::string unmet_reason;
    if (!is_met(condition, node_name, values, unmet_reason)) return unmet_reason;
    when.push_back(describe(condition, node_name));
  }
  return std::nullopt;
}

void FlowDecider::evaluate_node(std::uint32_t index) {
  if (run_state().uncalled.contains(index)) return settle_unrun_node(index);
  const PlanNode& node_plan = plan_node(index);
  Json when = Json::array();
  if (node(index).detail == "gate") return dispatch_node(index, when);  // evaluated before, and its gates have opened
  if (const auto reason = find_skip_reason(index, when)) return cancel_node(index, "skipped", *reason, false);
  std::vector<std::string> closed_gates;
  for (const std::string& gate : node_plan.gates) {
    const bool is_received = gate.substr(0, 7) == "signal:" && run_state().signals.contains(gate.substr(7));
    if (!is_received) closed_gates.push_back(gate);
  }
  if (closed_gates.empty()) return dispatch_node(index, when);
  Json data{{"gates", closed_gates}};
  if (node_plan.timeout_ms != 0) data["until"] = now_ms_ + node_plan.timeout_ms;
  if (!node_plan.approvers.empty()) data["approvers"] = node_plan.approvers;
  if (!when.empty()) data["when"] = when;
  emit("node_gated", index, data);
  for (const std::string& gate : closed_gates) {
    const Id flow = parse_flow_gate(gate);
    if (flow == 0) continue;
    add_effect(Effect::Kind::await_flow, index);
    decision_.effects.back().flow = flow;
  }
}

// Dispatches the node. Makes it ready instead if the flow is paused, if no slot of max_parallel is free, or if another
// ready node comes first.
void FlowDecider::dispatch_node(std::uint32_t index, Json when) {
  const PlanNode& node_plan = plan_node(index);
  const bool runs_in_flow = is_run_by_flow(node_plan.kind);
  const bool is_first =
      run_state().ready.size() == run_state().ready_without_slot.size() || run_state().ready.contains(index);
  std::size_t count = 0;
  if (node_plan.kind == NodeKind::each) {
    const auto elements = get_elements(plan_, run_state(), index);
    if (!elements && node(index).status == NodeStatus::pending) {
      return fail_node(index, "each_failed", elements.error().message, false);
    }
    if (!elements) return cancel_node(index, "not_needed", elements.error().message, false);  // the journal was changed
    count = elements->size();
  }
  Json data = Json::object();
  if (!when.empty()) data["when"] = std::move(when);
  if (run_state().paused || (!runs_in_flow && (!is_first || !has_free_slot(plan_, run_state()))))
    return emit("node_ready", index, data);
  if (node_plan.kind == NodeKind::each) return expand_node(index, count, std::move(data));
  const bool is_retry = node(index).runs > 0;
  data["as"] = node_plan.kind == NodeKind::job ? "queued" : std::string(to_string(node_plan.kind));
  if (node_plan.kind == NodeKind::wait) data["until"] = now_ms_ + node_plan.wait_ms;
  if (node_plan.kind == NodeKind::approval || node_plan.kind == NodeKind::pause) {
    if (node_plan.timeout_ms != 0) data["until"] = now_ms_ + node_plan.timeout_ms;
    if (!node_plan.approvers.empty()) data["approvers"] = node_plan.approvers;
    if (!node_plan.text.empty()) data["asks"] = node_plan.text;
  }
  emit("node_dispatched", index, data);
  if (node_plan.kind == NodeKind::job) add_dispatch_effect(index, is_retry);
  if (node_plan.kind == NodeKind::flow) add_effect(Effect::Kind::start_child, index);
  if (node_plan.kind == NodeKind::log) complete_node(index, {}, false, 0);
}

void FlowDecider::add_dispatch_effect(std::uint32_t index, bool is_retry) {
  add_effect(is_retry ? Effect::Kind::requeue : Effect::Kind::dispatch, index);
  if (plan_node(index).each_node && !is_retry) element_record_bytes_ += estimate_element_bytes(plan_, index);
}

// Records the number of elements of an `each` node. Its nodes with an element can start; the others become `absent`.
void FlowDecider::expand_node(std::uint32_t index, std::size_t count, Json data) {
  const TextMap values{{"count", std::to_string(count)}};
  data["count"] = count;
  if (!plan_node(index).watched_keys.empty()) data["values"] = values;
  data["bytes"] = result_bytes(values);
  emit("node_expanded", index, data);
  add_effect(Effect::Kind::finish, index);
  decision_.effects.back().values = values;
  decision_.effects.back().values_json = {"count"};
}

// Settles a node that will never run, or that waits without a job or child, and gives the reason in its detail.
void FlowDecider::settle_unrun_node(std::uint32_t index) {
  if (run_state().uncalled.contains(index)) return cancel_node(index, "not_needed", "it was not called", false);
  if (run_state().cancelling) {
    return cancel_node(index, "cancelled",
                       run_state().outcome == "timeout" ? "the flow's time was over" : "the flow was cancelled", false);
  }
  if (node(index).status == NodeStatus::pending && !plan_node(index).on_call) {
    for (const std::uint32_t need : plan_node(index).needs) {
      if (node(need).status != NodeStatus::failed) continue;
      const std::string error = "node " + plan_node(need).name + " failed";
      add_effect(Effect::Kind::fail, index, "dependency_failed", error);
      return emit("node_failed", index, {{"detail", "dependency_failed"}, {"error", error}});
    }
  }
  cancel_node(index, "not_needed", "the flow stopped before", false);
}

void FlowDecider::send_cancel(std::uint32_t index) {
  emit("cancel_sent", index);
  const bool is_job = plan_node(index).kind == NodeKind::job;
  add_effect(is_job ? Effect::Kind::cancel_job : Effect::Kind::cancel_child, index);
  decision_.effects.back().flow = node(index).child;
}

// Resets the node. The job of a node that was in flight keeps its end until it is queued again as the next attempt.
void FlowDecider::retry_node(std::uint32_t index) {
  emit("node_retried", index);
  if (plan_node(index).kind != NodeKind::job || node(index).runs == 0) add_effect(Effect::Kind::replan, index);
}

// Settles a failed node after its error node has settled: as completed if the error node has handled the failure.
void FlowDecider::resolve_failure(std::uint32_t index) {
  if (node(*plan_node(index).error_node).status == NodeStatus::completed) {
    return emit("node_completed", index, {{"detail", "handled"}});
  }
  emit("node_unhandled", index);
}

// Events from jobs, children, other flows and the clock.

void FlowDecider::on_start(const StartRun& start) {
  if (run_state().status != FlowStatus::dispatched || run_state().stopping) return;
  Json data{{"trigger", start.trigger}};
  if (start.actor != 0) data["actor"] = start.actor;
  if (plan_.timeout_ms != 0) data["deadline"] = now_ms_ + plan_.timeout_ms;
  emit("started", std::nullopt, data);
}

void FlowDecider::on_job_observed(const JobObserved& observed) {
  if (!observed.ended || !is_in_flight(observed.node) || plan_node(observed.node).kind != NodeKind::job) return;
  if (observed.status == to_string(JobStatus::finished))
    return complete_node(observed.node, observed.values, true, observed.result_bytes);
  const bool is_requested = run_state().cancelling && !node(observed.node).is_compensation;
  if (is_requested && observed.detail == "cancelled")
    return cancel_node(observed.node, "cancelled", observed.error, true);
  fail_node(observed.node, observed.detail.empty() ? "error" : observed.detail, observed.error, true);
}

void FlowDecider::on_child_started(const ChildStarted& started) {
  if (started.node >= plan_.nodes.size() || plan_node(started.node).kind != NodeKind::flow) return;
  if (started.flow == 0) {
    const bool is_expected = is_in_flight(started.node) && node(started.node).child == 0 && !started.error.empty();
    if (is_expected) fail_node(started.node, "flow_failed", started.error, false);
    return;
  }
  if (is_in_flight(started.node) && node(started.node).child == 0) {
    return emit("child_started", started.node, {{"flow", started.flow}});
  }
  if (is_in_flight(started.node) || node(started.node).child == started.flow) return;
  // The node has settled without this child, so the child is not needed.
  add_effect(Effect::Kind::cancel_child, started.node);
  decision_.effects.back().flow = started.flow;
}

void FlowDecider::on_flow_observed(const FlowObserved& observed) {
  if (!is_terminal(observed.status) || observed.flow == 0) return;
  std::vector<std::uint32_t> waiting_nodes;
  for (auto it = run_state().awaited_flows.lower_bound({observed.flow, 0});
       it != run_state().awaited_flows.end() && it->first == observed.flow; ++it) {
    waiting_nodes.push_back(it->second);
  }
  const bool has_succeeded = observed.status == FlowStatus::finished;
  const std::string error =
      "flow " + std::to_string(observed.flow) + ": " + (observed.error.empty() ? "failed" : observed.error);
  for (const std::uint32_t index : waiting_nodes) {
    if (!is_in_flight(index)) {
      const auto gates = node(index).gates;
      for (const std::string& gate : gates) {
        if (has_succeeded && parse_flow_gate(gate) == observed.flow) open_gate(index, gate);
      }
      if (!has_succeeded) fail_node(index, "flow_failed", error, false);
    } else if (has_succeeded) {
      complete_node(index, observed.result, false, result_bytes(observed.result));
      decision_.effects.back().values_json = observed.result_json;
    } else if (run_state().cancelling && !node(index).is_compensation) {
      cancel_node(index, "cancelled", error, false);
    } else {
      fail_node(index, "flow_failed", error, false);
    }
  }
}

void FlowDecider::check_deadline() {
  const RunState& state = run_state();
  if (state.deadline_ms == 0 || now_ms_ < state.deadline_ms || state.cancelling || state.compensating) return;
  stop_flow("timeout", "its time was over (timeout)");
}

void FlowDecider::on_time_passed() {
  if (!is_started()) return;
  check_deadline();
  while (!is_full() && !run_state().timers.empty() && run_state().timers.begin()->first <= now_ms_) {
    const std::uint32_t index = run_state().timers.begin()->second;
    const NodeState& state = node(index);
    if (state.status == NodeStatus::dispatched && plan_node(index).kind == NodeKind::wait) {
      complete_node(index, {}, false, 0);
      continue;
    }
    std::string awaited_text = plan_node(index).kind == NodeKind::pause ? "resume" : "approval";
    if (state.status == NodeStatus::pending) awaited_text = state.gates.front();
    fail_node(index, "timeout", "waited too long for " + awaited_text, false);
  }
}

// Answers to nodes that wait for a user: approval and pause nodes, gates, signals.

using Verb = FlowControl::Verb;

bool can_answer(const NodeState& node, const FlowControl& control) {
  const auto& approvers = node.approvers;
  if (approvers.empty()) return control.can_steer || control.admin;
  return control.admin || std::find(approvers.begin(), approvers.end(), control.actor) != approvers.end();
}

tl::unexpected<Error> denied_error(const FlowControl& control, const std::string& subject) {
  return fail(Code::denied, "actor: " + std::to_string(control.actor) + " is not an approver of " + subject +
                                ": one of its approvers or an admin must decide");
}

std::string format_rejection(const FlowControl& control) {
  return "rejected by " + std::to_string(control.actor) + (control.comment.empty() ? "" : ": " + control.comment);
}

bool plan_has_gate(const FlowPlan& plan, const std::string& gate) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [&](const PlanNode& node) {
    return std::find(node.gates.begin(), node.gates.end(), gate) != node.gates.end();
  });
}

Result<void> FlowDecider::apply_answer(const FlowControl& control) {
  if (!control.can_steer && !control.admin && !has_approver(plan_, control.actor)) {
    return fail(Code::denied, "actor: " + std::to_string(control.actor) +
                                  " is neither an approver nor the creator of this flow: an approver, the creator or "
                                  "an admin of the context must decide");
  }
  if (control.target.empty()) {
    return fail(Code::invalid, "target: " + std::string(to_string(control.verb)) + " which node or approval? Name it");
  }
  const auto target = plan_.find(control.target);
  const NodeKind kind = target ? plan_node(*target).kind : NodeKind::job;
  if (kind == NodeKind::approval || kind == NodeKind::pause) return answer_node(control, *target);
  const std::string gate = "approval:" + control.target;
  if (control.verb != Verb::resume && plan_has_gate(plan_, gate)) return answer_gate(control, gate);
  if (!target) {
    return fail(Code::not_found, "target: there is no node and no approval " + excerpt(control.target) +
                                     " in this flow; `flow explain` lists the waiting nodes");
  }
  for (const std::string& node_gate : plan_node(*target).gates) {
    if (node_gate.substr(0, 9) != "approval:" || control.verb == Verb::resume) continue;
    return fail(Code::conflict,
                "node " + control.target + " waits for " + node_gate + ": name that, " + node_gate.substr(9));
  }
  return fail(Code::conflict, "node " + control.target + " is a node of kind " + std::string(to_string(kind)) +
                                  ": there is nothing to " + std::string(to_string(control.verb)));
}

Result<void> FlowDecider::answer_node(const FlowControl& control, std::uint32_t index) {
  const std::string subject = "node " + plan_node(index).name;
  if (control.verb == Verb::resume && plan_node(index).kind == NodeKind::approval) {
    return fail(Code::conflict, subject + " is an approval: approve or reject it");
  }
  if (!is_in_flight(index)) {
    return fail(Code::conflict, subject + " does not wait for an answer: it is " +
                                    std::string(to_string(node(index).status)) + ' ' + node(index).detail);
  }
  if (!can_answer(node(index), control)) return denied_error(control, subject);
  record_control(control);
  if (control.verb == Verb::reject) {
    fail_node(index, "rejected", format_rejection(control), false);
    return {};
  }
  TextMap values{{"actor", std::to_string(control.actor)}};
  if (!control.comment.empty()) values["comment"] = control.comment;
  complete_node(index, values, false, result_bytes(values));
  return {};
}

// Answers all nodes that wait for this gate and that the actor may answer.
Result<void> FlowDecider::answer_gate(const FlowControl& control, const std::string& gate) {
  std::vector<std::uint32_t> answerable_nodes;
  bool has_waiting_node = false;
  for (const std::uint32_t index : run_state().gated) {
    const auto& gates = node(index).gates;
    if (std::find(gates.begin(), gates.end(), gate) == gates.end()) continue;
    has_waiting_node = true;
    if (can_answer(node(index), control)) answerable_nodes.push_back(index);
  }
  if (!has_waiting_node) return fail(Code::conflict, "no node waits for " + gate + " now");
  if (answerable_nodes.empty()) return denied_error(control, gate);
  record_control(control);
  for (const std::uint32_t index : answerable_nodes) {
    if (control.verb == Verb::reject) {
      fail_node(index, "rejected", format_rejection(control), false);
    } else {
      open_gate(index, gate);
    }
  }
  return {};
}

// Opens the gates that wait now and the gates that are reached later, so the sender need not know the progress of the
// flow.
Result<void> FlowDecider::apply_signal(const FlowControl& control) {
  if (control.target.empty()) return fail(Code::invalid, "target: name the signal");
  const std::string gate = "signal:" + control.target;
  if (!plan_has_gate(plan_, gate)) {
    return fail(Code::not_found, "target: no node of this flow waits for " + gate);
  }
  record_control(control);
  const auto gated_nodes = run_state().gated;
  for (const std::uint32_t index : gated_nodes) {
    const auto& gates = node(index).gates;
    if (std::find(gates.begin(), gates.end(), gate) != gates.end()) open_gate(index, gate);
  }
  return {};
}

// Requests by users: pause, resume, cancel.

constexpr std::size_t kMaxControlKeyBytes = 256;
constexpr std::size_t kMaxControlTargetBytes = 256;
constexpr std::size_t kMaxControlKeys = 10000;

Result<void> check_sizes(const FlowControl& control) {
  const auto check_size = [](std::string_view field, const std::string& text, std::size_t max) -> Result<void> {
    if (text.size() <= max) return {};
    return fail(Code::too_large,
                std::string(field) + ": " + std::to_string(text.size()) + " bytes; at most " + std::to_string(max));
  };
  MJ_CHECK(check_size("comment", control.comment, kMaxComment));
  MJ_CHECK(check_size("payload", control.payload, kMaxSignalPayload));
  MJ_CHECK(check_size("key", control.key, kMaxControlKeyBytes));
  MJ_CHECK(check_size("target", control.target, kMaxControlTargetBytes));
  const std::pair<std::string_view, const std::string*> texts[] = {
      {"comment", &control.comment}, {"key", &control.key}, {"target", &control.target}};
  for (const auto& [field, text] : texts) {
    if (!is_utf8(*text)) return fail(Code::invalid, std::string(field) + ": is not UTF-8");
  }
  if (control.payload.empty()) return {};
  if (control.verb != Verb::signal) return fail(Code::invalid, "payload: only a signal carries one");
  MJ_TRY(payload, parse_json(control.payload, kMaxSignalPayload));
  (void)payload;
  return {};
}

std::string compute_digest(const FlowControl& control) {
  const nlohmann::json content{to_string(control.verb), control.target, control.actor, control.comment,
                               control.payload};
  return sha256_hex(dump_json(content)).substr(0, 32);
}

void FlowDecider::record_control(const FlowControl& control) {
  Json data{{"verb", to_string(control.verb)}};
  if (!control.target.empty()) data["target"] = control.target;
  if (control.actor != 0) data["actor"] = control.actor;
  if (!control.comment.empty()) data["comment"] = control.comment;
  if (!control.payload.empty()) data["payload"] = control.payload;
  if (!control.key.empty()) {
    data["key"] = control.key;
    data["digest"] = compute_digest(control);
  }
  emit("control", std::nullopt, data);
}

Result<void> FlowDecider::on_control(const FlowControl& control) {
  MJ_CHECK(check_sizes(control));
  if (!control.key.empty()) {
    const auto previous_control = run_state().control_digests.find(control.key);
    if (previous_control != run_state().control_digests.end() && previous_control->second == compute_digest(control))
      return {};
    if (previous_control != run_state().control_digests.end()) {
      return fail(Code::conflict, "key: " + excerpt(control.key) + " was used with another control; use a new key");
    }
    if (run_state().control_digests.size() >= kMaxControlKeys) {
      return fail(Code::too_large, "key: this flow has kept " + std::to_string(kMaxControlKeys) +
                                       " keys and stores no more; omit the key");
    }
  }
  if (control.verb == Verb::retry) return retry_run(control);
  if (is_terminal(run_state().status)) {
    return fail(Code::conflict, "the flow has ended (" + run_state().detail +
                                    "): " + std::string(to_string(control.verb)) + " is too late");
  }
  if (run_state().status == FlowStatus::dispatched && control.verb != Verb::cancel) {
    return fail(Code::conflict, "the flow has not started: start it first");
  }
  switch (control.verb) {
    case Verb::signal:
      return apply_signal(control);
    case Verb::approve:
    case Verb::reject:
      return apply_answer(control);
    case Verb::resume:
      return control.target.empty() ? control_flow(control) : apply_answer(control);
    case Verb::pause:
    case Verb::cancel:
    case Verb::retry:
      break;
  }
  return control_flow(control);
}

// Controls of the whole flow. A request for the current state is not an error.
Result<void> FlowDecider::control_flow(const FlowControl& control) {
  if (!control.target.empty()) {
    return fail(Code::invalid,
                "target: " + std::string(to_string(control.verb)) + " applies to the whole flow; omit the target");
  }
  if (control.verb == Verb::pause && run_state().cancelling) {
    return fail(Code::conflict, "the flow is being cancelled (" + run_state().outcome + "): it cannot be paused");
  }
  const bool is_in_requested_state = control.verb == Verb::pause    ? run_state().paused
                                     : control.verb == Verb::resume ? !run_state().paused
                                                                    : run_state().cancelling;
  if (is_in_requested_state && control.key.empty()) return {};
  record_control(control);
  if (is_in_requested_state) return {};
  if (control.verb == Verb::pause) {
    emit("paused", std::nullopt);
  } else if (control.verb == Verb::resume) {
    emit("resumed", std::nullopt);
  } else {
    const std::string actor = control.actor == 0 ? "" : " by " + std::to_string(control.actor);
    stop_flow("cancelled", "cancelled" + actor + (control.comment.empty() ? "" : ": " + control.comment));
  }
  return {};
}

// Retries one failed node, or all failed nodes.
Result<void> FlowDecider::retry_run(const FlowControl& control) {
  const RunState& state = run_state();
  const auto conflict_error = [](std::string reason) { return fail(Code::conflict, std::move(reason)); };
  if (state.compensating)
    return conflict_error("its compensations have run and its effects are undone; replay the flow instead");
  if (state.outcome == "cancelled") return conflict_error("it was cancelled: replay the flow instead");
  if (state.outcome == "result_too_large") return conflict_error("its results were too large: replay the flow instead");
  if (!state.stopping) return conflict_error("no node has failed: there is nothing to retry");
  if (state.cancelling && !is_terminal(state.status))
    return conflict_error("its time is over, and jobs still end: retry it then");
  if (!control.target.empty()) {
    const auto target = plan_.find(control.target);
    if (!target) return fail(Code::not_found, "target: there is no node " + excerpt(control.target));
    if (!state.failures.contains(*target) || node(*target).detail == "dependency_failed") {
      return conflict_error("node " + control.target + " has not failed: it is " +
                            std::string(to_string(node(*target).status)) + ' ' + node(*target).detail);
    }
    for (const std::uint32_t other : state.failures) {
      if (other == *target || node(other).detail == "dependency_failed") continue;
      const bool is_its_error_node = plan_node(*target).error_node == other && node(*target).can_call_error_node;
      if (!is_its_error_node) {
        return conflict_error("node " + plan_node(other).name +
                              " has failed too, and the flow would stop again: name no node to retry both");
      }
    }
  }
  record_control(control);
  Json data = Json::object();
  if (plan_.timeout_ms != 0) data["deadline"] = now_ms_ + plan_.timeout_ms;
  emit("retried", std::nullopt, data);
  return {};
}

using ActionKind = NextAction::Kind;

bool has_free_slot(const FlowPlan& plan, const RunState& run) {
  return plan.max_parallel == 0 || run.in_flight.size() - run.waiting.size() < plan.max_parallel;
}

std::optional<NextAction> find_next_dispatch(const FlowPlan& plan, const RunState& run) {
  if (!run.evaluable.empty()) return NextAction{ActionKind::evaluate, *run.evaluable.begin()};
  if (run.paused || run.ready.empty()) return std::nullopt;
  if (!run.ready_without_slot.empty()) return NextAction{ActionKind::dispatch, *run.ready_without_slot.begin()};
  if (has_free_slot(plan, run)) return NextAction{ActionKind::dispatch, *run.ready.begin()};
  return std::nullopt;
}

std::optional<NextAction> find_final_action(const RunState& run) {
  if (!run.uncalled.empty()) return NextAction{ActionKind::settle_unrun, *run.uncalled.begin()};
  return NextAction{ActionKind::end, 0};
}

// Called when nodes are unsettled and nothing can be dispatched. If nothing is in flight, ready or gated, returns the
// action that settles an error node that waits for other error nodes in a cycle, since no node is left that could call
// it.
std::optional<NextAction> find_standstill_action(const RunState& run) {
  if (!run.in_flight.empty() || !run.ready.empty() || !run.gated.empty()) return std::nullopt;
  for (const std::uint32_t index : run.uncalled) {
    if (run.nodes[index].possible_callers > 0) return NextAction{ActionKind::settle_unrun, index};
  }
  return std::nullopt;
}

// While the flow stops, no node starts. Nodes in flight end, nodes that never started are settled, and compensations
// run one after the other.
std::optional<NextAction> find_stopping_action(const FlowPlan& plan, const RunState& run) {
  if (!run.compensating) {
    if (!run.pending_cancels.empty()) return NextAction{ActionKind::send_cancel, *run.pending_cancels.begin()};
    if (!run.waiting.empty()) return NextAction{ActionKind::settle_unrun, *run.waiting.begin()};
    if (!run.in_flight.empty()) return std::nullopt;
    for (const auto* nodes : {&run.evaluable, &run.ready, &run.gated}) {
      if (!nodes->empty()) return NextAction{ActionKind::settle_unrun, *nodes->begin()};
    }
  }
  if (const auto next_dispatch = find_next_dispatch(plan, run)) return next_dispatch;
  if (run.unsettled > 0) return find_standstill_action(run);
  if (!run.compensable.empty()) {
    if (run.paused) return std::nullopt;
    return NextAction{ActionKind::compensate, run.compensable.back().second};
  }
  return find_final_action(run);
}

std::optional<NextAction> find_next_action(const FlowPlan& plan, const RunState& run) {
  const bool has_started = run.status == FlowStatus::started || (run.status == FlowStatus::dispatched && run.stopping);
  if (!has_started) return std::nullopt;
  if (!run.pending_retries.empty()) return NextAction{ActionKind::retry, *run.pending_retries.begin()};
  if (!run.pending_resolutions.empty()) return NextAction{ActionKind::resolve, *run.pending_resolutions.begin()};
  if (run.stopping) return find_stopping_action(plan, run);
  if (!run.failures.empty()) return NextAction{ActionKind::stop, *run.failures.begin()};
  if (const auto next_dispatch = find_next_dispatch(plan, run)) return next_dispatch;
  if (run.unsettled == 0) return find_final_action(run);
  return find_standstill_action(run);
}

void FlowDecider::emit(std::string_view kind, std::optional<std::uint32_t> node, const Json& data) {
  RunFact fact;
  fact.revision = run_state().revision + 1;
  fact.at_ms = now_ms_;
  fact.kind = kind;
  fact.node = node;
  if (!data.empty()) fact.data_json = dump_json(data);
  fold(plan_, run_state(), fact);
  decision_.facts.push_back(std::move(fact));
}

void FlowDecider::add_effect(Effect::Kind kind, std::uint32_t node, std::string detail, std::string error) {
  Effect effect;
  effect.kind = kind;
  effect.node = node;
  effect.detail = std::move(detail);
  effect.error = std::move(error);
  decision_.effects.push_back(std::move(effect));
}

void FlowDecider::run_pending_actions() {
  while (!is_full()) {
    const auto next = find_next_action(plan_, run_state());
    if (!next) return;
    apply(*next);
  }
}

void FlowDecider::apply(NextAction next) {
  switch (next.kind) {
    case ActionKind::retry:
      return retry_node(next.node);
    case ActionKind::send_cancel:
      return send_cancel(next.node);
    case ActionKind::settle_unrun:
      return settle_unrun_node(next.node);
    case ActionKind::resolve:
      return resolve_failure(next.node);
    case ActionKind::stop:
      return stop_flow("failed", "node " + plan_node(next.node).name + " failed: " + node(next.node).detail +
                                     (node(next.node).error.empty() ? "" : ": " + node(next.node).error));
    case ActionKind::evaluate:
      return evaluate_node(next.node);
    case ActionKind::dispatch:
      return dispatch_node(next.node, Json::array());
    case ActionKind::compensate:
      return emit("compensating", next.node, {{"by", plan_node(*plan_node(next.node).compensation).name}});
    case ActionKind::end:
      return end_flow();
  }
}

void FlowDecider::stop_flow(const std::string& outcome, const std::string& error) {
  emit("stopping", std::nullopt, {{"outcome", outcome}, {"error", error.substr(0, 2000)}});
}

void FlowDecider::end_flow() {
  const RunState& state = run_state();
  if (state.stopping) {
    return emit("ended", std::nullopt, {{"status", "error"}, {"detail", state.outcome}, {"error", state.error}});
  }
  if (state.result_bytes <= kMaxFlowResultBytes) {
    return emit("ended", std::nullopt, {{"status", "finished"}, {"detail", "ok"}});
  }
  std::uint32_t largest_node = 0;
  for (std::uint32_t index = 0; index < plan_.nodes.size(); ++index) {
    if (node(index).result_bytes > node(largest_node).result_bytes) largest_node = index;
  }
  stop_flow("result_too_large", "the results have " + std::to_string(state.result_bytes) +
                                    " bytes together, more than " + std::to_string(kMaxFlowResultBytes) +
                                    "; the largest is that of node " + plan_node(largest_node).name + ", " +
                                    std::to_string(node(largest_node).result_bytes) +
                                    " bytes: return less and store large data outside of the result");
}

}  // namespace

std::uint64_t result_bytes(const TextMap& values) {
  std::uint64_t bytes = 0;
  for (const auto& [key, value] : values) bytes += key.size() + value.size();
  return bytes;
}

Result<Decision> decide(const FlowPlan& plan, RunState run, const FlowEvent& event, const DecideLimits& limits) {
  FlowDecider decider(plan, std::move(run), event.now_ms, limits);
  if (const auto* control = std::get_if<FlowControl>(&event.body)) {
    decider.on_time_passed();
    MJ_CHECK(decider.on_control(*control));
  } else if (const auto* start = std::get_if<StartRun>(&event.body)) {
    decider.on_start(*start);
  } else {
    decider.on_time_passed();
    if (const auto* job = std::get_if<JobObserved>(&event.body)) decider.on_job_observed(*job);
    if (const auto* child = std::get_if<ChildStarted>(&event.body)) decider.on_child_started(*child);
    if (const auto* flow = std::get_if<FlowObserved>(&event.body)) decider.on_flow_observed(*flow);
  }
  decider.run_pending_actions();
  return decider.release();
}

std::size_t estimate_element_bytes(const FlowPlan& plan, std::uint32_t node) {
  const Job& job = plan.job_at(node);
  std::size_t bytes = 1000 + job.script.size() + job.policy.size() + count_submitted_bytes(job);
  for (const std::string& argument : job.args) bytes += argument.size();
  for (const TextMap* texts : {&job.env_vars, &plan.env_vars, &plan.input_texts}) bytes += result_bytes(*texts);
  return bytes;
}

bool has_immediate_action(const FlowPlan& plan, const RunState& run) { return find_next_action(plan, run).has_value(); }

std::uint64_t next_timer_ms(const RunState& run) {
  if (run.status != FlowStatus::started) return 0;
  const std::uint64_t node_timer_ms = run.timers.empty() ? 0 : run.timers.begin()->first;
  const bool has_deadline = !run.cancelling && !run.compensating;
  const std::uint64_t flow_timer_ms = has_deadline ? run.deadline_ms : 0;
  if (node_timer_ms == 0 || flow_timer_ms == 0) return node_timer_ms + flow_timer_ms;
  return std::min(node_timer_ms, flow_timer_ms);
}

std::vector<Effect> pending_child_actions(const FlowPlan& plan, const RunState& run) {
  std::vector<Effect> effects;
  const auto add = [&effects](Effect::Kind kind, std::uint32_t node, Id flow) {
    Effect effect;
    effect.kind = kind;
    effect.node = node;
    effect.flow = flow;
    effects.push_back(std::move(effect));
  };
  for (const std::uint32_t index : run.in_flight) {
    if (plan.nodes[index].kind == NodeKind::flow && run.nodes[index].child == 0)
      add(Effect::Kind::start_child, index, 0);
  }
  for (const auto& [flow, index] : run.awaited_flows) {
    const bool is_gate = run.nodes[index].status == NodeStatus::pending;
    const bool is_cancelling = run.nodes[index].detail == "cancelling";
    if (is_gate) add(Effect::Kind::await_flow, index, flow);
    if (!is_gate && is_cancelling) add(Effect::Kind::cancel_child, index, flow);
  }
  return effects;
}

std::string_view to_string(FlowControl::Verb verb) {
  static constexpr std::array<std::string_view, 7> kWords{"pause",  "resume", "approve", "reject",
                                                          "signal", "cancel", "retry"};
  return kWords[static_cast<std::size_t>(verb)];
}

bool has_approver(const FlowPlan& plan, Id actor) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [&](const PlanNode& node) {
    return std::find(node.approvers.begin(), node.approvers.end(), actor) != node.approvers.end();
  });
}

}  // namespace mycojobs
