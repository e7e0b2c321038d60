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
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// The next action that needs no event.
struct NextAction {
  enum class Kind { retry, send_cancel, skip, resolve, stop, evaluate, dispatch, compensate, end };
  Kind kind = Kind::end;
  std::uint32_t node = 0;
};
std::optional<NextAction> find_next_action(const FlowPlan&, const RunState&);

class FlowDecider {
 public:
  FlowDecider(const FlowPlan& plan, RunState run, std::uint64_t now_ms, const DecideLimits& limits)
      : plan_(plan), now_(now_ms), limits_(limits) {
    out_.state = std::move(run);
  }
  // Apply an event.
  void on_start(const StartRun&);
  void on_job_observed(const JobObserved&);
  void on_child_started(const ChildStarted&);
  void on_flow_observed(const FlowObserved&);
  void on_time_passed();
  Result<void> on_control(const FlowControl&);
  // Performs the actions that follow from the event.
  void run_pending_actions();
  Decision release() { return std::move(out_); }

 private:
  using Json = nlohmann::json;
  RunState& run() { return out_.state; }
  const NodeState& node(std::uint32_t i) const { return out_.state.nodes[i]; }
  const PlanNode& plan_node(std::uint32_t i) const { return plan_.nodes[i]; }
  bool is_full() const { return out_.facts.size() >= limits_.max_facts || bytes_ >= limits_.max_bytes; }
  bool is_started() const { return out_.state.status == FlowStatus::started; }
  bool is_in_flight(std::uint32_t i) const {
    return i < plan_.nodes.size() && node(i).status == NodeStatus::dispatched;
  }

  void emit(std::string_view kind, std::optional<std::uint32_t> node, const Json& more = Json::object());
  void add_effect(Effect::Kind kind, std::uint32_t node, std::string detail = {}, std::string error = {});

  // End a node. stored: the record has the end already, because a runner wrote it.
  void complete(std::uint32_t i, const TextMap& values, bool stored, std::uint64_t bytes);
  void fail_node(std::uint32_t i, const std::string& detail, const std::string& error, bool stored);
  void cancel_node(std::uint32_t i, const std::string& detail, const std::string& reason, bool stored);

  bool is_blocked_by(std::uint32_t error_node, std::uint32_t i) const;

  void apply(NextAction);
  void evaluate(std::uint32_t i);
  void skip(std::uint32_t i);
  void send_cancel(std::uint32_t i);
  void dispatch_node(std::uint32_t i, Json when);
  void add_dispatch_effect(std::uint32_t i, bool is_retry);
  void expand(std::uint32_t i, std::size_t count, Json more);
  void retry(std::uint32_t i);
  void resolve(std::uint32_t i);
  void end();
  void stop(const std::string& outcome, const std::string& error);
  void check_deadline();
  std::optional<std::string> find_skip_reason(std::uint32_t i, Json& when) const;

  Result<void> control_flow(const FlowControl&);
  Result<void> answer(const FlowControl&);
  Result<void> answer_node(const FlowControl&, std::uint32_t i);
  Result<void> answer_gate(const FlowControl&, const std::string& gate);
  Result<void> signal(const FlowControl&);
  Result<void> retry_run(const FlowControl&);
  void record(const FlowControl&);
  void open_gate(std::uint32_t i, const std::string& gate) { emit("gate_opened", i, {{"gate", gate}}); }

  const FlowPlan& plan_;
  std::uint64_t now_;
  DecideLimits limits_;
  std::size_t bytes_ = 0;
  Decision out_;
};

bool has_free_slot(const FlowPlan&, const RunState&);
std::uint64_t bytes_of(const TextMap&);
std::string compute_digest(const FlowControl&);

// Actions that follow without an event: evaluate, dispatch, skip, reset.

void FlowDecider::complete(std::uint32_t i, const TextMap& values, bool stored, std::uint64_t bytes) {
  Json more{{"detail", "ok"}};
  for (const std::string& key : plan_node(i).watched_keys) {
    if (const auto found = values.find(key); found != values.end()) more["values"][key] = found->second;
  }
  if (bytes != 0) more["bytes"] = bytes;
  emit("node_completed", i, more);
  if (stored) return;
  add_effect(Effect::Kind::finish, i);
  out_.effects.back().values = values;
}

