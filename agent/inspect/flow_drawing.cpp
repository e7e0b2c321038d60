#include "inspect/flow_drawing.h"

#include <fmt/format.h>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "inspect/runner_view.h"
#include "model/codec.h"
#include "text/json.h"
#include "text/plural.h"
#include "text/terminal_text.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

// Returns for each node the nodes that need it.
std::vector<std::vector<std::uint32_t>> find_dependents(const FlowView& view) {
  std::vector<std::vector<std::uint32_t>> out(view.nodes.size());
  for (std::uint32_t i = 0; i < view.nodes.size(); ++i) {
    for (std::uint32_t need : view.nodes[i].needs) {
      if (need < out.size()) out[need].push_back(i);
    }
  }
  return out;
}

}  // namespace

std::vector<std::vector<std::uint32_t>> find_layers(const FlowView& view) {
  const auto count = static_cast<std::uint32_t>(view.nodes.size());
  const auto dependents = find_dependents(view);
  std::vector<std::uint32_t> unplaced_need_counts(count, 0), layer(count, 0), ready_nodes;
  for (const auto& list : dependents) {
    for (std::uint32_t node : list) ++unplaced_need_counts[node];
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    if (unplaced_need_counts[i] == 0) ready_nodes.push_back(i);
  }
  std::uint32_t max_layer = 0;
  while (!ready_nodes.empty()) {
    const std::uint32_t node = ready_nodes.back();
    ready_nodes.pop_back();
    max_layer = std::max(max_layer, layer[node]);
    for (std::uint32_t dependent : dependents[node]) {
      layer[dependent] = std::max(layer[dependent], layer[node] + 1);
      if (--unplaced_need_counts[dependent] == 0) ready_nodes.push_back(dependent);
    }
  }
  std::vector<std::vector<std::uint32_t>> layers(max_layer + 3);
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool is_in_cycle = unplaced_need_counts[i] > 0;
    layers[view.nodes[i].on_call ? max_layer + 2 : is_in_cycle ? max_layer + 1 : layer[i]].push_back(i);
  }
  std::erase_if(layers, [](const auto& nodes) { return nodes.empty(); });
  return layers;
}

namespace {

constexpr std::size_t kMaxBoxWidth = 44;
constexpr std::size_t kMinDrawingWidth = 24;  // columns; narrower terminals are drawn with this width
constexpr std::size_t kMaxListedNodes = 4;    // maximum number of nodes per status that a folded layer lists by name

struct GraphSymbols {
  std::string_view status[7];  // by NodeStatus
  std::string_view top_left, top_right, bottom_left, bottom_right, horizontal, vertical, arrow, ellipsis, awaiting_user;
};
constexpr GraphSymbols kUnicode = {{"○", "◌", "◐", "●", "✔", "✘", "⊘"}, "╭", "╮", "╰", "╯", "─", "│", "→", "…", "?"};
constexpr GraphSymbols kAscii = {{".", ":", ">", "*", "+", "x", "-"}, "+", "+", "+", "+", "-", "|", "->", "~", "?"};

const char* get_colour(const NodeView& node) {
  switch (node.status) {
    case NodeStatus::completed:
      return node.detail == "continued" || node.detail == "handled" ? "\033[33m" : "\033[32m";
    case NodeStatus::failed:
      return "\033[31m";
    case NodeStatus::running:
      return "\033[1;36m";
    case NodeStatus::dispatched:
    case NodeStatus::ready:
      return "\033[33m";
    case NodeStatus::pending:
    case NodeStatus::cancelled:
      break;
  }
  return "\033[2m";
}

bool waits_for_user(const NodeView& node) {
  return node.status == NodeStatus::dispatched && (node.detail == "approval" || node.detail == "pause");
}

// Draws a flow as text, in the most detailed form that fits: boxes, a line for each node, or a line for each layer.
class TextDrawing {
 public:
  TextDrawing(const FlowView& view, const TextStyle& style)
      : view_(view),
        style_(style),
        symbols_(style.ascii ? kAscii : kUnicode),
        width_(std::max(style.width, kMinDrawingWidth)),
        layers_(find_layers(view)),
        dependents_(find_dependents(view)) {}

