#include "domain/matcher.h"

#include <algorithm>
#include <numeric>

namespace mycojobs {
namespace {
std::uint64_t branch(Matcher::Node node, unsigned char byte) { return std::uint64_t{node} << 8 | byte; }
}  // namespace

Matcher::Matcher() : nodes_(1), matches_(1), parents_(1) {}

Matcher::Node Matcher::child(Node node, unsigned char byte) const {
  if (node == 0) return root_[byte];
  if (nodes_[node].chained && nodes_[node + 1].byte == byte) return node + 1;
  if (!nodes_[node].parts) return 0;
  const auto found = branches_.find(branch(node, byte));
  return found == branches_.end() ? 0 : found->second;
}

Matcher::Node Matcher::make_child(Node node, unsigned char byte) {
  const Node made = static_cast<Node>(nodes_.size());
  if (node == 0) {
    root_[byte] = made;
  } else if (made == node + 1) {
    nodes_[node].chained = true;
  } else {
    nodes_[node].parts = true;
    branches_[branch(node, byte)] = made;
  }
  State state;
  state.depth = nodes_[node].depth + 1;
  state.byte = byte;
  nodes_.push_back(state);
  parents_.push_back(node);
  return made;
}

void Matcher::add(std::string_view text, std::uint32_t owner) {
  Node node = 0;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const Node there = child(node, byte);
    node = there != 0 ? there : make_child(node, byte);
  }
  if (node == 0 || nodes_[node].match != 0) return;
  nodes_[node].match = static_cast<std::uint32_t>(matches_.size());
  matches_.push_back({nodes_[node].depth, owner});
  longest_ = std::max(longest_, nodes_[node].depth);
}

// By depth, so that what a node falls back to is whole already.
void Matcher::finish() {
  std::vector<Node> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [this](Node a, Node b) { return nodes_[a].depth < nodes_[b].depth; });
  for (Node node : order) {
    State& state = nodes_[node];
    if (state.depth > 1) state.fail = next(nodes_[parents_[node]].fail, state.byte);
    if (state.match == 0) state.match = nodes_[state.fail].match;
  }
  std::vector<Node>().swap(parents_);
}

Matcher::Node Matcher::next(Node node, unsigned char byte) const {
  for (;;) {
    if (const Node there = child(node, byte); there != 0 || node == 0) return there;
    node = nodes_[node].fail;
  }
}

Matcher::Node Matcher::unfinished(Node node) const {
  while (node != 0 && !nodes_[node].chained && !nodes_[node].parts) node = nodes_[node].fail;
  return node;
}

// A node has a chained child unless its text ends there: texts are added whole.
const Matcher::Match& Matcher::first_of(Node node) const {
  while (nodes_[node].chained) ++node;
  return match(node);
}

}  // namespace mycojobs