void FlowDecider::fail_node(std::uint32_t i, const std::string& detail, const std::string& error, bool stored) {
  const bool is_compensation = node(i).is_compensation;
  if (!stored) add_effect(Effect::Kind::fail, i, detail, error);
  if (plan_node(i).on_error == OnError::proceed && !is_compensation) {
    return emit("node_completed", i, {{"detail", "continued"}, {"failed", detail}, {"error", error}});
  }
  Json more{{"detail", detail}, {"error", error}};
  if (node(i).routes_error && !run().stopping && !is_blocked_by(*plan_node(i).error_node, i)) more["routed"] = true;
  emit("node_failed", i, more);
}

// Returns whether the error node, directly or over other error nodes, waits for node i. Error nodes may route to one
// another; an error node that has failed and waits for node i cannot handle the failure of node i.
bool FlowDecider::is_blocked_by(std::uint32_t error_node, std::uint32_t i) const {
  // The loop is bounded because a forged journal could contain a cycle.
  for (std::size_t turn = 0; turn < plan_.nodes.size(); ++turn) {
    if (node(error_node).status != NodeStatus::failed || node(error_node).settled_revision != 0) return false;
    error_node = *plan_node(error_node).error_node;
    if (error_node == i) return true;
  }
  return false;
}

void FlowDecider::cancel_node(std::uint32_t i, const std::string& detail, const std::string& reason, bool stored) {
  if (!stored) add_effect(Effect::Kind::fail, i, detail, reason);
  emit("node_cancelled", i, {{"detail", detail}, {"error", reason}});
}

// Returns why a node whose needs have settled must not run. when: receives the conditions that hold, for the fact.
std::optional<std::string> FlowDecider::find_skip_reason(std::uint32_t i, Json& when) const {
  const PlanNode& plan = plan_node(i);
  bool has_completed_need = plan.on_call || plan.needs.empty();
  for (const std::uint32_t need : plan.needs) {
    if (plan.on_call) break;
    const NodeState& need_state = node(need);
    const auto& error_node = plan_node(need).error_node;
    if (need_state.detail == "handled" && need_state.status == NodeStatus::completed && error_node &&
        std::find(plan.needs.begin(), plan.needs.end(), *error_node) == plan.needs.end()) {
      return "node " + plan_node(need).name + " failed, and " + plan_node(*error_node).name + " ran instead";
    }
    has_completed_need = has_completed_need || need_state.status == NodeStatus::completed;
  }
  if (!has_completed_need) return "all that it needs was skipped";
  for (const FlowCondition& condition : plan.when) {
    const std::string& node_name = plan_node(condition.node).name;
    const TextMap& values = condition.is_input ? plan_.input_texts : node(condition.node).values;
    std::string unmet_reason;
    if (!is_met(condition, node_name, values, unmet_reason)) return unmet_reason;
    when.push_back(describe(condition, node_name));
  }
  return std::nullopt;
}

void FlowDecider::evaluate(std::uint32_t i) {
  if (run().uncalled.contains(i)) return skip(i);
  const PlanNode& plan = plan_node(i);
  Json when = Json::array();
  if (node(i).detail == "gate") return dispatch_node(i, when);  // evaluated before, and its gates have opened
  if (const auto reason = find_skip_reason(i, when)) return cancel_node(i, "skipped", *reason, false);
  std::vector<std::string> closed;
  for (const std::string& gate : plan.gates) {
    const bool received = gate.substr(0, 7) == "signal:" && run().signals.contains(gate.substr(7));
    if (!received) closed.push_back(gate);
  }
  if (closed.empty()) return dispatch_node(i, when);
  Json more{{"gates", closed}};
  if (plan.timeout_ms != 0) more["until"] = now_ + plan.timeout_ms;
  if (!plan.approvers.empty()) more["approvers"] = plan.approvers;
  if (!when.empty()) more["when"] = when;
  emit("node_gated", i, more);
  for (const std::string& gate : closed) {
    const Id flow = parse_flow_gate(gate);
    if (flow == 0) continue;
    add_effect(Effect::Kind::await_flow, i);
    out_.effects.back().flow = flow;
  }
}