  std::string draw() const {
    const std::string title_line = draw_headline() + "\n";
    const auto fits_height = [&](const std::string& text) {
      return style_.max_lines == 0 ||
             static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1 <= style_.max_lines;
    };
    if (view_.nodes.size() <= style_.max_nodes) {
      const std::string box_text = draw_boxes();
      if (fits_height(box_text)) return title_line + box_text;
      const std::string list_text = draw_list();
      if (fits_height(list_text)) return title_line + list_text;
    }
    return title_line + draw_layer_summary();
  }

 private:
  std::string sanitize(std::string_view text) const {
    std::string out = to_printable_line(to_utf8(text));
    if (style_.ascii) {
      std::string ascii;
      for (char c : out) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x80) ascii += c;
        if (byte >= 0xC0) ascii += '?';  // one for each character
      }
      out = ascii;
    }
    return out;
  }
  std::string truncate(std::string_view text, std::size_t max) const {
    return shorten_text(text, max, symbols_.ellipsis);
  }
  std::string colourize(const NodeView& node, std::string_view text) const {
    return style_.colour ? get_colour(node) + std::string(text) + "\033[0m" : std::string(text);
  }
  std::string draw_headline() const {
    const std::string text = truncate(sanitize(format_headline(view_)), width_);
    return style_.colour ? "\033[1m" + text + "\033[0m" : text;
  }
  std::string get_status_symbol(const NodeView& node) const {
    return std::string(waits_for_user(node) ? symbols_.awaiting_user
                                            : symbols_.status[static_cast<std::size_t>(node.status)]);
  }
  std::string format_node_title(const NodeView& node) const {
    return sanitize(node.name) + (node.kind.empty() || node.kind == "job" ? "" : " (" + sanitize(node.kind) + ")");
  }
  std::string format_node_name(std::uint32_t index) const {
    return index < view_.nodes.size() ? sanitize(view_.nodes[index].name) : "?";
  }
  std::string format_state(const NodeView& node) const {
    if (view_.record.id == 0) return node.conditions.empty() ? "" : "if " + sanitize(node.conditions.front());
    return sanitize(format_node_state(node, view_.now_ms));
  }
  std::string format_targets(std::uint32_t index) const {
    std::string out;
    for (std::uint32_t node : dependents_[index]) {
      out += (out.empty() ? std::string(symbols_.arrow) + " " : ", ") + format_node_name(node);
      if (out.size() > 8 * kMaxBoxWidth) break;
    }
    const NodeView& node = view_.nodes[index];
    if (node.error_node) out += (out.empty() ? "" : " ") + ("on error: " + format_node_name(*node.error_node));
    if (node.compensation) out += (out.empty() ? "" : " ") + ("undone by: " + format_node_name(*node.compensation));
    return out;
  }

  struct Box {
    const NodeView* node = nullptr;
    std::string title, state, targets;
    std::size_t inner_width = 0;
  };
  Box make_box(std::uint32_t index) const {
    const std::size_t max = std::min(kMaxBoxWidth, width_) - 4;
    const NodeView& node = view_.nodes[index];
    Box box{&node, truncate(get_status_symbol(node) + " " + format_node_title(node), max),
            truncate(format_state(node), max), truncate(format_targets(index), max)};
    box.inner_width = std::max({count_columns(box.title), count_columns(box.state), count_columns(box.targets)}) + 2;
    return box;
  }
  // Draws the upper or lower edge of a box, such as "╭ ✔ build ────╮".
  std::string draw_edge(const Box& box, std::string_view left, std::string_view text, std::string_view right) const {
    std::string line(left);
    const std::size_t used_width = text.empty() ? 0 : count_columns(text) + 2;
    if (!text.empty()) line += " " + std::string(text) + " ";
    for (std::size_t i = used_width; i < box.inner_width; ++i) line += symbols_.horizontal;
    return line + std::string(right);
  }
  std::string draw_row(const std::vector<Box>& row) const {
    std::string lines[3];
    const bool has_no_state = std::all_of(row.begin(), row.end(), [](const Box& box) { return box.state.empty(); });
    for (const Box& box : row) {
      const std::string gap = lines[0].empty() ? "" : " ";
      const std::string vertical(symbols_.vertical);
      lines[0] += gap + colourize(*box.node, draw_edge(box, symbols_.top_left, box.title, symbols_.top_right));
      lines[1] +=
          gap + colourize(*box.node, vertical + " " + box.state +
                                         std::string(box.inner_width - 1 - count_columns(box.state), ' ') + vertical);
      lines[2] += gap + colourize(*box.node, draw_edge(box, symbols_.bottom_left, box.targets, symbols_.bottom_right));
    }
    return lines[0] + "\n" + (has_no_state ? "" : lines[1] + "\n") + lines[2] + "\n";
  }
  std::string draw_boxes() const {
    std::string out;
    for (const auto& layer : layers_) {
      if (!layer.empty() && view_.nodes[layer.front()].on_call) out += "only when called:\n";
      std::vector<Box> row;
      std::size_t used_width = 0;
      for (std::uint32_t index : layer) {
        Box box = make_box(index);
        if (!row.empty() && used_width + box.inner_width + 3 > width_) {
          out += draw_row(row);
          row.clear();
          used_width = 0;
        }
        used_width += box.inner_width + 3;
        row.push_back(std::move(box));
      }
      out += draw_row(row);
    }
    return out;
  }
  std::string draw_list() const {
    std::size_t title_width = 0;
    const std::size_t max = std::max(kMinDrawingWidth, width_ / 3);
    for (const NodeView& node : view_.nodes)
      title_width = std::max(title_width, count_columns(truncate(format_node_title(node), max)));
    std::string out;
    for (std::size_t depth = 0; depth < layers_.size(); ++depth) {
      for (std::uint32_t index : layers_[depth]) {
        const NodeView& node = view_.nodes[index];
        const std::string title = truncate(format_node_title(node), max);
        const std::string line = fmt::format("{} {}{}  {}  {}", get_status_symbol(node), title,
                                             std::string(title_width - count_columns(title), ' '), format_state(node),
                                             format_targets(index));
        out += colourize(node, truncate(line, width_)) + "\n";
      }
    }
    return out;
  }
  std::string draw_layer_summary() const {
    std::string out;
    for (std::size_t depth = 0; depth < layers_.size(); ++depth) {
      const bool on_call = view_.nodes[layers_[depth].front()].on_call;
      std::map<NodeStatus, std::vector<std::uint32_t>> nodes_by_status;
      for (std::uint32_t index : layers_[depth]) nodes_by_status[view_.nodes[index].status].push_back(index);
      std::string line = on_call ? "on call" : fmt::format("layer {}", depth + 1);
      line += "  " + count_with_noun(layers_[depth].size(), "node");
      std::string names;
      for (const auto& [status, nodes] : nodes_by_status) {
        if (view_.record.id != 0)
          line += fmt::format("  {} {} {}", symbols_.status[static_cast<std::size_t>(status)], nodes.size(),
                              to_string(status));
        std::size_t listed_count = 0;
        for (std::uint32_t index : nodes) {
          const bool is_listed = status == NodeStatus::failed || status == NodeStatus::running ||
                                 waits_for_user(view_.nodes[index]) || layers_[depth].size() == 1;
          if (!is_listed || ++listed_count > kMaxListedNodes) continue;
          names += (names.empty() ? "" : ", ") + format_node_name(index);
        }
      }
      out += truncate(line + (names.empty() ? "" : ": " + names), width_) + "\n";
    }
    return out;
  }

  const FlowView& view_;
  const TextStyle& style_;
  const GraphSymbols& symbols_;
  std::size_t width_;
  std::vector<std::vector<std::uint32_t>> layers_;
  std::vector<std::vector<std::uint32_t>> dependents_;
};

}  // namespace

