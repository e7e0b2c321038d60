// mycojobs flow show | inspect | explain | result: one look each; they change nothing.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sysexits.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/flow_live.h"
#include "cli/flow_opened.h"
#include "cli/terminal.h"
#include "domain/codec.h"
#include "domain/flow_data.h"
#include "domain/result_values.h"
#include "domain/utf8.h"
#include "inspect/draw_flow.h"
#include "inspect/runners.h"

namespace mycojobs {
namespace {

Tone tone_of(NodeStatus status) {
  switch (status) {
    case NodeStatus::completed:
      return Tone::good;
    case NodeStatus::failed:
      return Tone::bad;
    case NodeStatus::running:
      return Tone::strong;
    case NodeStatus::dispatched:
    case NodeStatus::ready:
      return Tone::warn;
    default:
      return Tone::faint;
  }
}

std::string names(const FlowView& view, const std::vector<std::uint32_t>& indexes, std::size_t most) {
  std::string out;
  for (std::size_t i = 0; i < indexes.size(); ++i) {
    if (i == most) return out + fmt::format(" and {} more", indexes.size() - most);
    out += (i == 0 ? "" : ", ") + one_line(to_utf8(view.nodes.at(indexes[i]).name));
  }
  return out;
}

// What comes first stands first.
std::vector<std::uint32_t> in_order(const FlowView& view) {
  std::vector<std::uint32_t> order;
  for (const auto& layer : flow_layers(view)) order.insert(order.end(), layer.begin(), layer.end());
  return order;
}

Result<FlowView> look(const Invocation& call, OpenedFlows& open) {
  MJ_TRY(flow, flow_argument(call));
  return look_at_flow(*open.flows, open.store(), context_of(call), flow);
}

void print_anomalies(const FlowView& view) {
  for (const std::string& line : view.anomalies) say(paint(Tone::bad, "anomaly: ", true) + one_line(line));
}

void print_nodes(const FlowView& view) {
  const bool children =
      std::any_of(view.nodes.begin(), view.nodes.end(), [](const NodeView& node) { return node.child != 0; });
  std::vector<std::vector<std::string>> rows{{"NODE", "KIND", "JOB", "STATE", "RUNNER", "NEEDS", "ERROR"}};
  if (children) rows[0].insert(rows[0].begin() + 3, "CHILD");
  for (std::uint32_t index : in_order(view)) {
    const NodeView& node = view.nodes[index];
    std::vector<std::uint32_t> needs;
    for (std::uint32_t need : node.needs) {
      if (need < view.nodes.size()) needs.push_back(need);
    }
    rows.push_back({shortened(one_line(to_utf8(node.name)), 40), node.kind,
                    node.job_key.empty() ? "-" : node.job_key.substr(4),
                    paint(tone_of(node.status), state_text(node, view.now_ms)),
                    node.runner == 0 ? "" : std::to_string(node.runner), names(view, needs, 3),
                    shortened_talk(one_line(to_utf8(node.error)), 80)});
    if (children)
      rows.back().insert(rows.back().begin() + 3, node.child == 0 ? "" : fmt::format("flow:{}", node.child));
  }
  print_table(rows);
}

// What is asked of people, and what they have said.
void print_words(const FlowView& view) {
  for (std::uint32_t index : in_order(view)) {
    const NodeView& node = view.nodes[index];
    const std::string name = paint(Tone::strong, one_line(to_utf8(node.name)));
    if (!node.asks.empty()) print(name + " asks: " + one_line(to_utf8(node.asks)) + "\n");
    for (const FlowAnswer& answer : node.answers) {
      print(fmt::format("{} {}, {:%Y-%m-%d %H:%M:%S}\n", name, one_line(to_utf8(describe(answer))),
                        fmt::localtime(static_cast<std::time_t>(answer.at_ms / 1000))));
    }
  }
}

Result<int> show_flow(const Invocation& call) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(view, look(call, open));
  if (call.json) {
    nlohmann::json out = to_json(view);
    out["result"] = typed_values(view.record.result, view.record.result_json);
    print(dump_json(out, 2) + "\n");
    return 0;
  }
  print(paint(Tone::strong, headline(view)) + "\n");
  if (!view.record.parent.empty()) print("parent   " + one_line(view.record.parent) + "\n");
  if (const auto inputs = inputs_of(view.record); !inputs.is_null())
    print("inputs   " + shortened(one_line(to_utf8(dump_json(inputs))), 1000) + "\n");
  if (view.said) print("said     " + one_line(to_utf8(describe(*view.said))) + "\n");
  if (!view.record.error.empty()) print("error    " + one_line(view.record.error) + "\n");
  print_nodes(view);
  print_words(view);
  print_anomalies(view);
  return 0;
}

Result<int> inspect(const Invocation& call) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(view, look(call, open));
  if (call.json) {
    print(dump_json(to_json(view), 2) + "\n");
    return 0;
  }
  print(paint(Tone::strong, headline(view)) + "\n");
  const std::pair<const char*, const std::vector<std::uint32_t>*> kLists[] = {
      {"planned", &view.planned},     {"visible", &view.visible}, {"claimed", &view.claimed},
      {"expired", &view.expired},     {"waiting", &view.waiting}, {"manual", &view.manual},
      {"unapplied", &view.unapplied}, {"applied", &view.applied}};
  std::vector<std::vector<std::string>> rows;
  for (const auto& [what, list] : kLists)
    rows.push_back({paint(Tone::strong, what), std::to_string(list->size()), names(view, *list, 8)});
  rows.push_back({paint(Tone::strong, "terminal"), view.status == "finished" || view.status == "error" ? "yes" : "no"});
  rows.push_back({paint(Tone::strong, "revision"), std::to_string(view.revision),
                  fmt::format("checkpoint at {}", view.checkpoint_at)});
  rows.push_back({paint(Tone::strong, "events"), std::to_string(view.events_waiting), "that wait to be applied"});
  rows.push_back({paint(Tone::strong, "definition"), view.has_plan ? "there" : "missing",
                  one_line(to_utf8(view.record.definition_hash))});
  rows.push_back({paint(Tone::strong, "anomalies"), std::to_string(view.anomalies.size())});
  print_table(rows);
  print_anomalies(view);
  return 0;
}

