#include <algorithm>

#include "inspect/draw_flow.h"

namespace mycojobs {

std::vector<std::vector<std::uint32_t>> flow_dependents(const FlowView& view) {
  std::vector<std::vector<std::uint32_t>> out(view.nodes.size());
  for (std::uint32_t i = 0; i < view.nodes.size(); ++i) {
    for (std::uint32_t need : view.nodes[i].needs) {
      if (need < out.size()) out[need].push_back(i);
    }
  }
  return out;
}

std::vector<std::vector<std::uint32_t>> flow_layers(const FlowView& view) {
  const auto count = static_cast<std::uint32_t>(view.nodes.size());
  const auto dependents = flow_dependents(view);
  std::vector<std::uint32_t> open(count, 0), layer(count, 0), next;
  for (const auto& list : dependents) {
    for (std::uint32_t node : list) ++open[node];
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    if (open[i] == 0) next.push_back(i);
  }
  std::uint32_t deepest = 0;
  while (!next.empty()) {
    const std::uint32_t node = next.back();
    next.pop_back();
    deepest = std::max(deepest, layer[node]);
    for (std::uint32_t after : dependents[node]) {
      layer[after] = std::max(layer[after], layer[node] + 1);
      if (--open[after] == 0) next.push_back(after);
    }
  }
  std::vector<std::vector<std::uint32_t>> layers(deepest + 3);
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool circle = open[i] > 0;
    layers[view.nodes[i].on_call ? deepest + 2 : circle ? deepest + 1 : layer[i]].push_back(i);
  }
  std::erase_if(layers, [](const auto& nodes) { return nodes.empty(); });
  return layers;
}

}  // namespace mycojobs