std::string draw_text(const FlowView& view, const TextStyle& style) { return TextDrawing(view, style).draw(); }

namespace {

using nlohmann::json;

enum class EdgeKind { needs, error, compensation };
constexpr std::string_view kEdgeKindNames[] = {"needs", "error", "compensation"};
struct Edge {
  std::uint32_t from = 0, to = 0;
  EdgeKind kind = EdgeKind::needs;
};

std::vector<Edge> list_edges(const FlowView& view) {
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

std::string format_label(const FlowView& view, const NodeView& node, std::string_view line_end) {
  const std::string kind = node.kind.empty() || node.kind == "job" ? "" : node.kind + " ";
  const std::string state = view.record.id == 0 ? "" : format_node_state(node, view.now_ms);
  return kind + to_printable_line(to_utf8(node.name)) + (state.empty() ? "" : std::string(line_end) + state);
}

// Writes special characters as #NN;, which Mermaid reads as the character with that number. Otherwise a name could
// contain Mermaid syntax.
std::string escape_for_mermaid(std::string_view text) {
  std::string out;
  for (char c : text) {
    const bool is_default = static_cast<unsigned char>(c) >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                            (c >= 'A' && c <= 'Z') || std::string_view(" _-.,:()/").find(c) != std::string_view::npos;
    out += is_default ? std::string(1, c) : fmt::format("#{};", static_cast<int>(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string escape_for_dot(std::string_view text) {
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
StatusColour get_colour(NodeStatus status) {
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

// Returns "waits for approval", or an empty string if the node does not wait for a user.
std::string format_user_wait(const NodeView& node) {
  if (node.status != NodeStatus::dispatched) return "";
  return node.detail == "approval" ? "waits for approval" : node.detail == "pause" ? "waits to be resumed" : "";
}

}  // namespace

std::string_view to_string(GraphFormat format) {
  static constexpr std::string_view kFormatNames[] = {"text", "ascii", "mermaid", "dot", "json"};
  return kFormatNames[static_cast<std::size_t>(format)];
}

std::string format_short_duration(std::uint64_t ms) {
  return ms < 1000 || ms >= 10000 ? format_duration(ms) : fmt::format("{:.1f} s", static_cast<double>(ms) / 1000);
}

std::string format_node_state(const NodeView& node, std::uint64_t now_ms) {
  const bool is_default = node.detail.empty() || node.detail == "ok" || node.detail == to_string(node.status) ||
                          (node.status == NodeStatus::pending && node.detail == "dependencies") ||
                          (node.status == NodeStatus::running && node.detail == "claimed");
  std::string text = is_default ? std::string(to_string(node.status)) : to_printable_line(to_utf8(node.detail));
  if (text == "on_call") text = "on call";
  if (node.kind == "flow" && node.status == NodeStatus::dispatched && node.detail == "flow")
    text = node.child == 0 ? "starts a flow" : fmt::format("waits for flow {},", node.child);
  if (node.status == NodeStatus::failed && !is_default) text = "failed: " + text;
  if (!node.gates.empty() && node.status == NodeStatus::pending && node.detail == "gate")
    text = "waits for " + to_printable_line(to_utf8(node.gates.front()));
  if (const std::string wait = format_user_wait(node); !wait.empty()) text = wait;
  if (node.attempt > 1) text += fmt::format(" (attempt {})", node.attempt);
  if (node.started_ms > 0 && node.ended_ms >= node.started_ms)
    return text + " " + format_short_duration(node.ended_ms - node.started_ms);
  const bool is_settled = node.status >= NodeStatus::completed;
  if (node.status == NodeStatus::running && node.started_ms > 0 && now_ms >= node.started_ms)
    return text + " " + format_short_duration(now_ms - node.started_ms);
  const bool has_due_time =
      node.detail == "retry_wait" || node.detail == "delayed" || node.detail == "quota" || node.detail == "wait";
  if (has_due_time && node.until_ms > now_ms) return text + ", due in " + format_short_duration(node.until_ms - now_ms);
  const bool is_waiting = node.status == NodeStatus::dispatched || node.status == NodeStatus::ready;
  if (!is_settled && is_waiting && node.since_ms > 0 && now_ms >= node.since_ms)
    return text + " " + format_short_duration(now_ms - node.since_ms);
  return text;
}

std::size_t count_skipped(const FlowView& view) {
  return static_cast<std::size_t>(std::count_if(view.nodes.begin(), view.nodes.end(), [](const NodeView& node) {
    return node.status == NodeStatus::cancelled && node.detail == "skipped";
  }));
}

std::string format_headline(const FlowView& view) {
  const std::string name = to_printable_line(to_utf8(view.record.name));
  if (view.record.id == 0) return fmt::format("definition {}  {}", name, count_with_noun(view.nodes.size(), "node"));
  std::size_t settled_count = 0, running_count = 0, failed_count = 0, node_count = 0;
  for (const NodeView& node : view.nodes) {
    running_count += node.status == NodeStatus::running ? 1 : 0;
    failed_count += node.status == NodeStatus::failed ? 1 : 0;
    // Error nodes and compensations are counted only after they were called.
    if (node.on_call && (node.status == NodeStatus::pending || node.status == NodeStatus::cancelled)) continue;
    ++node_count;
    settled_count += node.status >= NodeStatus::completed ? 1 : 0;
  }
  std::string text = fmt::format("flow {} {}  {}  {} of {} settled", view.record.id, name,
                                 to_printable_line(view.detail), settled_count, node_count);
  if (running_count > 0) text += fmt::format(", {} running", running_count);
  if (failed_count > 0) text += fmt::format(", {} failed", failed_count);
  if (const std::size_t skipped = count_skipped(view); skipped > 0) text += fmt::format(", {} skipped", skipped);
  const std::uint64_t end_ms = view.record.ended_ms > 0 ? view.record.ended_ms : view.now_ms;
  if (view.record.started_ms > 0 && end_ms >= view.record.started_ms)
    text += "  " + format_short_duration(end_ms - view.record.started_ms);
  return text;
}

namespace {

std::string draw_mermaid(const FlowView& view) {
  static constexpr std::pair<std::string_view, std::pair<std::string_view, std::string_view>> kShapes[] = {
      {"approval", {"{{", "}}"}},
      {"pause", {"{{", "}}"}},
      {"wait", {"([", "])"}},
      {"flow", {"[[", "]]"}},
      {"log", {">", "]"}}};
  std::string out = fmt::format(
      "---\ntitle: \"{}\"\n---\nflowchart TD\n",
      escape_for_mermaid(view.record.id == 0 ? to_printable_line(view.record.name) : format_headline(view)));
  for (std::uint32_t i = 0; i < view.nodes.size(); ++i) {
    const NodeView& node = view.nodes[i];
    std::pair<std::string_view, std::string_view> shape{"[", "]"};
    for (const auto& [kind, marks] : kShapes) shape = node.kind == kind ? marks : shape;
    std::string label = escape_for_mermaid(format_label(view, node, "\n"));
    for (auto line_end = label.find("#10;"); line_end != std::string::npos; line_end = label.find("#10;"))
      label.replace(line_end, 4, "<br/>");
    out += fmt::format("  n{}{}\"{}\"{}:::{}\n", i, shape.first, label, shape.second, to_string(node.status));
  }
  for (const Edge& edge : list_edges(view)) {
    const std::string edge_label =
        edge.kind == EdgeKind::needs ? "" : fmt::format("|{}|", kEdgeKindNames[static_cast<std::size_t>(edge.kind)]);
    out +=
        fmt::format("  n{} {}{} n{}\n", edge.from, edge.kind == EdgeKind::needs ? "-->" : "-.->", edge_label, edge.to);
  }
  for (auto status = NodeStatus::pending; status <= NodeStatus::cancelled;
       status = static_cast<NodeStatus>(static_cast<int>(status) + 1)) {
    const StatusColour colour = get_colour(status);
    out += fmt::format("  classDef {} fill:{},stroke:{},color:#000\n", to_string(status), colour.fill, colour.stroke);
  }
  return out;
}

std::string draw_dot(const FlowView& view) {
  const std::string title = view.record.id == 0 ? to_printable_line(to_utf8(view.record.name)) : format_headline(view);
  std::string out = fmt::format(
      "digraph \"{}\" {{\n  label=\"{}\"; labelloc=t; fontname=\"sans-serif\";\n"
      "  node [shape=box, style=\"rounded,filled\", fontname=\"sans-serif\"];\n",
      escape_for_dot(to_printable_line(to_utf8(view.record.name))), escape_for_dot(title));
  for (std::uint32_t i = 0; i < view.nodes.size(); ++i) {
    const NodeView& node = view.nodes[i];
    std::string label = escape_for_dot(format_label(view, node, "\n"));
    for (auto line_end = label.find('\n'); line_end != std::string::npos; line_end = label.find('\n'))
      label.replace(line_end, 1, "\\n");
    const StatusColour colour = get_colour(node.status);
    out += fmt::format("  n{} [label=\"{}\", fillcolor=\"{}\", color=\"{}\"];\n", i, label, colour.fill, colour.stroke);
  }
  for (const Edge& edge : list_edges(view)) {
    const std::string attributes =
        edge.kind == EdgeKind::needs
            ? ""
            : fmt::format(" [style=dashed, label=\"{}\"]", kEdgeKindNames[static_cast<std::size_t>(edge.kind)]);
    out += fmt::format("  n{} -> n{}{};\n", edge.from, edge.to, attributes);
  }
  return out + "}\n";
}

}  // namespace

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
  for (const Edge& edge : list_edges(view)) {
    out["edges"].push_back({{"from", view.nodes[edge.from].name},
                            {"to", view.nodes[edge.to].name},
                            {"kind", kEdgeKindNames[static_cast<std::size_t>(edge.kind)]}});
  }
  return dump_json(out, 2) + "\n";
}

}  // namespace mycojobs
