// Parts of draw_flow() (inspect/flow_view.h), for draw_flow.cpp and the live view.
#pragma once

#include <string>
#include <vector>

#include "inspect/flow_view.h"

namespace mycojobs {

// Returns the nodes by the length of the longest path to them. Nodes that are on call are in a last layer of their own.
// The nodes of a cycle, which only an invalid record can have, form one layer before that layer. Needs that are not
// nodes are ignored.
std::vector<std::vector<std::uint32_t>> flow_layers(const FlowView&);
// Returns for each node the nodes that need it.
std::vector<std::vector<std::uint32_t>> flow_dependents(const FlowView&);

struct TextStyle {
  std::size_t width = 100;  // columns
  bool colour = false;
  bool ascii = false;
  std::size_t max_nodes = 200;
  std::size_t max_lines = 0;  // shorter forms are chosen to stay below; 0: no limit
};
std::string draw_text(const FlowView&, const TextStyle&);
std::string draw_mermaid(const FlowView&);
std::string draw_dot(const FlowView&);

// Returns the state of a node for display: "completed 1.2 s", "retry_wait, due in 4 s".
std::string state_text(const NodeView&, std::uint64_t now_ms);
std::string short_span(std::uint64_t ms);  // "800 ms", "1.2 s", "14 s", "3 min"
std::string headline(const FlowView&);     // "flow 12 nightly  started running  3 of 9 settled  41 s"
std::size_t count_skipped(const FlowView&);

}  // namespace mycojobs
