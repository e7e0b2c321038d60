#include "inspect/draw_flow.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "domain/codec.h"
#include "domain/screen_text.h"
#include "domain/utf8.h"
#include "inspect/runners.h"

namespace mycojobs {
namespace {

using nlohmann::json;

enum class EdgeKind { needs, error, compensation };
constexpr std::string_view kEdgeWords[] = {"needs", "error", "compensation"};
struct Edge {
  std::uint32_t from = 0, to = 0;
  EdgeKind kind = EdgeKind::needs;
};

std::vector<Edge> edges_of(const FlowView& view) {
  std::vector<Edge> edges;
  const auto add = [&](std::uint32_t from, std::uint32_t to, EdgeKind kind) {
    if (from < view.nodes.size() && to < view.nodes.size()) edges.push_back({from, to, kind});
  };
  for (std::uint32_t i = 0; i < view.nodes.size(); ++i) {
    const NodeView& node = view.nodes[i];
    for (std::uint32_t need : node.needs) add(need, i, EdgeKind::needs);
    if (node.error_node) add(i, *node.error_node, EdgeKind::error);
    if (node.compensation) add(i, *node.compensation, EdgeKind::compensation);
  }
  return edges;
}

std::string words_of(const FlowView& view, const NodeView& node, std::string_view line_end) {
  const std::string kind = node.kind.empty() || node.kind == "job" ? "" : node.kind + " ";
  const std::string state = view.record.id == 0 ? "" : state_text(node, view.now_ms);
  return kind + one_line(to_utf8(node.name)) + (state.empty() ? "" : std::string(line_end) + state);
}

// Mermaid reads #NN; as the character with that number, so that nothing else of a name means anything to it.
std::string mermaid_text(std::string_view text) {
  std::string out;
  for (char c : text) {
    const bool plain = static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                       (c >= 'A' && c <= 'Z') || std::string_view(" _-.,:()/").find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : fmt::format("#{};", static_cast<int>(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string dot_text(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

struct StatusColour {
  std::string_view fill, stroke;
};
StatusColour colour_of(NodeStatus status) {
  switch (status) {
    case NodeStatus::completed:
      return {"#d7f0d7", "#2e7d32"};
    case NodeStatus::failed:
      return {"#f8d7da", "#b71c1c"};
    case NodeStatus::running:
      return {"#cfe4fa", "#0d47a1"};
    case NodeStatus::dispatched:
    case NodeStatus::ready:
      return {"#fff3cd", "#8a6d00"};
    case NodeStatus::cancelled:
      return {"#e2e3e5", "#6c757d"};
    case NodeStatus::pending:
      break;
  }
  return {"#ffffff", "#6c757d"};
}

// "waits for approval"; empty: it waits for nobody.
std::string waits_for_whom(const NodeView& node) {
  if (node.status != NodeStatus::dispatched) return "";
  return node.detail == "approval" ? "waits for approval" : node.detail == "pause" ? "waits to be resumed" : "";
}

}  // namespace

std::string_view word(GraphFormat format) {
  static constexpr std::string_view kWords[] = {"text", "ascii", "mermaid", "dot", "json"};
  return kWords[static_cast<std::size_t>(format)];
}

std::string short_span(std::uint64_t ms) {
  return ms < 1000 || ms >= 10000 ? span_text(ms) : fmt::format("{:.1f} s", static_cast<double>(ms) / 1000);
}

std::string state_text(const NodeView& node, std::uint64_t now_ms) {
  const bool plain = node.detail.empty() || node.detail == "ok" || node.detail == word(node.status) ||
                     (node.status == NodeStatus::pending && node.detail == "dependencies") ||
                     (node.status == NodeStatus::running && node.detail == "claimed");
  std::string text = plain ? std::string(word(node.status)) : one_line(to_utf8(node.detail));
  if (text == "on_call") text = "on call";
  if (node.kind == "flow" && node.status == NodeStatus::dispatched && node.detail == "flow")
    text = node.child == 0 ? "starts a flow" : fmt::format("waits for flow {},", node.child);
  if (node.status == NodeStatus::failed && !plain) text = "failed: " + text;
  if (!node.gates.empty() && node.status == NodeStatus::pending && node.detail == "gate")
    text = "waits for " + one_line(to_utf8(node.gates.front()));
  if (const std::string person = waits_for_whom(node); !person.empty()) text = person;
  if (node.attempt > 1) text += fmt::format(" (attempt {})", node.attempt);
  if (node.started_ms > 0 && node.ended_ms >= node.started_ms)
    return text + " " + short_span(node.ended_ms - node.started_ms);
  const bool settled = node.status >= NodeStatus::completed;
  if (node.status == NodeStatus::running && node.started_ms > 0 && now_ms >= node.started_ms)
    return text + " " + short_span(now_ms - node.started_ms);
  const bool due = node.detail == "retry_wait" || node.detail == "delayed" || node.detail == "wait";
  if (due && node.until_ms > now_ms) return text + ", due in " + short_span(node.until_ms - now_ms);
  const bool waits = node.status == NodeStatus::dispatched || node.status == NodeStatus::ready;
  if (!settled && waits && node.since_ms > 0 && now_ms >= node.since_ms)
    return text + " " + short_span(now_ms - node.since_ms);
  return text;
}

std::string headline(const FlowView& view) {
  const std::string name = one_line(to_utf8(view.record.name));
  if (view.record.id == 0) return fmt::format("definition {}  {}", name, counted(view.nodes.size(), "node"));
  std::size_t settled = 0, running = 0, failed = 0, nodes = 0;
  for (const NodeView& node : view.nodes) {
    running += node.status == NodeStatus::running ? 1 : 0;
    failed += node.status == NodeStatus::failed ? 1 : 0;
    // What is only there to be called counts once it was.
    if (node.on_call && (node.status == NodeStatus::pending || node.status == NodeStatus::cancelled)) continue;
    ++nodes;
    settled += node.status >= NodeStatus::completed ? 1 : 0;
  }
  std::string text =
      fmt::format("flow {} {}  {}  {} of {} settled", view.record.id, name, one_line(view.detail), settled, nodes);
  if (running > 0) text += fmt::format(", {} running", running);
  if (failed > 0) text += fmt::format(", {} failed", failed);
  const std::uint64_t end = view.record.ended_ms > 0 ? view.record.ended_ms : view.now_ms;
  if (view.record.started_ms > 0 && end >= view.record.started_ms)
    text += "  " + short_span(end - view.record.started_ms);
  return text;
}

std::string draw_mermaid(const FlowView& view) {
  static constexpr std::pair<std::string_view, std::pair<std::string_view, std::string_view>> kShapes[] = {
      {"approval", {"{{", "}}"}},
      {"pause", {"{{", "}}"}},
      {"wait", {"([", "])"}},
      {"flow", {"[[", "]]"}},
      {"log", {">", "]"}}};
  std::string out = fmt::format("---\ntitle: \"{}\"\n---\nflowchart TD\n",
                                mermaid_text(view.record.id == 0 ? one_line(view.record.name) : headline(view)));
  for (std::uint32_t i = 0; i < view.nodes.size(); ++i) {
    const NodeView& node = view.nodes[i];
    std::pair<std::string_view, std::string_view> shape{"[", "]"};
    for (const auto& [kind, marks] : kShapes) shape = node.kind == kind ? marks : shape;
    std::string label = mermaid_text(words_of(view, node, "\n"));
    for (auto at = label.find("#10;"); at != std::string::npos; at = label.find("#10;")) label.replace(at, 4, "<br/>");
    out += fmt::format("  n{}{}\"{}\"{}:::{}\n", i, shape.first, label, shape.second, word(node.status));
  }
  for (const Edge& edge : edges_of(view)) {
    const std::string when =
        edge.kind == EdgeKind::needs ? "" : fmt::format("|{}|", kEdgeWords[static_cast<std::size_t>(edge.kind)]);
    out += fmt::format("  n{} {}{} n{}\n", edge.from, edge.kind == EdgeKind::needs ? "-->" : "-.->", when, edge.to);
  }
  for (auto status = NodeStatus::pending; status <= NodeStatus::cancelled;
       status = static_cast<NodeStatus>(static_cast<int>(status) + 1)) {
    const StatusColour colour = colour_of(status);
    out += fmt::format("  classDef {} fill:{},stroke:{},color:#000\n", word(status), colour.fill, colour.stroke);
  }
  return out;
}

std::string draw_dot(const FlowView& view) {
  const std::string title = view.record.id == 0 ? one_line(to_utf8(view.record.name)) : headline(view);
  std::string out = fmt::format(
      "digraph \"{}\" {{\n  label=\"{}\"; labelloc=t; fontname=\"sans-serif\";\n"
      "  node [shape=box, style=\"rounded,filled\", fontname=\"sans-serif\"];\n",
      dot_text(one_line(to_utf8(view.record.name))), dot_text(title));
  for (std::uint32_t i = 0; i < view.nodes.size(); ++i) {
    const NodeView& node = view.nodes[i];
    std::string label = dot_text(words_of(view, node, "\n"));
    for (auto at = label.find('\n'); at != std::string::npos; at = label.find('\n')) label.replace(at, 1, "\\n");
    const StatusColour colour = colour_of(node.status);
    out += fmt::format("  n{} [label=\"{}\", fillcolor=\"{}\", color=\"{}\"];\n", i, label, colour.fill, colour.stroke);
  }
  for (const Edge& edge : edges_of(view)) {
    const std::string look =
        edge.kind == EdgeKind::needs
            ? ""
            : fmt::format(" [style=dashed, label=\"{}\"]", kEdgeWords[static_cast<std::size_t>(edge.kind)]);
    out += fmt::format("  n{} -> n{}{};\n", edge.from, edge.to, look);
  }
  return out + "}\n";
}

std::string draw_flow(const FlowView& view, GraphFormat format, std::size_t width, bool colour, std::size_t max_nodes) {
  switch (format) {
    case GraphFormat::text:
    case GraphFormat::ascii:
      return draw_text(view, {width, colour, format == GraphFormat::ascii, max_nodes});
    case GraphFormat::mermaid:
      return draw_mermaid(view);
    case GraphFormat::dot:
      return draw_dot(view);
    case GraphFormat::json:
      break;
  }
  json out{{"name", to_utf8(view.record.name)}, {"nodes", json::array()}, {"edges", json::array()}};
  if (view.record.id != 0) out.update({{"flow", view.record.id}, {"status", view.status}, {"detail", view.detail}});
  for (const NodeView& node : view.nodes) out["nodes"].push_back(to_json(node));
  for (const Edge& edge : edges_of(view)) {
    out["edges"].push_back({{"from", view.nodes[edge.from].name},
                            {"to", view.nodes[edge.to].name},
                            {"kind", kEdgeWords[static_cast<std::size_t>(edge.kind)]}});
  }
  return dump_json(out, 2) + "\n";
}

}  // namespace mycojobs
