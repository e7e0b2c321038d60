#include "flow/model.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace mycojobs {

using At = Model::At;

Model::Model(const FlowPlan& plan) : plan_(plan), nodes_(plan.nodes.size()), compensation_(plan.nodes.size(), false) {
  for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) {
    if (plan.nodes[i].on_call) nodes_[i].at = At::uncalled;
    if (plan.nodes[i].compensation) compensation_[*plan.nodes[i].compensation] = true;
  }
}

bool Model::own(std::uint32_t i) const {
  const NodeKind kind = plan_.nodes[i].kind;
  return kind == NodeKind::log || kind == NodeKind::wait || kind == NodeKind::pause || kind == NodeKind::approval ||
         kind == NodeKind::each;
}
bool Model::routes(std::uint32_t i) const { return plan_.nodes[i].on_error == OnError::route && !compensation_[i]; }
bool Model::is_error_node(std::uint32_t e) const {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (routes(i) && plan_.nodes[i].error_node == e) return true;
  }
  return false;
}
bool Model::may_be_called(std::uint32_t e) const {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const bool open = !settled(nodes_[i].at) && nodes_[i].at != At::routed;
    if (routes(i) && plan_.nodes[i].error_node == e && open) return true;
  }
  return false;
}
bool Model::any(At at) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) { return node.at == at; });
}
bool Model::place_free() const {
  std::uint32_t taken = 0;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) taken += nodes_[i].at == At::flying && !own(i) ? 1 : 0;
  return plan_.max_parallel == 0 || taken < plan_.max_parallel;
}

void Model::settle(std::uint32_t i, At at, const std::string& detail) {
  nodes_[i].at = at;
  nodes_[i].detail = detail;
  nodes_[i].order = ++settled_;
  nodes_[i].until = 0;
  // Places without an element are not nodes of this run.
  for (std::uint32_t k = nodes_[i].elements; k < plan_.nodes[i].max_elements; ++k) {
    if (!settled(nodes_[i + 1 + k].at)) settle(i + 1 + k, At::absent, "absent");
  }
}
int Model::count_elements(std::uint32_t i) const {
  const PlanNode& plan = plan_.nodes[i];
  if (!plan.element_source) return static_cast<int>(plan.elements.size());
  const TextMap& values = nodes_[plan.element_source->node].values;
  const auto text = values.find(plan.element_source->key);
  if (text == values.end()) return -1;
  const auto list = nlohmann::json::parse(text->second, nullptr, false);
  return list.is_structured() && list.size() <= plan.max_elements ? static_cast<int>(list.size()) : -1;
}
void Model::good(std::uint32_t i, const TextMap& values) {
  nodes_[i].values = values;
  nodes_[i].values["$status"] = "finished";
  settle(i, At::ok, "ok");
}
void Model::bad(std::uint32_t i, const std::string& detail) {
  nodes_[i].values["$status"] = "error";
  if (plan_.nodes[i].on_error == OnError::proceed && !nodes_[i].undoes) return settle(i, At::continued, "continued");
  bool taken = routes(i) && !stopping_;
  // Follows the chain of error nodes that have failed themselves. If the chain leads back to this node, no error node
  // is left to handle the failure.
  std::uint32_t taker = i;
  while (taken && (taker == i || nodes_[taker].at == At::routed)) {
    taker = *plan_.nodes[taker].error_node;
    taken = taker != i;
  }
  if (!taken) return settle(i, At::failed, detail);
  nodes_[i].at = At::routed;
  nodes_[i].detail = detail;
  nodes_[i].until = 0;
  Node& error_node = nodes_[*plan_.nodes[i].error_node];
  if (error_node.at == At::uncalled) error_node.at = At::waiting;
}
void Model::drop(std::uint32_t i) {
  bool needs_failed = false;
  for (const std::uint32_t need : plan_.nodes[i].needs) {
    needs_failed = needs_failed || nodes_[need].at == At::failed || nodes_[need].at == At::dependency_failed;
  }
  const bool never = nodes_[i].at != At::flying && nodes_[i].at != At::ready;
  const At was = nodes_[i].at;
  nodes_[i].values = {{"$status", "not_needed"}};
  if (was == At::uncalled) return settle(i, At::unneeded, "not_needed");
  if (cancelling_) return settle(i, At::cancelled, "cancelled");
  if (never && needs_failed) return settle(i, At::dependency_failed, "dependency_failed");
  settle(i, At::unneeded, "not_needed");
}
void Model::stop(const std::string& outcome) {
  stopping_ = true;
  outcome_ = outcome;
  if (outcome == "failed") return;
  cancelling_ = true;
  paused_ = false;
}

