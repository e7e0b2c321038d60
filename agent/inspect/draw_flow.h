// Parts of draw_flow(). For draw_flow*.cpp and the live view only.
#pragma once

#include <string>
#include <vector>

#include "inspect/flows.h"

namespace mycojobs {

// Nodes by the length of the longest path to them; those that are on call last, in a layer of their own. A circle,
// which only a wrong record can have, comes before these in one layer. Needs that are no nodes are passed over.
std::vector<std::vector<std::uint32_t>> flow_layers(const FlowView&);
// Who needs each node.
std::vector<std::vector<std::uint32_t>> flow_dependents(const FlowView&);

struct TextStyle {
  std::size_t width = 100;  // columns
  bool colour = false;
  bool ascii = false;
  std::size_t max_nodes = 200;
  std::size_t max_lines = 0;  // shorter forms are taken to stay below; 0: any number
};
std::string draw_text(const FlowView&, const TextStyle&);
std::string draw_mermaid(const FlowView&);
std::string draw_dot(const FlowView&);

// "completed 1.2 s", "retry_wait, due in 4 s": a node's state for people.
std::string state_text(const NodeView&, std::uint64_t now_ms);
std::string short_span(std::uint64_t ms);  // "800 ms", "1.2 s", "14 s", "3 min"
std::string headline(const FlowView&);     // "flow 12 nightly  started running  3 of 9 settled  41 s"
std::size_t count_skipped(const FlowView&);

}  // namespace mycojobs
