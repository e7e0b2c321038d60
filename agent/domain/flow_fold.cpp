// Facts of the whole flow, and what all facts go through.
#include "domain/flow_fold.h"

#include <algorithm>

#include "domain/codec.h"
#include "domain/transitions.h"

namespace mycojobs::runs {
namespace {

constexpr std::size_t kMaxFactBytes = 16U << 20;  // a result, each byte of it escaped

bool is_outcome(std::string_view word) {
  return word == "failed" || word == "cancelled" || word == "timeout" || word == "result_too_large";
}

}  // namespace

std::string Folding::text(std::string_view name) const {
  const auto found = more_.find(name);
  return found != more_.end() && found->is_string() ? found->get<std::string>() : std::string();
}
std::uint64_t Folding::number(std::string_view name) const {
  const auto found = more_.find(name);
  return found != more_.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}
bool Folding::flag(std::string_view name) const {
  const auto found = more_.find(name);
  return found != more_.end() && found->is_boolean() && found->get<bool>();
}

Folding::Verdict Folding::apply() {
  const FoldRow* row = fold_row(fact_.kind);
  if (row == nullptr) return "is no kind of fact";
  if (row->shape.of_node != fact_.node.has_value()) {
    return fact_.node ? "names a node" : "names no node";
  }
  if (fact_.node && *fact_.node >= plan_.nodes.size()) {
    return "names node " + std::to_string(*fact_.node) + " of " + std::to_string(plan_.nodes.size());
  }
  more_ = nlohmann::json::object();
  if (!fact_.more.empty()) {
    auto parsed = parse_json(fact_.more, kMaxFactBytes);
    if (!parsed || !parsed->is_object()) return "carries no JSON object";
    more_ = std::move(*parsed);
  }
  const bool after_end = fact_.kind == "control" || fact_.kind == "retried";
  if (is_terminal(run_.status) && !after_end) return wrong_here();
  return (this->*row->step)();
}

Folding::Verdict Folding::wrong_here() const {
  if (!fact_.node) return "of a flow that is " + std::string(word(run_.status)) + ' ' + run_.detail;
  const NodeState& at = run_.nodes[index()];
  const std::string flow = is_terminal(run_.status) ? " in a flow that has ended" : "";
  return "of node " + planned().name + ", which is " + std::string(word(at.status)) + ' ' + at.detail + flow;
}

Folding::Verdict Folding::started() {
  const auto to = advance(run_.status, RunEvent::start);
  if (!to || run_.stopping) return wrong_here();
  run_.status = *to;
  run_.started_ms = fact_.at_ms;
  run_.deadline_ms = number("deadline");
  refresh_detail();
  return std::nullopt;
}

Folding::Verdict Folding::control() {
  if (const std::string key = text("key"); !key.empty()) run_.keys.emplace(key, text("digest"));
  if (text("verb") == "signal" && !text("target").empty()) run_.signals[text("target")] = text("payload");
  return std::nullopt;
}

Folding::Verdict Folding::paused() {
  if (run_.status != FlowStatus::started || run_.paused || run_.cancelling) return wrong_here();
  run_.paused = true;
  refresh_detail();
  return std::nullopt;
}

Folding::Verdict Folding::resumed() {
  if (!run_.paused) return wrong_here();
  run_.paused = false;
  refresh_detail();
  return std::nullopt;
}

Folding::Verdict Folding::stopping() {
  const std::string outcome = text("outcome");
  if (!is_outcome(outcome)) return "names no outcome";
  const bool wished = outcome == "cancelled" || outcome == "timeout";
  if (wished ? run_.cancelling : run_.stopping || run_.status != FlowStatus::started) return wrong_here();
  run_.stopping = true;
  run_.outcome = outcome;
  if (run_.error.empty()) run_.error = text("error");
  if (wished) {
    // A pause holds what would begin. Nothing will, but what undoes; and that was asked for just now.
    run_.cancelling = true;
    run_.paused = false;
    for (const std::uint32_t i : run_.in_flight) {
      const bool known =
          !is_own(plan_.nodes[i].kind) && (plan_.nodes[i].kind == NodeKind::job || run_.nodes[i].child != 0);
      if (known && !run_.nodes[i].compensates) run_.to_cancel.insert(i);
    }
  }
  refresh_detail();
  return std::nullopt;
}

Folding::Verdict Folding::retried() {
  const bool stopped = run_.stopping && (run_.outcome == "failed" || run_.outcome == "timeout");
  const bool over = run_.status == FlowStatus::error;
  if (!stopped || run_.compensating || (run_.cancelling && !over)) return wrong_here();
  if (over) run_.status = *advance(run_.status, RunEvent::retry);
  collect_retries();
  run_.stopping = run_.cancelling = run_.paused = false;
  run_.outcome.clear();
  run_.error.clear();
  run_.ended_ms = 0;
  run_.deadline_ms = number("deadline");
  refresh_detail();
  return std::nullopt;
}

// What has failed or never ran, but not what was skipped by a decision that still holds.
void Folding::collect_retries() {
  std::vector<std::uint32_t> found;
  const auto take = [&](std::uint32_t i) {
    if (run_.to_retry.insert(i).second) found.push_back(i);
  };
  for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
    const NodeState& node = run_.nodes[i];
    const bool failed = node.status == NodeStatus::failed && node.settled != 0;
    const bool dropped = node.status == NodeStatus::cancelled && node.detail != "skipped" && node.detail != "absent";
    // An error node that nobody can call any more follows its callers, below.
    if (failed || (dropped && !(plan_.nodes[i].on_call && node.callers > 0))) take(i);
  }
  while (!found.empty()) {
    const std::uint32_t caller_index = found.back();
    const PlanNode& caller = plan_.nodes[caller_index];
    found.pop_back();
    if (!run_.nodes[caller_index].routes) continue;
    const NodeState& error_node = run_.nodes[*caller.error_node];
    if (error_node.status == NodeStatus::failed || error_node.status == NodeStatus::cancelled) take(*caller.error_node);
  }
}

Folding::Verdict Folding::ended() {
  const auto status = parse<FlowStatus>(text("status"));
  if (!status || !is_terminal(*status)) return "names no end";
  const auto to = advance(run_.status, *status == FlowStatus::finished ? RunEvent::finish : RunEvent::fail);
  if (!to) return wrong_here();
  if (run_.unsettled != 0 || !run_.uncalled.empty() || !run_.to_retry.empty()) return "while nodes have not settled";
  if ((*to == FlowStatus::error) != run_.stopping) return wrong_here();
  run_.status = *to;
  run_.detail = text("detail");
  run_.error = text("error");
  run_.ended_ms = fact_.at_ms;
  return std::nullopt;
}

}  // namespace mycojobs::runs
