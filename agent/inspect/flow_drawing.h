// Draws flows: as text for terminals, Mermaid, DOT or JSON. No side effects. The parts of draw_flow() are declared for
// the live view of the CLI, which limits the height of a drawing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "inspect/flow_view.h"

namespace mycojobs {

enum class GraphFormat { text, ascii, mermaid, dot, json };
std::string_view to_string(GraphFormat);
// Draws a flow. text: boxes in layers with the targets of their arrows, for a terminal of `width` columns, with colours
// if `colour` is set. Flows with more than max_nodes nodes are folded by layer and status, with counts. ascii: same,
// with ASCII characters only.
std::string draw_flow(const FlowView&, GraphFormat, std::size_t width = 100, bool colour = false,
                      std::size_t max_nodes = 200);

// Groups the nodes by the length of the longest path to them. Nodes that are on call are in a last layer of their own.
// The nodes of a cycle, which only an invalid record can have, form one layer before that layer. Needs that are not
// nodes are ignored.
std::vector<std::vector<std::uint32_t>> find_layers(const FlowView&);

struct TextStyle {
  std::size_t width = 100;  // columns
  bool colour = false;
  bool ascii = false;
  std::size_t max_nodes = 200;
  std::size_t max_lines = 0;  // a more compact form is chosen for taller drawings; 0: no limit
};
std::string draw_text(const FlowView&, const TextStyle&);

// Formats the state of a node: "completed 1.2 s", "retry_wait, due in 4 s".
std::string format_node_state(const NodeView&, std::uint64_t now_ms);
// Formats a duration: "800 ms", "1.2 s", "14 s", "3 min".
std::string format_short_duration(std::uint64_t ms);
// Formats the state of a flow: "flow 12 nightly  started running  3 of 9 settled  41 s".
std::string format_headline(const FlowView&);
std::size_t count_skipped(const FlowView&);

}  // namespace mycojobs