bool Model::judgeable(std::uint32_t i) const {
  const Node& node = nodes_[i];
  if (node.at == At::uncalled) return is_error_node(i) && !may_be_called(i);
  if (node.at == At::gated) return node.open.empty();
  if (node.at != At::waiting) return false;
  return std::all_of(plan_.nodes[i].needs.begin(), plan_.nodes[i].needs.end(),
                     [&](std::uint32_t need) { return settled(nodes_[need].at); });
}

void Model::judge(std::uint32_t i) {
  const PlanNode& plan = plan_.nodes[i];
  Node& node = nodes_[i];
  if (node.at == At::uncalled) return drop(i);
  if (node.at == At::gated) return begin(i);
  bool skip = false;
  bool some = plan.needs.empty();
  for (const std::uint32_t need : plan.needs) {
    const At at = nodes_[need].at;
    some = some || at == At::ok || at == At::continued || at == At::handled;
    if (at != At::handled) continue;
    const bool needs_taker = std::count(plan.needs.begin(), plan.needs.end(), *plan_.nodes[need].error_node) > 0;
    skip = skip || !needs_taker;
  }
  for (const FlowCondition& condition : plan.when) {
    std::string why;
    const TextMap& values = condition.is_input ? plan_.input_texts : nodes_[condition.node].values;
    skip = skip || !is_met(condition, "n", values, why);
  }
  if (skip || !some) {
    node.values = {{"$status", "skipped"}};
    return settle(i, At::skipped, "skipped");
  }
  for (const std::string& gate : plan.gates) {
    if (gate.rfind("signal:", 0) != 0 || signals_.count(gate.substr(7)) == 0) node.open.insert(gate);
  }
  if (node.open.empty()) return begin(i);
  node.at = At::gated;
  node.who = plan.approvers;
  if (plan.timeout_ms != 0) node.until = now_ + plan.timeout_ms;
}

void Model::begin(std::uint32_t i) {
  const PlanNode& plan = plan_.nodes[i];
  Node& node = nodes_[i];
  bool another = false;
  for (std::uint32_t k = 0; k < nodes_.size(); ++k)
    another = another || (k != i && nodes_[k].at == At::ready && !own(k));
  const int elements = count_elements(i);
  if (plan.kind == NodeKind::each && elements < 0) return bad(i, "each_failed");
  const bool turn = own(i) || ((node.at == At::ready || !another) && place_free());
  if (paused_ || !turn) {
    node.at = At::ready;
    node.until = 0;
    return;
  }
  node.at = At::flying;
  node.until = 0;
  ++node.runs;
  if (plan.kind == NodeKind::each) {
    node.elements = static_cast<std::uint32_t>(elements);
    return good(i, {{"count", std::to_string(elements)}});
  }
  if (plan.kind == NodeKind::wait) node.until = now_ + plan.wait_ms;
  const bool asks = plan.kind == NodeKind::approval || plan.kind == NodeKind::pause;
  if (asks && plan.timeout_ms != 0) node.until = now_ + plan.timeout_ms;
  if (own(i)) node.who = asks ? plan.approvers : std::vector<Id>{};
  if (plan.kind == NodeKind::log) good(i, {});
}