// Dispatches the node. Makes it ready instead if the flow is paused, if no slot of max_parallel is free, or if another
// ready node comes first.
void FlowDecider::dispatch_node(std::uint32_t i, Json when) {
  const PlanNode& plan = plan_node(i);
  const bool run_by_flow = is_run_by_flow(plan.kind);
  const bool is_first = run().ready.size() == run().ready_internal.size() || run().ready.contains(i);
  std::size_t count = 0;
  if (plan.kind == NodeKind::each) {
    const auto elements = get_elements(plan_, run(), i);
    if (!elements && node(i).status == NodeStatus::pending) {
      return fail_node(i, "each_failed", elements.error().message, false);
    }
    if (!elements) return cancel_node(i, "not_needed", elements.error().message, false);  // the journal was changed
    count = elements->size();
  }
  Json more = Json::object();
  if (!when.empty()) more["when"] = std::move(when);
  if (run().paused || (!run_by_flow && (!is_first || !has_free_slot(plan_, run())))) return emit("node_ready", i, more);
  if (plan.kind == NodeKind::each) return expand(i, count, std::move(more));
  const bool is_retry = node(i).runs > 0;
  more["as"] = plan.kind == NodeKind::job ? "queued" : std::string(to_string(plan.kind));
  if (plan.kind == NodeKind::wait) more["until"] = now_ + plan.wait_ms;
  if (plan.kind == NodeKind::approval || plan.kind == NodeKind::pause) {
    if (plan.timeout_ms != 0) more["until"] = now_ + plan.timeout_ms;
    if (!plan.approvers.empty()) more["approvers"] = plan.approvers;
    if (!plan.text.empty()) more["asks"] = plan.text;
  }
  emit("node_dispatched", i, more);
  if (plan.kind == NodeKind::job) add_dispatch_effect(i, is_retry);
  if (plan.kind == NodeKind::flow) add_effect(Effect::Kind::start_child, i);
  if (plan.kind == NodeKind::log) complete(i, {}, false, 0);
}

void FlowDecider::add_dispatch_effect(std::uint32_t i, bool is_retry) {
  add_effect(is_retry ? Effect::Kind::requeue : Effect::Kind::dispatch, i);
  if (plan_node(i).each_node && !is_retry) bytes_ += estimate_element_bytes(plan_, i);
}

// The number of elements is known: nodes with an element can start; nodes without an element become `absent`.
void FlowDecider::expand(std::uint32_t i, std::size_t count, Json more) {
  const TextMap values{{"count", std::to_string(count)}};
  more["count"] = count;
  if (!plan_node(i).watched_keys.empty()) more["values"] = values;
  more["bytes"] = bytes_of(values);
  emit("node_expanded", i, more);
  add_effect(Effect::Kind::finish, i);
  out_.effects.back().values = values;
  out_.effects.back().values_json = {"count"};
}

// Settles a node that will not run any more, or that waits without a job or child.
void FlowDecider::skip(std::uint32_t i) {
  if (run().uncalled.contains(i)) return cancel_node(i, "not_needed", "it was not called", false);
  if (run().cancelling) {
    return cancel_node(i, "cancelled",
                       run().outcome == "timeout" ? "the flow's time was over" : "the flow was cancelled", false);
  }
  if (node(i).status == NodeStatus::pending && !plan_node(i).on_call) {
    for (const std::uint32_t need : plan_node(i).needs) {
      if (node(need).status != NodeStatus::failed) continue;
      const std::string error = "node " + plan_node(need).name + " failed";
      add_effect(Effect::Kind::fail, i, "dependency_failed", error);
      return emit("node_failed", i, {{"detail", "dependency_failed"}, {"error", error}});
    }
  }
  cancel_node(i, "not_needed", "the flow stopped before", false);
}

void FlowDecider::send_cancel(std::uint32_t i) {
  emit("cancel_sent", i);
  const bool job = plan_node(i).kind == NodeKind::job;
  add_effect(job ? Effect::Kind::cancel_job : Effect::Kind::cancel_child, i);
  out_.effects.back().flow = node(i).child;
}

