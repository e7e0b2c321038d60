// A state as text and back. Only what does not follow from the rest is written; the rest is computed again.
#include <algorithm>
#include <sstream>

#include "base/sha256.h"
#include "domain/codec.h"
#include "domain/flow_fold.h"
#include "domain/transitions.h"

namespace mycojobs {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "run2";
constexpr std::size_t kMaxCheckpointBytes = 256U << 20;

bool untouched(const PlanNode& planned, const NodeState& node) {
  return node.status == NodeStatus::pending && node.runs == 0 && node.gates.empty() && node.since_ms == 0 &&
         node.detail == (planned.on_call ? "on_call" : "dependencies");
}

json node_json(const NodeState& node) {
  json out{{"s", word(node.status)}, {"d", node.detail}, {"t", node.since_ms}};
  if (!node.error.empty()) out["e"] = node.error;
  if (node.runs != 0) out["r"] = node.runs;
  if (node.until_ms != 0) out["u"] = node.until_ms;
  if (node.settled != 0) out["z"] = node.settled;
  if (!node.gates.empty()) out["g"] = node.gates;
  if (!node.values.empty()) out["v"] = node.values;
  if (node.child != 0) out["c"] = node.child;
  if (!node.approvers.empty()) out["a"] = node.approvers;
  if (node.result_bytes != 0) out["b"] = node.result_bytes;
  if (node.compensates) out["x"] = true;
  if (node.compensated) out["y"] = true;
  return out;
}

// A value of the right type, or nothing is changed and `ok` is false.
template <class T>
void take(const json& from, const char* name, T& to, bool& ok) {
  const auto found = from.find(name);
  if (found == from.end()) return;
  try {
    const bool fits = !std::is_unsigned_v<T> || std::is_same_v<T, bool> || found->is_number_unsigned();
    if (!fits) ok = false;
    if (fits) found->get_to(to);
  } catch (const json::exception&) {
    ok = false;
  }
}

bool possible(const PlanNode& planned, const NodeState& node, std::uint64_t revision) {
  const bool routed = node.status == NodeStatus::failed && node.settled == 0;
  const bool over = is_terminal(node.status);
  const bool took_over = node.status == NodeStatus::completed && node.detail == "handled";
  if ((routed || took_over) && (planned.on_error != OnError::route || !planned.error_node)) return false;
  if (node.status == NodeStatus::running || (!routed && over != (node.settled != 0))) return false;
  if (node.settled > revision || (over && (node.until_ms != 0 || !node.gates.empty()))) return false;
  return node.gates.empty() || node.status == NodeStatus::pending;
}

bool node_of(const json& from, const PlanNode& planned, std::uint64_t revision, NodeState& node) {
  bool ok = from.is_object();
  if (!ok) return false;
  std::string status;
  take(from, "s", status, ok);
  take(from, "d", node.detail, ok);
  take(from, "t", node.since_ms, ok);
  take(from, "e", node.error, ok);
  take(from, "r", node.runs, ok);
  take(from, "u", node.until_ms, ok);
  take(from, "z", node.settled, ok);
  take(from, "g", node.gates, ok);
  take(from, "v", node.values, ok);
  take(from, "c", node.child, ok);
  take(from, "a", node.approvers, ok);
  take(from, "b", node.result_bytes, ok);
  take(from, "x", node.compensates, ok);
  take(from, "y", node.compensated, ok);
  const auto word = parse<NodeStatus>(status);
  if (!ok || !word) return false;
  node.status = *word;
  return possible(planned, node, revision);
}

bool flow_of(const json& from, RunState& run) {
  bool ok = true;
  std::string status;
  take(from, "revision", run.revision, ok);
  take(from, "status", status, ok);
  take(from, "detail", run.detail, ok);
  take(from, "error", run.error, ok);
  take(from, "paused", run.paused, ok);
  take(from, "stopping", run.stopping, ok);
  take(from, "cancelling", run.cancelling, ok);
  take(from, "compensating", run.compensating, ok);
  take(from, "outcome", run.outcome, ok);
  take(from, "started", run.started_ms, ok);
  take(from, "ended", run.ended_ms, ok);
  take(from, "deadline", run.deadline_ms, ok);
  take(from, "to_retry", run.to_retry, ok);
  take(from, "keys", run.keys, ok);
  take(from, "signals", run.signals, ok);
  take(from, "anomalies", run.anomalies, ok);
  const auto word = parse<FlowStatus>(status);
  if (word) run.status = *word;
  return ok && word;
}

}  // namespace

