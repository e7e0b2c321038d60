// A flow as text, in the longest form that fits: boxes, a line for each node, a line for each layer.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/counted.h"
#include "domain/screen_text.h"
#include "domain/utf8.h"
#include "inspect/draw_flow.h"

namespace mycojobs {
namespace {

constexpr std::size_t kWidestBox = 44;
constexpr std::size_t kNarrowest = 24;  // columns; a terminal that says less is not believed
constexpr std::size_t kNamed = 4;       // nodes that a folded layer names

struct Marks {
  std::string_view status[7];  // by NodeStatus
  std::string_view top_left, top_right, bottom_left, bottom_right, across, side, arrow, more, person;
};
constexpr Marks kUnicode = {{"○", "◌", "◐", "●", "✔", "✘", "⊘"}, "╭", "╮", "╰", "╯", "─", "│", "→", "…", "?"};
constexpr Marks kAscii = {{".", ":", ">", "*", "+", "x", "-"}, "+", "+", "+", "+", "-", "|", "->", "~", "?"};

const char* colour_of(const NodeView& node) {
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

bool waits_for_a_person(const NodeView& node) {
  return node.status == NodeStatus::dispatched && (node.detail == "approval" || node.detail == "pause");
}

class Text {
 public:
  Text(const FlowView& view, const TextStyle& style)
      : view_(view),
        style_(style),
        marks_(style.ascii ? kAscii : kUnicode),
        width_(std::max(style.width, kNarrowest)),
        layers_(flow_layers(view)),
        dependents_(flow_dependents(view)) {}

  std::string draw() const {
    const std::string head = headline_of() + "\n";
    const auto fits = [&](const std::string& text) {
      return style_.max_lines == 0 ||
             static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1 <= style_.max_lines;
    };
    if (view_.nodes.size() <= style_.max_nodes) {
      const std::string drawn = boxes();
      if (fits(drawn)) return head + drawn;
      const std::string listed = list();
      if (fits(listed)) return head + listed;
    }
    return head + folded();
  }

 private:
  std::string clean(std::string_view text) const {
    std::string out = one_line(to_utf8(text));
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
  std::string cut(std::string_view text, std::size_t most) const { return shortened(text, most, marks_.more); }
  std::string paint(const NodeView& node, std::string_view text) const {
    return style_.colour ? colour_of(node) + std::string(text) + "\033[0m" : std::string(text);
  }
  std::string headline_of() const {
    const std::string text = cut(clean(headline(view_)), width_);
    return style_.colour ? "\033[1m" + text + "\033[0m" : text;
  }
  std::string mark(const NodeView& node) const {
    return std::string(waits_for_a_person(node) ? marks_.person : marks_.status[static_cast<std::size_t>(node.status)]);
  }
  std::string name(const NodeView& node) const {
    return clean(node.name) + (node.kind.empty() || node.kind == "job" ? "" : " (" + clean(node.kind) + ")");
  }
  std::string name_at(std::uint32_t index) const {
    return index < view_.nodes.size() ? clean(view_.nodes[index].name) : "?";
  }
  std::string state(const NodeView& node) const {
    if (view_.record.id == 0) return node.when.empty() ? "" : "if " + clean(node.when.front());
    return clean(state_text(node, view_.now_ms));
  }
  std::string targets(std::uint32_t index) const {
    std::string out;
    for (std::uint32_t node : dependents_[index]) {
      out += (out.empty() ? std::string(marks_.arrow) + " " : ", ") + name_at(node);
      if (out.size() > 8 * kWidestBox) break;
    }
    const NodeView& node = view_.nodes[index];
    if (node.error_node) out += (out.empty() ? "" : " ") + ("on error: " + name_at(*node.error_node));
    if (node.compensation) out += (out.empty() ? "" : " ") + ("undone by: " + name_at(*node.compensation));
    return out;
  }

  struct Box {
    const NodeView* node = nullptr;
    std::string title, state, targets;
    std::size_t inner = 0;
  };
  Box box_of(std::uint32_t index) const {
    const std::size_t most = std::min(kWidestBox, width_) - 4;
    const NodeView& node = view_.nodes[index];
    Box box{&node, cut(mark(node) + " " + name(node), most), cut(state(node), most), cut(targets(index), most)};
    box.inner = std::max({columns(box.title), columns(box.state), columns(box.targets)}) + 2;
    return box;
  }
  // "╭ ✔ build ────╮"
  std::string edge(const Box& box, std::string_view left, std::string_view text, std::string_view right) const {
    std::string line(left);
    const std::size_t used = text.empty() ? 0 : columns(text) + 2;
    if (!text.empty()) line += " " + std::string(text) + " ";
    for (std::size_t i = used; i < box.inner; ++i) line += marks_.across;
    return line + std::string(right);
  }
  std::string row_of(const std::vector<Box>& row) const {
    std::string lines[3];
    const bool stateless = std::all_of(row.begin(), row.end(), [](const Box& box) { return box.state.empty(); });
    for (const Box& box : row) {
      const std::string gap = lines[0].empty() ? "" : " ";
      const std::string side(marks_.side);
      lines[0] += gap + paint(*box.node, edge(box, marks_.top_left, box.title, marks_.top_right));
      lines[1] +=
          gap + paint(*box.node, side + " " + box.state + std::string(box.inner - 1 - columns(box.state), ' ') + side);
      lines[2] += gap + paint(*box.node, edge(box, marks_.bottom_left, box.targets, marks_.bottom_right));
    }
    return lines[0] + "\n" + (stateless ? "" : lines[1] + "\n") + lines[2] + "\n";
  }
  std::string boxes() const {
    std::string out;
    for (const auto& layer : layers_) {
      if (!layer.empty() && view_.nodes[layer.front()].on_call) out += "only when called:\n";
      std::vector<Box> row;
      std::size_t used = 0;
      for (std::uint32_t index : layer) {
        Box box = box_of(index);
        if (!row.empty() && used + box.inner + 3 > width_) {
          out += row_of(row);
          row.clear();
          used = 0;
        }
        used += box.inner + 3;
        row.push_back(std::move(box));
      }
      out += row_of(row);
    }
    return out;
  }
  std::string list() const {
    std::size_t widest = 0;
    const std::size_t most = std::max(kNarrowest, width_ / 3);
    for (const NodeView& node : view_.nodes) widest = std::max(widest, columns(cut(name(node), most)));
    std::string out;
    for (std::size_t depth = 0; depth < layers_.size(); ++depth) {
      for (std::uint32_t index : layers_[depth]) {
        const NodeView& node = view_.nodes[index];
        const std::string title = cut(name(node), most);
        const std::string line = fmt::format("{} {}{}  {}  {}", mark(node), title,
                                             std::string(widest - columns(title), ' '), state(node), targets(index));
        out += paint(node, cut(line, width_)) + "\n";
      }
    }
    return out;
  }
  std::string folded() const {
    std::string out;
    for (std::size_t depth = 0; depth < layers_.size(); ++depth) {
      const bool on_call = view_.nodes[layers_[depth].front()].on_call;
      std::map<NodeStatus, std::vector<std::uint32_t>> by_status;
      for (std::uint32_t index : layers_[depth]) by_status[view_.nodes[index].status].push_back(index);
      std::string line = on_call ? "on call" : fmt::format("layer {}", depth + 1);
      line += "  " + counted(layers_[depth].size(), "node");
      std::string names;
      for (const auto& [status, nodes] : by_status) {
        if (view_.record.id != 0)
          line +=
              fmt::format("  {} {} {}", marks_.status[static_cast<std::size_t>(status)], nodes.size(), word(status));
        std::size_t named = 0;
        for (std::uint32_t index : nodes) {
          const bool telling = status == NodeStatus::failed || status == NodeStatus::running ||
                               waits_for_a_person(view_.nodes[index]) || layers_[depth].size() == 1;
          if (!telling || ++named > kNamed) continue;
          names += (names.empty() ? "" : ", ") + name_at(index);
        }
      }
      out += cut(line + (names.empty() ? "" : ": " + names), width_) + "\n";
    }
    return out;
  }

  const FlowView& view_;
  const TextStyle& style_;
  const Marks& marks_;
  std::size_t width_;
  std::vector<std::vector<std::uint32_t>> layers_;
  std::vector<std::vector<std::uint32_t>> dependents_;
};

}  // namespace

std::string draw_text(const FlowView& view, const TextStyle& style) { return Text(view, style).draw(); }

}  // namespace mycojobs