nlohmann::json json_of(const FlowReason& reason) {
  nlohmann::json out{{"cause", reason.cause},
                     {"reason", to_utf8(reason.reason)},
                     {"evidence", nlohmann::json::array()},
                     {"next", to_utf8(reason.next)}};
  for (const std::string& line : reason.evidence) out["evidence"].push_back(to_utf8(line));
  if (!reason.node.empty()) out["node"] = to_utf8(reason.node);
  return out;
}

Tone tone_of(std::string_view cause) {
  for (std::string_view good : {"finished", "running", "queued", "ready", "unapplied", "timer", "compensating"}) {
    if (cause == good) return Tone::good;
  }
  for (std::string_view bad : {"failed", "node_failed", "definition_missing", "job_lost", "anomaly", "timeout"}) {
    if (cause == bad) return Tone::bad;
  }
  return Tone::warn;
}

Result<int> explain_it(const Invocation& call) {
  MJ_TRY(flow, flow_argument(call));
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(reasons, explain_flow(*open.flows, open.store(), context_of(call), flow));
  if (call.json) {
    nlohmann::json out{{"flow", flow}, {"reasons", nlohmann::json::array()}};
    for (const FlowReason& reason : reasons) out["reasons"].push_back(json_of(reason));
    print(dump_json(out, 2) + "\n");
    return 0;
  }
  for (const FlowReason& reason : reasons) {
    const std::string node = reason.node.empty() ? "" : " " + one_line(to_utf8(reason.node));
    print(fmt::format("flow:{}{}  {}\n", flow, node, paint(tone_of(reason.cause), reason.cause)));
    print(fmt::format("  {}   {}\n", paint(Tone::strong, "reason"), one_line(to_utf8(reason.reason))));
    for (const std::string& line : reason.evidence)
      print(fmt::format("  {} {}\n", paint(Tone::faint, "evidence"), one_line(to_utf8(line))));
    print(fmt::format("  {}     {}\n", paint(Tone::strong, "next"), one_line(to_utf8(reason.next))));
  }
  return 0;
}

Result<int> result(const Invocation& call) {
  MJ_TRY(open, open_flows_to_answer(call));
  MJ_TRY(view, look(call, open));
  if (view.status != "finished" && view.status != "error") {
    return fail(Code::conflict, fmt::format("flow {} has not ended: it is {}; `mycojobs flow watch {}{}` shows its end",
                                            view.record.id, view.detail, view.record.id, context_words(call)));
  }
  if (call.json) {
    print(dump_json({{"flow", view.record.id},
                     {"status", view.status},
                     {"detail", view.detail},
                     {"error", to_utf8(view.record.error)},
                     {"result", typed_values(view.record.result, view.record.result_json)}},
                    2) +
          "\n");
  } else {
    for (const auto& [key, value] : view.record.result)
      print(paint(Tone::strong, one_line(key)) + " = " + printable(value) + "\n");
    if (!view.record.error.empty()) say(paint(Tone::bad, "error: ", true) + one_line(view.record.error));
  }
  return exit_code(view);
}

}  // namespace

int flow_show_command(Invocation& call) { return finish(show_flow(call)); }
int flow_inspect_command(Invocation& call) { return finish(inspect(call)); }
int flow_explain_command(Invocation& call) { return finish(explain_it(call)); }
int flow_result_command(Invocation& call) { return finish(result(call)); }

}  // namespace mycojobs
