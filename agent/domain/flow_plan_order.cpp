// The order of a plan's nodes, and the circles that keep it from having one.
#include <algorithm>
#include <deque>

#include "domain/flow_plan_read.h"

namespace mycojobs::plans {
namespace {

constexpr std::size_t kMaxCycles = 10;         // that are told
constexpr std::size_t kMaxShown = 12;          // names of one
constexpr std::size_t kMaxSteps = 20'000'000;  // in search of the shortest; then the shortest so far will do
constexpr std::uint32_t kNone = UINT32_MAX;

// next[i]: what can begin only after i: what needs it, and the node that its error goes to.
class Order {
 public:
  explicit Order(const FlowPlan& plan) : next_(plan.nodes.size()), open_(plan.nodes.size()), gone_(plan.nodes.size()) {
    for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) {
      next_[i] = plan.nodes[i].dependents;
      if (plan.nodes[i].error_node) next_[i].push_back(*plan.nodes[i].error_node);
    }
    for (const auto& list : next_) {
      for (std::uint32_t after : list) ++open_[after];
    }
    for (std::uint32_t i = 0; i < next_.size(); ++i) {
      if (open_[i] == 0) ready_.push_back(i);
    }
    take_ready();
  }
  const std::vector<std::uint32_t>& order() const { return order_; }

  // A shortest circle of what is left; empty: there is none. Its nodes are then out of the way.
  std::vector<std::uint32_t> take_cycle() {
    std::vector<std::uint32_t> best;
    steps_ = 0;
    for (std::uint32_t i = 0; i < next_.size() && steps_ < kMaxSteps; ++i) {
      if (gone_[i]) continue;
      std::vector<std::uint32_t> found = shortest_from(i, best.empty() ? next_.size() : best.size() - 1);
      if (!found.empty()) best = std::move(found);
      if (best.size() == 2) break;  // none is shorter: a node that needs itself was refused before
    }
    for (std::uint32_t i : best) {
      if (!gone_[i]) take(i);
    }
    take_ready();
    return best;
  }

 private:
  void take(std::uint32_t i) {
    gone_[i] = true;
    for (std::uint32_t after : next_[i]) {
      if (--open_[after] == 0 && !gone_[after]) ready_.push_back(after);
    }
  }
  void take_ready() {
    while (!ready_.empty()) {
      const std::uint32_t i = ready_.front();
      ready_.pop_front();
      if (gone_[i]) continue;
      order_.push_back(i);
      take(i);
    }
  }

  // Breadth first from i back to i, in at most `most` steps.
  std::vector<std::uint32_t> shortest_from(std::uint32_t i, std::size_t most) {
    if (came_from_.size() != next_.size()) {
      came_from_.resize(next_.size());
      seen_in_.assign(next_.size(), kNone);
    }
    ++search_;
    std::vector<std::uint32_t> edge{i};
    for (std::size_t length = 1; length <= most && !edge.empty() && steps_ < kMaxSteps; ++length) {
      std::vector<std::uint32_t> further;
      for (std::uint32_t at : edge) {
        for (std::uint32_t to : next_[at]) {
          ++steps_;
          if (to == i) return way_back(i, at);
          if (gone_[to] || seen_in_[to] == search_) continue;
          seen_in_[to] = search_;
          came_from_[to] = at;
          further.push_back(to);
        }
      }
      edge = std::move(further);
    }
    return {};
  }
  std::vector<std::uint32_t> way_back(std::uint32_t i, std::uint32_t at) const {
    std::vector<std::uint32_t> way{at};
    while (at != i) way.push_back(at = came_from_[at]);
    std::reverse(way.begin(), way.end());
    return way;
  }

  std::vector<std::vector<std::uint32_t>> next_;
  std::vector<std::uint32_t> open_;
  std::vector<bool> gone_;
  std::deque<std::uint32_t> ready_;
  std::vector<std::uint32_t> order_;
  std::vector<std::uint32_t> came_from_, seen_in_;
  std::uint32_t search_ = 0;
  std::size_t steps_ = 0;
};

std::string shown_cycle(const FlowPlan& plan, const std::vector<std::uint32_t>& cycle) {
  std::string out;
  const std::size_t count = cycle.size() > kMaxShown ? kMaxShown - 1 : cycle.size();
  for (std::size_t i = 0; i < count; ++i) out += plan.nodes[cycle[i]].name + " -> ";
  if (count < cycle.size()) out += "(" + std::to_string(cycle.size() - count) + " more) -> ";
  return out + plan.nodes[cycle.front()].name;
}

}  // namespace

std::vector<std::uint32_t> order_of(const FlowPlan& plan, const std::vector<Draft>& drafts, Problems& problems) {
  Order order(plan);
  const std::vector<std::uint32_t> found = order.order();
  if (found.size() == plan.nodes.size()) return found;
  for (std::size_t i = 0; i < kMaxCycles; ++i) {
    const auto cycle = order.take_cycle();
    if (cycle.empty()) break;
    // Those on the circle wait for each other; the second of them is the one that needs the first.
    const std::uint32_t needing = cycle[cycle.size() > 1 ? 1 : 0];
    const bool needs = !plan.nodes[needing].needs.empty();
    problems.add(drafts[needing].path + (needs ? ".needs" : ""),
                 "a circle, none of which could ever begin: " + shown_cycle(plan, cycle));
  }
  return found;
}

}  // namespace mycojobs::plans