bool Model::begin_something() {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (judgeable(i)) return judge(i), true;
  }
  if (paused_) return false;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].at == At::ready && own(i)) return begin(i), true;
  }
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].at == At::ready && place_free()) return begin(i), true;
  }
  return false;
}

// Ends a deadlock of error nodes that wait for each other.
bool Model::end_standstill() {
  if (any(At::flying) || any(At::ready) || any(At::gated)) return false;
  for (std::uint32_t e = 0; e < nodes_.size(); ++e) {
    if (nodes_[e].at == At::uncalled && is_error_node(e)) return drop(e), true;
  }
  return false;
}

bool Model::step_of_stopping() {
  if (!undoing_) {
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (node.at != At::flying) continue;
      if (own(i)) return drop(i), true;
      const bool known = plan_.nodes[i].kind == NodeKind::job || node.child != 0;
      if (cancelling_ && known && !node.asked_to_end) return node.asked_to_end = true;
    }
    if (any(At::flying)) return false;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].at == At::ready || nodes_[i].at == At::gated || judgeable(i)) return drop(i), true;
    }
  }
  if (begin_something()) return true;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (!settled(nodes_[i].at) && nodes_[i].at != At::uncalled) return end_standstill();
  }
  std::uint32_t last = UINT32_MAX;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (node.at != At::ok || !plan_.nodes[i].compensation || node.undone || node.undoes) continue;
    if (last == UINT32_MAX || node.order > nodes_[last].order) last = i;
  }
  if (last == UINT32_MAX) return false;
  if (paused_) return false;
  undoing_ = nodes_[last].undone = true;
  Node& undo = nodes_[*plan_.nodes[last].compensation];
  undo.undoes = true;
  undo.at = At::waiting;
  return true;
}

bool Model::one_step() {
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].at != At::routed) continue;
    const At taker = nodes_[*plan_.nodes[i].error_node].at;
    if (!settled(taker)) continue;
    const bool well = taker == At::ok || taker == At::continued || taker == At::handled;
    settle(i, well ? At::handled : At::failed, well ? "handled" : nodes_[i].detail);
    return true;
  }
  if (stopping_) return step_of_stopping();
  if (any(At::failed)) return stop("failed"), true;
  if (begin_something()) return true;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (!settled(nodes_[i].at) && nodes_[i].at != At::uncalled) {
      return end_standstill();
    }
  }
  return false;
}

void Model::follow() {
  if (ended_ || (!started_ && !stopping_)) return;
  while (one_step()) {
  }
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (!settled(nodes_[i].at) && nodes_[i].at != At::uncalled) return;
    if (stopping_ && paused_ && nodes_[i].at == At::ok && plan_.nodes[i].compensation && !nodes_[i].undone) return;
  }
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].at == At::uncalled) drop(i);
  }
  ended_ = true;
}

std::string Model::describe_flow() const {
  if (ended_) return stopping_ ? "error " + outcome_ : "finished ok";
  if (!started_) return "dispatched new";
  if (undoing_) return "started compensating";
  if (cancelling_) return "started cancelling";
  if (stopping_) return "started stopping";
  return paused_ ? "started paused" : "started running";
}

std::string Model::describe_node(std::uint32_t i) const {
  const Node& node = nodes_[i];
  switch (node.at) {
    case At::waiting:
      return "pending dependencies";
    case At::uncalled:
      return "pending on_call";
    case At::gated:
      return "pending gate";
    case At::ready:
      return "ready ";
    case At::flying:
      if (node.asked_to_end) return "dispatched cancelling";
      return "dispatched " +
             (plan_.nodes[i].kind == NodeKind::job ? "queued" : std::string(to_string(plan_.nodes[i].kind)));
    case At::routed:
    case At::failed:
    case At::dependency_failed:
      return "failed " + node.detail;
    case At::ok:
    case At::continued:
    case At::handled:
      return "completed " + node.detail;
    case At::skipped:
    case At::cancelled:
    case At::unneeded:
    case At::absent:
      break;
  }
  return "cancelled " + node.detail;
}

}  // namespace mycojobs