// Resets the node. The job of a node that was in flight keeps its end until it is queued again as the next attempt.
void FlowDecider::retry(std::uint32_t i) {
  emit("node_retried", i);
  if (plan_node(i).kind != NodeKind::job || node(i).runs == 0) add_effect(Effect::Kind::replan, i);
}

void FlowDecider::resolve(std::uint32_t i) {
  if (node(*plan_node(i).error_node).status == NodeStatus::completed) {
    return emit("node_completed", i, {{"detail", "handled"}});
  }
  emit("node_unhandled", i);
}

// Events from jobs, children, other flows and the clock.

void FlowDecider::on_start(const StartRun& start) {
  if (run().status != FlowStatus::dispatched || run().stopping) return;
  Json more{{"trigger", start.trigger}};
  if (start.actor != 0) more["actor"] = start.actor;
  if (plan_.timeout_ms != 0) more["deadline"] = now_ + plan_.timeout_ms;
  emit("started", std::nullopt, more);
}

void FlowDecider::on_job_observed(const JobObserved& observed) {
  if (!observed.ended || !is_in_flight(observed.node) || plan_node(observed.node).kind != NodeKind::job) return;
  if (observed.status == to_string(JobStatus::finished))
    return complete(observed.node, observed.values, true, observed.result_bytes);
  const bool on_request = run().cancelling && !node(observed.node).is_compensation;
  if (on_request && observed.detail == "cancelled")
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
  out_.effects.back().flow = started.flow;
}

void FlowDecider::on_flow_observed(const FlowObserved& observed) {
  if (!is_terminal(observed.status) || observed.flow == 0) return;
  std::vector<std::uint32_t> waiting_nodes;
  for (auto it = run().awaited_flows.lower_bound({observed.flow, 0});
       it != run().awaited_flows.end() && it->first == observed.flow; ++it) {
    waiting_nodes.push_back(it->second);
  }
  const bool succeeded = observed.status == FlowStatus::finished;
  const std::string error =
      "flow " + std::to_string(observed.flow) + ": " + (observed.error.empty() ? "failed" : observed.error);
  for (const std::uint32_t i : waiting_nodes) {
    if (!is_in_flight(i)) {
      const auto gates = node(i).gates;
      for (const std::string& gate : gates) {
        if (succeeded && parse_flow_gate(gate) == observed.flow) open_gate(i, gate);
      }
      if (!succeeded) fail_node(i, "flow_failed", error, false);
    } else if (succeeded) {
      complete(i, observed.result, false, bytes_of(observed.result));
      out_.effects.back().values_json = observed.result_json;
    } else if (run().cancelling && !node(i).is_compensation) {
      cancel_node(i, "cancelled", error, false);
    } else {
      fail_node(i, "flow_failed", error, false);
    }
  }
}

void FlowDecider::check_deadline() {
  const RunState& state = run();
  if (state.deadline_ms == 0 || now_ < state.deadline_ms || state.cancelling || state.compensating) return;
  stop("timeout", "its time was over (timeout)");
}

void FlowDecider::on_time_passed() {
  if (!is_started()) return;
  check_deadline();
  while (!is_full() && !run().timers.empty() && run().timers.begin()->first <= now_) {
    const std::uint32_t i = run().timers.begin()->second;
    const NodeState& state = node(i);
    if (state.status == NodeStatus::dispatched && plan_node(i).kind == NodeKind::wait) {
      complete(i, {}, false, 0);
      continue;
    }
    std::string waited_for = plan_node(i).kind == NodeKind::pause ? "resume" : "approval";
    if (state.status == NodeStatus::pending) waited_for = state.gates.front();
    fail_node(i, "timeout", "waited too long for " + waited_for, false);
  }
}

// Answers to nodes that wait for people: approval and pause nodes, gates, signals.

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

bool has_gate(const FlowPlan& plan, const std::string& gate) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [&](const PlanNode& node) {
    return std::find(node.gates.begin(), node.gates.end(), gate) != node.gates.end();
  });
}