std::string checkpoint(const FlowPlan& plan, const RunState& run) {
  json out{{"plan", plan.hash},
           {"revision", run.revision},
           {"status", word(run.status)},
           {"detail", run.detail},
           {"error", run.error},
           {"paused", run.paused},
           {"stopping", run.stopping},
           {"cancelling", run.cancelling},
           {"outcome", run.outcome},
           {"compensating", run.compensating},
           {"started", run.started_ms},
           {"ended", run.ended_ms},
           {"deadline", run.deadline_ms},
           {"to_retry", run.to_retry},
           {"keys", run.keys},
           {"signals", run.signals},
           {"anomalies", run.anomalies}};
  json nodes = json::array();
  for (std::size_t i = 0; i < run.nodes.size(); ++i) {
    nodes.push_back(untouched(plan.nodes[i], run.nodes[i]) ? json(0) : node_json(run.nodes[i]));
  }
  out["nodes"] = std::move(nodes);
  const std::string text = dump_json(out);
  return std::string(kFormat) + ' ' + sha256_hex(text) + ' ' + text;
}

std::optional<RunState> restore(const FlowPlan& plan, std::string_view text) {
  const std::size_t head = kFormat.size() + 66;
  if (text.size() < head || text.size() > kMaxCheckpointBytes || text.substr(0, kFormat.size()) != kFormat)
    return std::nullopt;
  const std::string_view body = text.substr(head);
  if (text.substr(kFormat.size(), 66) != ' ' + sha256_hex(body) + ' ') return std::nullopt;
  // Of a checkpoint that this code wrote, as the digest says: places of errors are of no use here.
  const json parsed = json::parse(body, nullptr, false);
  if (!parsed.is_object()) return std::nullopt;
  const auto hash = parsed.find("plan");
  if (hash == parsed.end() || *hash != plan.hash) return std::nullopt;
  const auto nodes = parsed.find("nodes");
  if (nodes == parsed.end() || !nodes->is_array() || nodes->size() != plan.nodes.size()) return std::nullopt;
  RunState run;
  if (!flow_of(parsed, run)) return std::nullopt;
  if (!run.to_retry.empty() && *run.to_retry.rbegin() >= plan.nodes.size()) return std::nullopt;
  run.nodes.resize(plan.nodes.size());
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    run.nodes[i].detail = plan.nodes[i].on_call ? "on_call" : "dependencies";
    const json& each = (*nodes)[i];
    if (each != 0 && !node_of(each, plan.nodes[i], run.revision, run.nodes[i])) return std::nullopt;
  }
  index_run(plan, run);
  return run;
}

namespace {

template <class Numbers>
void put_numbers(std::ostream& out, const char* name, const Numbers& numbers) {
  out << name << ':';
  for (const auto& each : numbers) {
    if constexpr (requires { each.first; }) {
      out << ' ' << each.first << '/' << each.second;
    } else {
      out << ' ' << each;
    }
  }
  out << '\n';
}

void put_node(std::ostream& out, const PlanNode& planned, const NodeState& node) {
  out << "node " << planned.name << ": " << word(node.status) << ' ' << node.detail << " error=" << node.error
      << " open_needs=" << node.open_needs << " runs=" << node.runs << " until=" << node.until_ms
      << " settled=" << node.settled << " child=" << node.child << " bytes=" << node.result_bytes
      << " compensates=" << node.compensates << " compensated=" << node.compensated << " routes=" << node.routes
      << " callers=" << node.callers_open << '/' << node.callers;
  for (const auto& [key, value] : node.values) out << ' ' << key << '=' << value;
  for (const std::string& gate : node.gates) out << " gate=" << gate;
  for (const Id approver : node.approvers) out << " approver=" << approver;
  auto called_by = node.called_by;
  std::sort(called_by.begin(), called_by.end());
  for (const std::uint32_t caller : called_by) out << " called_by=" << caller;
  out << '\n';
}

}  // namespace

std::string describe(const FlowPlan& plan, const RunState& run) {
  std::ostringstream out;
  out << "flow: " << word(run.status) << ' ' << run.detail << " revision=" << run.revision << " paused=" << run.paused
      << " stopping=" << run.stopping << " cancelling=" << run.cancelling << " compensating=" << run.compensating
      << " outcome=" << run.outcome << " deadline=" << run.deadline_ms << " unsettled=" << run.unsettled
      << " bytes=" << run.result_bytes << "\nerror: " << run.error << '\n';
  for (std::size_t i = 0; i < run.nodes.size(); ++i) put_node(out, plan.nodes[i], run.nodes[i]);
  put_numbers(out, "ready", run.ready);
  put_numbers(out, "ready_own", run.ready_own);
  put_numbers(out, "in_flight", run.in_flight);
  put_numbers(out, "waiting", run.waiting);
  put_numbers(out, "timers", run.timers);
  put_numbers(out, "gated", run.gated);
  put_numbers(out, "compensable", run.compensable);
  put_numbers(out, "met", run.met);
  put_numbers(out, "uncalled", run.uncalled);
  put_numbers(out, "to_cancel", run.to_cancel);
  put_numbers(out, "to_retry", run.to_retry);
  put_numbers(out, "to_resolve", run.to_resolve);
  put_numbers(out, "failures", run.failures);
  put_numbers(out, "awaited", run.awaited);
  put_numbers(out, "keys", run.keys);
  put_numbers(out, "signals", run.signals);
  put_numbers(out, "anomalies", run.anomalies);
  return out.str();
}

}  // namespace mycojobs
