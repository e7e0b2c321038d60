// explain_flow(): what holds or moves a flow as a whole.
#include <fmt/format.h>

#include <algorithm>

#include "base/counted.h"
#include "inspect/explain_flow_parts.h"
#include "inspect/runners.h"

namespace mycojobs::explaining_flow {
namespace {

constexpr std::size_t kFailuresTold = 5;
constexpr std::size_t kAnomaliesTold = 5;

// " by 12 since 14:02 UTC (3 min): comment"; empty: nobody is known.
std::string by_whom(const Known& known) {
  if (!known.view.said) return "";
  const FlowAnswer& said = *known.view.said;
  return fmt::format(" by {}{}{}{}", said.actor, since(said.at_ms, known.view.now_ms), said.comment.empty() ? "" : ": ",
                     said.comment);
}

std::string counts(const FlowView& view) {
  std::string text = fmt::format("{} of {} nodes settled", view.applied.size(), view.nodes.size());
  const std::pair<const char*, std::size_t> kinds[] = {
      {"running", view.claimed.size()},   {"with a lease that is over", view.expired.size()},
      {"queued", view.visible.size()},    {"waiting", view.waiting.size()},
      {"for people", view.manual.size()}, {"ended and not applied", view.unapplied.size()}};
  for (const auto& [what, count] : kinds) {
    if (count > 0) text += fmt::format(", {} {}", count, what);
  }
  return text;
}

FlowReason about(const Known& known, std::string cause, std::string reason, std::string next) {
  return {"", std::move(cause), std::move(reason), {counts(known.view)}, std::move(next)};
}

// A failure that was no other failure's consequence.
bool failed_itself(const NodeView& node) {
  return node.status == NodeStatus::failed && node.detail != "dependency_failed";
}

void tell_failures(const Known& known, std::vector<FlowReason>& out) {
  std::size_t told = 0;
  for (const NodeView& node : known.view.nodes) {
    if (!failed_itself(node) || ++told > kFailuresTold) continue;
    FlowReason reason{node.name, "node_failed", "", {}, ""};
    reason.reason =
        fmt::format("{} failed: {}{}{}", named(node), node.detail, node.error.empty() ? "" : ": ", node.error);
    if (!node.job_key.empty()) {
      const std::string job = node.job_key.substr(4);
      const std::string context = known.context == 1 ? "" : fmt::format(" --context {}", known.context);
      reason.evidence.push_back(fmt::format("{}, attempt {}{}", node.job_key, std::max(node.attempt, 1U),
                                            node.runner == 0 ? "" : fmt::format(", runner {}", node.runner)));
      reason.next = fmt::format("`mycojobs job logs {}{}` shows what it wrote", job, context);
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

FlowReason ended(const Known& known) {
  const FlowView& view = known.view;
  if (view.status == "finished") {
    return about(known, "finished", fmt::format("flow {} has finished", view.record.id),
                 "nothing; " + command(known, "result") + " shows what it gave");
  }
  const std::string error = view.record.error.empty() ? "" : ": " + view.record.error;
  const std::string replay = command(known, "replay") + " runs all of it again as a new flow";
  if (view.detail == "cancelled") {
    return about(known, "cancelled", "it was cancelled" + by_whom(known), replay);
  }
  const std::string retry = known.undone ? replay + "; what had completed was undone, so that it cannot be retried"
                                         : command(known, "retry") + " goes on from what failed; " + replay;
  if (view.detail == "timeout") return about(known, "timeout", "it ran out of time" + error, retry);
  const std::string who = failures(view);
  return about(known, "failed", "it failed" + (who.empty() ? error : " because of " + who + error), retry);
}

std::optional<FlowReason> held_as_a_whole(const Known& known) {
  const FlowView& view = known.view;
  if (view.detail == "cancelling") {
    return about(known, "cancelling", "it is being cancelled" + by_whom(known),
                 "wait: what runs gets TERM, and KILL after its runner's grace time");
  }
  if (view.detail == "compensating") {
    return about(known, "compensating", "it ends badly; what completed is being undone, the latest first",
                 "wait; " + command(known, "watch") + " shows it");
  }
  if (view.detail == "stopping") {
    const std::string who = failures(view);
    return about(known, "stopping",
                 "stopped by the failure of " + (who.empty() ? "a node" : who) + "; what is in flight ends first",
                 known.undone ? "wait for its end"
                              : "wait for its end; " + command(known, "retry", "NODE") + " runs the failed node again");
  }
  if (view.detail == "paused") {
    return about(known, "paused", "paused" + by_whom(known), command(known, "resume") + " lets it go on");
  }
  return std::nullopt;
}

}  // namespace

std::vector<FlowReason> of_flow(const Known& known) {
  const FlowView& view = known.view;
  const bool over = view.status == "finished" || view.status == "error";
  std::vector<FlowReason> out;
  if (!view.has_plan && !over && view.detail != "creating") {
    FlowReason reason = about(known, "definition_missing", "its definition is gone or changed: nothing of it can go on",
                              "write mj:definition:" + view.record.definition_hash +
                                  " back from a backup; otherwise delete what is left and start it anew");
    if (!view.anomalies.empty()) reason.evidence.push_back(view.anomalies.front());
    out.push_back(std::move(reason));
  }
  if (over) {
    out.push_back(ended(known));
    if (view.status == "error") tell_failures(known, out);
  } else if (view.detail == "creating") {
    out.push_back(about(known, "creation_unfinished", "its creation has begun and is not finished",
                        "wait a moment; if it stays so, create it again: with the same idempotency key that goes on "
                        "where it was, otherwise retention takes this one away"));
  } else if (view.status == "dispatched") {
    out.push_back(about(known, "not_started", "it was created and nobody has started it",
                        command(known, "start") + " starts it"));
  } else {
    if (known.leader.first.empty()) {
      out.push_back(about(
          known, "coordinator_missing",
          fmt::format("no coordinator leads context {}: jobs that run go on, and nothing follows them", known.context),
          fmt::format(
              "start one: `mycojobs coordinator --redis URL --context {}`; of the embedded default, `mycojobs dev`",
              known.context)));
    }
    if (auto reason = held_as_a_whole(known)) out.push_back(std::move(*reason));
    if (view.detail == "stopping" || view.detail == "compensating") tell_failures(known, out);
  }
  if (!view.anomalies.empty()) {
    FlowReason reason =
        about(known, "anomaly",
              counted(view.anomalies.size(), "entry", "entries") + " of its journal or record cannot be right",
              "`mycojobs verify` says more, `mycojobs doctor --rebuild` derives records again");
    reason.evidence.assign(
        view.anomalies.begin(),
        view.anomalies.begin() + static_cast<std::ptrdiff_t>(std::min(kAnomaliesTold, view.anomalies.size())));
    out.push_back(std::move(reason));
  }
  return out;
}

}  // namespace mycojobs::explaining_flow