Result<void> FlowDecider::answer(const FlowControl& control) {
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
  if (control.verb != Verb::resume && has_gate(plan_, gate)) return answer_gate(control, gate);
  if (!target) {
    return fail(Code::not_found, "target: there is no node and no approval " + excerpt(control.target) +
                                     " in this flow; `flow explain` lists the waiting nodes");
  }
  for (const std::string& each : plan_node(*target).gates) {
    if (each.substr(0, 9) != "approval:" || control.verb == Verb::resume) continue;
    return fail(Code::conflict, "node " + control.target + " waits for " + each + ": name that, " + each.substr(9));
  }
  return fail(Code::conflict, "node " + control.target + " is a node of kind " + std::string(to_string(kind)) +
                                  ": there is nothing to " + std::string(to_string(control.verb)));
}

Result<void> FlowDecider::answer_node(const FlowControl& control, std::uint32_t i) {
  const std::string subject = "node " + plan_node(i).name;
  if (control.verb == Verb::resume && plan_node(i).kind == NodeKind::approval) {
    return fail(Code::conflict, subject + " is an approval: approve or reject it");
  }
  if (!is_in_flight(i)) {
    return fail(Code::conflict, subject + " does not wait for an answer: it is " +
                                    std::string(to_string(node(i).status)) + ' ' + node(i).detail);
  }
  if (!can_answer(node(i), control)) return denied_error(control, subject);
  record(control);
  if (control.verb == Verb::reject) {
    fail_node(i, "rejected", format_rejection(control), false);
    return {};
  }
  TextMap values{{"actor", std::to_string(control.actor)}};
  if (!control.comment.empty()) values["comment"] = control.comment;
  complete(i, values, false, bytes_of(values));
  return {};
}

// Answers all nodes that wait for this gate and that the actor may answer.
Result<void> FlowDecider::answer_gate(const FlowControl& control, const std::string& gate) {
  std::vector<std::uint32_t> answerable;
  bool has_waiting_node = false;
  for (const std::uint32_t i : run().gated) {
    const auto& gates = node(i).gates;
    if (std::find(gates.begin(), gates.end(), gate) == gates.end()) continue;
    has_waiting_node = true;
    if (can_answer(node(i), control)) answerable.push_back(i);
  }
  if (!has_waiting_node) return fail(Code::conflict, "no node waits for " + gate + " now");
  if (answerable.empty()) return denied_error(control, gate);
  record(control);
  for (const std::uint32_t i : answerable) {
    if (control.verb == Verb::reject) {
      fail_node(i, "rejected", format_rejection(control), false);
    } else {
      open_gate(i, gate);
    }
  }
  return {};
}

