// What follows without an event: judging, beginning, dropping, setting back.
#include <algorithm>

#include "domain/flow_decide_run.h"
#include "domain/flow_fold.h"
#include "domain/transitions.h"

namespace mycojobs::runs {

void Deciding::complete(std::uint32_t i, const TextMap& values, bool told, std::uint64_t bytes) {
  Json more{{"detail", "ok"}};
  for (const std::string& key : planned(i).watched) {
    if (const auto found = values.find(key); found != values.end()) more["values"][key] = found->second;
  }
  if (bytes != 0) more["bytes"] = bytes;
  emit("node_completed", i, more);
  if (told) return;
  effect(Effect::Kind::finish, i);
  out_.effects.back().values = values;
}

void Deciding::fail_node(std::uint32_t i, const std::string& detail, const std::string& error, bool told) {
  const bool compensates = node(i).compensates;
  if (!told) effect(Effect::Kind::fail, i, detail, error);
  if (planned(i).on_error == OnError::go_on && !compensates) {
    return emit("node_completed", i, {{"detail", "continued"}, {"failed", detail}, {"error", error}});
  }
  Json more{{"detail", detail}, {"error", error}};
  if (node(i).routes && !run().stopping && !waits_for(*planned(i).error_node, i)) more["routed"] = true;
  emit("node_failed", i, more);
}

// Error nodes may route to one another: one that has failed and is in the hands of another can take nothing over for
// it.
bool Deciding::waits_for(std::uint32_t error_node, std::uint32_t i) const {
  // A chain is no longer than the flow, even in a journal that somebody made up.
  for (std::size_t turn = 0; turn < plan_.nodes.size(); ++turn) {
    if (node(error_node).status != NodeStatus::failed || node(error_node).settled != 0) return false;
    error_node = *planned(error_node).error_node;
    if (error_node == i) return true;
  }
  return false;
}

void Deciding::cancel_node(std::uint32_t i, const std::string& detail, const std::string& reason, bool told) {
  if (!told) effect(Effect::Kind::fail, i, detail, reason);
  emit("node_cancelled", i, {{"detail", detail}, {"error", reason}});
}

// Why a node whose needs have all settled is not to run. when: the conditions that hold, for the record.
std::optional<std::string> Deciding::why_skipped(std::uint32_t i, Json& when) const {
  const PlanNode& plan = planned(i);
  bool any = plan.on_call || plan.needs.empty();
  for (const std::uint32_t need : plan.needs) {
    if (plan.on_call) break;
    const NodeState& at = node(need);
    const auto& error_node = planned(need).error_node;
    if (at.detail == "handled" && at.status == NodeStatus::completed && error_node &&
        std::find(plan.needs.begin(), plan.needs.end(), *error_node) == plan.needs.end()) {
      return "node " + planned(need).name + " failed, and " + planned(*error_node).name + " ran instead";
    }
    any = any || at.status == NodeStatus::completed;
  }
  if (!any) return "all that it needs was skipped";
  for (const FlowCondition& condition : plan.when) {
    const std::string& of = planned(condition.node).name;
    const TextMap& values = condition.of_input ? plan_.input_texts : node(condition.node).values;
    std::string why_not;
    if (!holds(condition, of, values, why_not)) return why_not;
    when.push_back(describe(condition, of));
  }
  return std::nullopt;
}

void Deciding::judge(std::uint32_t i) {
  if (run().uncalled.contains(i)) return drop(i);
  const PlanNode& plan = planned(i);
  Json when = Json::array();
  if (node(i).detail == "gate") return begin(i, when);  // judged before, and its gates have opened
  if (const auto reason = why_skipped(i, when)) return cancel_node(i, "skipped", *reason, false);
  std::vector<std::string> closed;
  for (const std::string& gate : plan.gates) {
    const bool came = gate.substr(0, 7) == "signal:" && run().signals.contains(gate.substr(7));
    if (!came) closed.push_back(gate);
  }
  if (closed.empty()) return begin(i, when);
  Json more{{"gates", closed}};
  if (plan.timeout_ms != 0) more["until"] = now_ + plan.timeout_ms;
  if (!plan.approvers.empty()) more["approvers"] = plan.approvers;
  if (!when.empty()) more["when"] = when;
  emit("node_gated", i, more);
  for (const std::string& gate : closed) {
    const Id flow = awaited_by(gate);
    if (flow == 0) continue;
    effect(Effect::Kind::await_flow, i);
    out_.effects.back().flow = flow;
  }
}

// Puts it under way, or among the ready, if nothing may begin now or another waits for the place.
void Deciding::begin(std::uint32_t i, Json when) {
  const PlanNode& plan = planned(i);
  const bool own = is_own(plan.kind);
  const bool first = run().ready.size() == run().ready_own.size() || run().ready.contains(i);
  std::size_t count = 0;
  if (plan.kind == NodeKind::each) {
    const auto elements = elements_of(plan_, run(), i);
    if (!elements && node(i).status == NodeStatus::pending) {
      return fail_node(i, "each_failed", elements.error().message, false);
    }
    if (!elements) return cancel_node(i, "not_needed", elements.error().message, false);  // its journal was changed
    count = elements->size();
  }
  Json more = Json::object();
  if (!when.empty()) more["when"] = std::move(when);
  if (run().paused || (!own && (!first || !is_place_free(plan_, run())))) return emit("node_ready", i, more);
  if (plan.kind == NodeKind::each) return expand(i, count, std::move(more));
  const bool again = node(i).runs > 0;
  more["as"] = plan.kind == NodeKind::job ? "queued" : std::string(word(plan.kind));
  if (plan.kind == NodeKind::wait) more["until"] = now_ + plan.wait_ms;
  if (plan.kind == NodeKind::approval || plan.kind == NodeKind::pause) {
    if (plan.timeout_ms != 0) more["until"] = now_ + plan.timeout_ms;
    if (!plan.approvers.empty()) more["approvers"] = plan.approvers;
    if (!plan.text.empty()) more["asks"] = plan.text;
  }
  emit("node_dispatched", i, more);
  if (plan.kind == NodeKind::job) dispatch(i, again);
  if (plan.kind == NodeKind::flow) effect(Effect::Kind::start_child, i);
  if (plan.kind == NodeKind::log) complete(i, {}, false, 0);
}

void Deciding::dispatch(std::uint32_t i, bool again) {
  effect(again ? Effect::Kind::requeue : Effect::Kind::dispatch, i);
  if (planned(i).each && !again) bytes_ += place_bytes(plan_, i);
}

// Its elements are known: the places that have one can begin, the others are not of this run.
void Deciding::expand(std::uint32_t i, std::size_t count, Json more) {
  const TextMap values{{"count", std::to_string(count)}};
  more["count"] = count;
  if (!planned(i).watched.empty()) more["values"] = values;
  more["bytes"] = bytes_of(values);
  emit("node_expanded", i, more);
  effect(Effect::Kind::finish, i);
  out_.effects.back().values = values;
  out_.effects.back().values_json = {"count"};
}

// Settles a node that will not run any more, or that the flow itself keeps in flight for nothing.
void Deciding::drop(std::uint32_t i) {
  if (run().uncalled.contains(i)) return cancel_node(i, "not_needed", "it was not called", false);
  if (run().cancelling) {
    return cancel_node(i, "cancelled",
                       run().outcome == "timeout" ? "the flow's time was over" : "the flow was cancelled", false);
  }
  if (node(i).status == NodeStatus::pending && !planned(i).on_call) {
    for (const std::uint32_t need : planned(i).needs) {
      if (node(need).status != NodeStatus::failed) continue;
      const std::string error = "node " + planned(need).name + " failed";
      effect(Effect::Kind::fail, i, "dependency_failed", error);
      return emit("node_failed", i, {{"detail", "dependency_failed"}, {"error", error}});
    }
  }
  cancel_node(i, "not_needed", "the flow stopped before", false);
}

void Deciding::tell(std::uint32_t i) {
  emit("cancel_sent", i);
  const bool job = planned(i).kind == NodeKind::job;
  effect(job ? Effect::Kind::cancel_job : Effect::Kind::cancel_child, i);
  out_.effects.back().flow = node(i).child;
}

// Sets it back. The job of a node that was under way keeps its end until it is queued again, as the next attempt.
void Deciding::retry(std::uint32_t i) {
  emit("node_retried", i);
  if (planned(i).kind != NodeKind::job || node(i).runs == 0) effect(Effect::Kind::replan, i);
}

void Deciding::resolve(std::uint32_t i) {
  if (node(*planned(i).error_node).status == NodeStatus::completed) {
    return emit("node_completed", i, {{"detail", "handled"}});
  }
  emit("node_unhandled", i);
}

}  // namespace mycojobs::runs
