// Handmade flow views, in place of the results of inspect_flow().
#pragma once

#include <string>
#include <vector>

#include "inspect/flow_view.h"

namespace mycojobs::test {

inline constexpr std::uint64_t kNow = 1'700'000'000'000;

inline NodeView node(std::uint32_t index, std::string name, std::vector<std::uint32_t> needs, NodeStatus status,
                     std::string detail) {
  NodeView out;
  out.index = index;
  out.name = std::move(name);
  out.kind = "job";
  out.needs = std::move(needs);
  out.status = status;
  out.detail = std::move(detail);
  out.job = 100 + index;
  out.job_key = "job:1:" + std::to_string(out.job);
  out.since_ms = kNow - 5000;
  return out;
}

// build -> test -> ok (approval) -> deploy; test routes to mend on error; undo compensates deploy; lint is independent.
inline FlowView pipeline() {
  FlowView view;
  view.record.id = 12;
  view.record.caller_id = 1;
  view.record.name = "pipeline";
  view.record.started_ms = kNow - 41000;
  view.status = "started";
  view.detail = "running";
  view.now_ms = kNow;
  view.nodes = {node(0, "build", {}, NodeStatus::completed, "ok"),
                node(1, "lint", {}, NodeStatus::running, "running"),
                node(2, "test", {0}, NodeStatus::ready, "retry_wait"),
                node(3, "ok", {2, 1}, NodeStatus::pending, "dependencies"),
                node(4, "deploy", {3}, NodeStatus::pending, "dependencies"),
                node(5, "mend", {}, NodeStatus::pending, "on_call"),
                node(6, "undo", {}, NodeStatus::pending, "on_call")};
  view.nodes[0].started_ms = kNow - 40000;
  view.nodes[0].ended_ms = kNow - 38800;
  view.nodes[1].started_ms = kNow - 14000;
  view.nodes[1].runner = 20;
  view.nodes[2].until_ms = kNow + 4000;
  view.nodes[2].attempt = 2;
  view.nodes[2].error_node = 5;
  view.nodes[3].kind = "approval";
  view.nodes[4].compensation = 6;
  view.nodes[5].on_call = view.nodes[6].on_call = true;
  return view;
}

}  // namespace mycojobs::test