// Opens the gates that wait now and the gates that are reached later, so the sender need not know the progress of the
// flow.
Result<void> FlowDecider::signal(const FlowControl& control) {
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

// Requests by people: pause, resume, cancel.

using Verb = FlowControl::Verb;

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

void FlowDecider::record(const FlowControl& control) {
  Json more{{"verb", to_string(control.verb)}};
  if (!control.target.empty()) more["target"] = control.target;
  if (control.actor != 0) more["actor"] = control.actor;
  if (!control.comment.empty()) more["comment"] = control.comment;
  if (!control.payload.empty()) more["payload"] = control.payload;
  if (!control.key.empty()) {
    more["key"] = control.key;
    more["digest"] = compute_digest(control);
  }
  emit("control", std::nullopt, more);
}

Result<void> FlowDecider::on_control(const FlowControl& control) {
  MJ_CHECK(check_sizes(control));
  if (!control.key.empty()) {
    const auto known_key = run().control_digests.find(control.key);
    if (known_key != run().control_digests.end() && known_key->second == compute_digest(control)) return {};
    if (known_key != run().control_digests.end()) {
      return fail(Code::conflict, "key: " + excerpt(control.key) + " was used with another control; use a new key");
    }
    if (run().control_digests.size() >= kMaxControlKeys) {
      return fail(Code::too_large, "key: this flow has kept " + std::to_string(kMaxControlKeys) +
                                       " keys and stores no more; omit the key");
    }
  }
  if (control.verb == Verb::retry) return retry_run(control);
  if (is_terminal(run().status)) {
    return fail(Code::conflict,
                "the flow has ended (" + run().detail + "): " + std::string(to_string(control.verb)) + " is too late");
  }
  if (run().status == FlowStatus::dispatched && control.verb != Verb::cancel) {
    return fail(Code::conflict, "the flow has not started: start it first");
  }
  switch (control.verb) {
    case Verb::signal:
      return signal(control);
    case Verb::approve:
    case Verb::reject:
      return answer(control);
    case Verb::resume:
      return control.target.empty() ? control_flow(control) : answer(control);
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
  if (control.verb == Verb::pause && run().cancelling) {
    return fail(Code::conflict, "the flow is being cancelled (" + run().outcome + "): it cannot be paused");
  }
  const bool is_in_requested_state = control.verb == Verb::pause    ? run().paused
                                     : control.verb == Verb::resume ? !run().paused
                                                                    : run().cancelling;
  if (is_in_requested_state && control.key.empty()) return {};
  record(control);
  if (is_in_requested_state) return {};
  if (control.verb == Verb::pause) {
    emit("paused", std::nullopt);
  } else if (control.verb == Verb::resume) {
    emit("resumed", std::nullopt);
  } else {
    const std::string actor = control.actor == 0 ? "" : " by " + std::to_string(control.actor);
    stop("cancelled", "cancelled" + actor + (control.comment.empty() ? "" : ": " + control.comment));
  }
  return {};
}

// Retries one failed node, or all failed nodes.
Result<void> FlowDecider::retry_run(const FlowControl& control) {
  const RunState& state = run();
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
      const bool its_error_node = plan_node(*target).error_node == other && node(*target).routes_error;
      if (!its_error_node) {
        return conflict_error("node " + plan_node(other).name +
                              " has failed too, and the flow would stop again: name no node to retry both");
      }
    }
  }
  record(control);
  Json more = Json::object();
  if (plan_.timeout_ms != 0) more["deadline"] = now_ + plan_.timeout_ms;
  emit("retried", std::nullopt, more);
  return {};
}

using ActionKind = NextAction::Kind;

bool has_free_slot(const FlowPlan& plan, const RunState& run) {
  return plan.max_parallel == 0 || run.in_flight.size() - run.waiting.size() < plan.max_parallel;
}

std::optional<NextAction> find_next_dispatch(const FlowPlan& plan, const RunState& run) {
  if (!run.evaluable.empty()) return NextAction{ActionKind::evaluate, *run.evaluable.begin()};
  if (run.paused || run.ready.empty()) return std::nullopt;
  if (!run.ready_internal.empty()) return NextAction{ActionKind::dispatch, *run.ready_internal.begin()};
  if (has_free_slot(plan, run)) return NextAction{ActionKind::dispatch, *run.ready.begin()};
  return std::nullopt;
}

std::optional<NextAction> find_final_action(const RunState& run) {
  if (!run.uncalled.empty()) return NextAction{ActionKind::skip, *run.uncalled.begin()};
  return NextAction{ActionKind::end, 0};
}

// Error nodes that route to one another can wait for each other. No node is left that could call them, so they are
// skipped.
std::optional<NextAction> find_standstill_action(const RunState& run) {
  if (!run.in_flight.empty() || !run.ready.empty() || !run.gated.empty()) return std::nullopt;
  for (const std::uint32_t i : run.uncalled) {
    if (run.nodes[i].callers > 0) return NextAction{ActionKind::skip, i};
  }
  return std::nullopt;
}

// While the flow stops, no node starts. Nodes in flight end, nodes that never started are settled, and compensations
// run one after the other.
std::optional<NextAction> find_stopping_action(const FlowPlan& plan, const RunState& run) {
  if (!run.compensating) {
    if (!run.pending_cancels.empty()) return NextAction{ActionKind::send_cancel, *run.pending_cancels.begin()};
    if (!run.waiting.empty()) return NextAction{ActionKind::skip, *run.waiting.begin()};
    if (!run.in_flight.empty()) return std::nullopt;
    for (const auto* nodes : {&run.evaluable, &run.ready, &run.gated}) {
      if (!nodes->empty()) return NextAction{ActionKind::skip, *nodes->begin()};
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

void FlowDecider::emit(std::string_view kind, std::optional<std::uint32_t> node, const Json& more) {
  RunFact fact;
  fact.revision = run().revision + 1;
  fact.at_ms = now_;
  fact.kind = kind;
  fact.node = node;
  if (!more.empty()) fact.data_json = dump_json(more);
  fold(plan_, run(), fact);
  out_.facts.push_back(std::move(fact));
}

void FlowDecider::add_effect(Effect::Kind kind, std::uint32_t node, std::string detail, std::string error) {
  Effect effect;
  effect.kind = kind;
  effect.node = node;
  effect.detail = std::move(detail);
  effect.error = std::move(error);
  out_.effects.push_back(std::move(effect));
}

void FlowDecider::run_pending_actions() {
  while (!is_full()) {
    const auto next = find_next_action(plan_, run());
    if (!next) return;
    apply(*next);
  }
}

void FlowDecider::apply(NextAction next) {
  switch (next.kind) {
    case ActionKind::retry:
      return retry(next.node);
    case ActionKind::send_cancel:
      return send_cancel(next.node);
    case ActionKind::skip:
      return skip(next.node);
    case ActionKind::resolve:
      return resolve(next.node);
    case ActionKind::stop:
      return stop("failed", "node " + plan_node(next.node).name + " failed: " + node(next.node).detail +
                                (node(next.node).error.empty() ? "" : ": " + node(next.node).error));
    case ActionKind::evaluate:
      return evaluate(next.node);
    case ActionKind::dispatch:
      return dispatch_node(next.node, Json::array());
    case ActionKind::compensate:
      return emit("compensating", next.node, {{"by", plan_node(*plan_node(next.node).compensation).name}});
    case ActionKind::end:
      return end();
  }
}

void FlowDecider::stop(const std::string& outcome, const std::string& error) {
  emit("stopping", std::nullopt, {{"outcome", outcome}, {"error", error.substr(0, 2000)}});
}

void FlowDecider::end() {
  const RunState& state = run();
  if (state.stopping) {
    return emit("ended", std::nullopt, {{"status", "error"}, {"detail", state.outcome}, {"error", state.error}});
  }
  if (state.result_bytes <= kMaxFlowResultBytes) {
    return emit("ended", std::nullopt, {{"status", "finished"}, {"detail", "ok"}});
  }
  std::uint32_t largest = 0;
  for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
    if (node(i).result_bytes > node(largest).result_bytes) largest = i;
  }
  stop("result_too_large", "the results have " + std::to_string(state.result_bytes) + " bytes together, more than " +
                               std::to_string(kMaxFlowResultBytes) + "; the largest is that of node " +
                               plan_node(largest).name + ", " + std::to_string(node(largest).result_bytes) +
                               " bytes: return less and store large data outside of the result");
}

std::uint64_t bytes_of(const TextMap& values) {
  std::uint64_t bytes = 0;
  for (const auto& [key, value] : values) bytes += key.size() + value.size();
  return bytes;
}

}  // namespace

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
  std::size_t bytes = 1000 + job.script.size() + job.policy.size();
  for (const TextMap* texts : {&job.env_vars, &plan.env_vars, &plan.input_texts}) bytes += bytes_of(*texts);
  return bytes;
}

bool has_immediate_action(const FlowPlan& plan, const RunState& run) { return find_next_action(plan, run).has_value(); }

std::uint64_t next_timer_ms(const RunState& run) {
  if (run.status != FlowStatus::started) return 0;
  const std::uint64_t node = run.timers.empty() ? 0 : run.timers.begin()->first;
  const bool has_deadline = !run.cancelling && !run.compensating;
  const std::uint64_t flow = has_deadline ? run.deadline_ms : 0;
  if (node == 0 || flow == 0) return node + flow;
  return std::min(node, flow);
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
  for (const std::uint32_t i : run.in_flight) {
    if (plan.nodes[i].kind == NodeKind::flow && run.nodes[i].child == 0) add(Effect::Kind::start_child, i, 0);
  }
  for (const auto& [flow, i] : run.awaited_flows) {
    const bool gate = run.nodes[i].status == NodeStatus::pending;
    const bool is_cancelling = run.nodes[i].detail == "cancelling";
    if (gate) add(Effect::Kind::await_flow, i, flow);
    if (!gate && is_cancelling) add(Effect::Kind::cancel_child, i, flow);
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
