#include "flows/flow_plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/parse.h"
#include "base/sha256.h"
#include "flows/flow_plan_reader.h"
#include "model/codec.h"
#include "text/json.h"
#include "text/suggestion.h"
#include "text/utf8.h"

namespace mycojobs {

// Topological order of the nodes of a plan, and its cycles.

namespace plans {

namespace {

constexpr std::size_t kMaxCycles = 10;  // cycles that are reported
constexpr std::size_t kMaxShown = 12;   // names shown per cycle
// Limit of the search for the shortest cycle; then the shortest cycle found so far is used.
constexpr std::size_t kMaxSteps = 20'000'000;
constexpr std::uint32_t kNone = UINT32_MAX;

// Topological order. next_[i] holds the nodes that can start only after i: its dependents and its error node.
class TopologicalOrder {
 public:
  explicit TopologicalOrder(const FlowPlan& plan)
      : next_(plan.nodes.size()), open_(plan.nodes.size()), removed_(plan.nodes.size()) {
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

  // Returns a shortest cycle of the remaining nodes and removes its nodes, or returns an empty list.
  std::vector<std::uint32_t> take_cycle() {
    std::vector<std::uint32_t> best;
    steps_ = 0;
    for (std::uint32_t i = 0; i < next_.size() && steps_ < kMaxSteps; ++i) {
      if (removed_[i]) continue;
      std::vector<std::uint32_t> found = shortest_from(i, best.empty() ? next_.size() : best.size() - 1);
      if (!found.empty()) best = std::move(found);
      if (best.size() == 2) break;  // the shortest possible cycle: a node that needs itself was rejected before
    }
    for (std::uint32_t i : best) {
      if (!removed_[i]) take(i);
    }
    take_ready();
    return best;
  }

 private:
  void take(std::uint32_t i) {
    removed_[i] = true;
    for (std::uint32_t after : next_[i]) {
      if (--open_[after] == 0 && !removed_[after]) ready_.push_back(after);
    }
  }
  void take_ready() {
    while (!ready_.empty()) {
      const std::uint32_t i = ready_.front();
      ready_.pop_front();
      if (removed_[i]) continue;
      order_.push_back(i);
      take(i);
    }
  }

  // Breadth-first search from i back to i, with at most `most` steps.
  std::vector<std::uint32_t> shortest_from(std::uint32_t i, std::size_t most) {
    if (origin_address_.size() != next_.size()) {
      origin_address_.resize(next_.size());
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
          if (removed_[to] || seen_in_[to] == search_) continue;
          seen_in_[to] = search_;
          origin_address_[to] = at;
          further.push_back(to);
        }
      }
      edge = std::move(further);
    }
    return {};
  }
  std::vector<std::uint32_t> way_back(std::uint32_t i, std::uint32_t at) const {
    std::vector<std::uint32_t> way{at};
    while (at != i) way.push_back(at = origin_address_[at]);
    std::reverse(way.begin(), way.end());
    return way;
  }

  std::vector<std::vector<std::uint32_t>> next_;
  std::vector<std::uint32_t> open_;
  std::vector<bool> removed_;
  std::deque<std::uint32_t> ready_;
  std::vector<std::uint32_t> order_;
  std::vector<std::uint32_t> origin_address_, seen_in_;
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

std::vector<std::uint32_t> order_of(const FlowPlan& plan, const std::vector<DraftNode>& drafts, Problems& problems) {
  TopologicalOrder order(plan);
  const std::vector<std::uint32_t> found = order.order();
  if (found.size() == plan.nodes.size()) return found;
  for (std::size_t i = 0; i < kMaxCycles; ++i) {
    const auto cycle = order.take_cycle();
    if (cycle.empty()) break;
    // The nodes of the cycle wait for each other; the second node needs the first.
    const std::uint32_t needing = cycle[cycle.size() > 1 ? 1 : 0];
    const bool needs = !plan.nodes[needing].needs.empty();
    problems.add(drafts[needing].path + (needs ? ".needs" : ""),
                 "a cycle of nodes that can never start: " + shown_cycle(plan, cycle));
  }
  return found;
}

// Links the drafts: resolves names to indexes, and rejects plans that cannot work.

namespace {

constexpr std::size_t kMaxNeeds = 10000;  // per node; the same as the limit of dependencies of a job

class PlanLinker {
 public:
  PlanLinker(FlowPlan& plan, std::vector<DraftNode> drafts, Problems& problems)
      : plan_(plan), drafts_(std::move(drafts)), problems_(problems) {}

  void run() {
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      if (drafts_[i].node.name == kInputsName && !plan_.inputs.empty())
        problems_.add(drafts_[i].path, "the name \"inputs\" means the flow's inputs here: choose another");
      names_.push_back(index_.emplace(drafts_[i].node.name, static_cast<std::uint32_t>(i)).first->first);
    }
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) link_each(i);
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) link_needs(i);
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) link_calls(i);
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) check_called(i);
    check_gates();
    for (DraftNode& draft : drafts_) plan_.nodes.push_back(std::move(draft.node));
    for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
      for (std::uint32_t need : plan_.nodes[i].needs) plan_.nodes[need].dependents.push_back(i);
    }
    const std::vector<std::uint32_t> order = order_of(plan_, drafts_, problems_);
    if (order.size() == plan_.nodes.size()) link_conditions(order);
    check_states();
    if (problems_.empty()) make_elements(plan_);
  }

 private:
  PlanNode& node(std::uint32_t i) { return drafts_[i].node; }

  std::optional<std::uint32_t> look_up(const NodeReference& named, std::uint32_t from, std::string_view as) {
    const auto found = index_.find(named.name);
    if (found == index_.end()) {
      if (!problems_.full()) {
        problems_.add(named.path, "there is no node " + excerpt(named.name) + did_you_mean(named.name, names_));
      }
      return std::nullopt;
    }
    if (found->second == from) {
      problems_.add(named.path, excerpt(named.name) + " is the node itself: it cannot be its own " + std::string(as));
      return std::nullopt;
    }
    return found->second;
  }

  // Resolves the source and the number of the elements.
  void link_each(std::uint32_t i) {
    if (!drafts_[i].each) return;
    DraftEach& each = *drafts_[i].each;
    PlanNode& group = node(i);
    if (each.path.empty())
      return problems_.add(each.max_path, "belongs to each: also name the list from which the nodes are created");
    if (each.from.name == kInputsName && !plan_.inputs.empty()) {
      take_input(each);
    } else if (!each.from.name.empty()) {
      group.places = each.max.value_or(kUsualEach);
      return take_source(i, each);
    }
    const std::uint32_t most = each.max.value_or(kMaxEach);
    if (each.elements.size() > most) {
      problems_.add(each.path, "has " + std::to_string(each.elements.size()) + " elements, more than " +
                                   (each.max ? "its max of " : "the ") + std::to_string(most));
    }
    for (std::size_t k = 0; k < each.elements.size(); ++k) {
      if (each.elements[k].size() <= kMaxElementBytes) continue;
      problems_.add(each.path + '[' + std::to_string(k) + ']',
                    "is longer than " + std::to_string(kMaxElementBytes) + " bytes");
    }
    group.places = static_cast<std::uint32_t>(std::min<std::size_t>(each.elements.size(), kMaxEach));
    group.elements = std::move(each.elements);
  }

  void take_input(DraftEach& each) {
    const auto input = std::find_if(plan_.inputs.begin(), plan_.inputs.end(),
                                    [&](const FlowInput& one) { return one.name == each.key; });
    if (input == plan_.inputs.end()) {
      problems_.add(each.path, "there is no input " + excerpt(each.key) + did_you_mean(each.key, input_names()));
    } else if (input->type != "list" && input->type != "object") {
      if (!input->type.empty())
        problems_.add(each.path, "the input " + each.key + " is of type " + input->type + ", not list or object");
    } else if (const auto value = plan_.values.find(each.key); value != plan_.values.end()) {
      const auto parsed = parse_json(value->second);
      if (parsed) each.elements = elements_of(*parsed).value_or(std::vector<std::string>());
    }
  }

  // The source of the elements comes before the node, whether or not `needs` names it.
  void take_source(std::uint32_t i, const DraftEach& each) {
    const auto found = look_up(each.from, i, "list");
    if (!found) return;
    if (drafts_[*found].each) {
      return problems_.add(each.path, excerpt(each.from.name) +
                                          " is a node for each of a list itself: make the list in a job that needs it");
    }
    node(i).from = EachSource{*found, each.key};
    node(*found).watched.push_back(each.key);
    auto& needs = drafts_[i].needs;
    const bool named =
        std::any_of(needs.begin(), needs.end(), [&](const NodeReference& need) { return need.name == each.from.name; });
    if (!named) needs.push_back(each.from);
  }

  std::vector<std::string_view> input_names() const {
    std::vector<std::string_view> names;
    for (const FlowInput& each : plan_.inputs) names.push_back(each.name);
    return names;
  }

  // Checks the number of nodes for the largest possible number of elements.
  void check_states() {
    std::size_t all = 0;
    for (const PlanNode& each : plan_.nodes) all += 1 + each.places;
    if (all > kMaxFlowNodes) {
      problems_.add("jobs", std::to_string(all) + " nodes, including the nodes that each can create, are more than " +
                                std::to_string(kMaxFlowNodes) + ": give smaller max, or divide them into child flows");
    }
    for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
      std::size_t needs = 0;
      for (const std::uint32_t need : plan_.nodes[i].needs) needs += 1 + plan_.nodes[need].places;
      if (needs <= kMaxNeeds || plan_.nodes[i].needs.size() > kMaxNeeds) continue;
      problems_.add(drafts_[i].path + ".needs",
                    std::to_string(needs) + " nodes, including the nodes that each can create, are more than " +
                        std::to_string(kMaxNeeds) + ": use a smaller max, or add a joining node in between");
    }
  }

  void link_needs(std::uint32_t i) {
    DraftNode& draft = drafts_[i];
    if (draft.needs.size() > kMaxNeeds) {
      problems_.add(draft.path + ".needs", std::to_string(draft.needs.size()) + " nodes are more than " +
                                               std::to_string(kMaxNeeds) + ": add a joining node in between");
      return;
    }
    std::unordered_set<std::uint32_t> seen;
    for (const NodeReference& need : draft.needs) {
      const auto found = look_up(need, i, "need");
      if (!found) continue;
      if (seen.insert(*found).second) {
        draft.node.needs.push_back(*found);
      } else {
        problems_.add(need.path, excerpt(need.name) + " is named twice");
      }
    }
    for (const NodeReference& input : draft.inputs) {
      const auto found = index_.find(input.name);
      if (found != index_.end() && seen.contains(found->second)) continue;
      problems_.add(input.path,
                    excerpt(input.name) +
                        " is not a node that this node needs: write NODE or NODE/ARTIFACT and name the node in needs");
    }
  }

  void link_calls(std::uint32_t i) {
    DraftNode& draft = drafts_[i];
    if (draft.route) draft.node.error_node = look_up(*draft.route, i, "error node");
    if (!draft.has_on_error) draft.node.on_error = plan_.on_error;
    if (draft.node.error_node) {
      node(*draft.node.error_node).on_call = true;
      routed_.insert(*draft.node.error_node);
    }
    if (draft.compensation) draft.node.compensation = look_up(*draft.compensation, i, "compensation");
    if (!draft.node.compensation) return;
    node(*draft.node.compensation).on_call = true;
    const auto [first, added] = compensates_.emplace(*draft.node.compensation, i);
    if (!added) {
      problems_.add(draft.compensation->path, excerpt(draft.compensation->name) + " is the compensation of " +
                                                  excerpt(node(first->second).name) +
                                                  " already, and runs only once: give each its own");
    }
  }

  // Error nodes and compensations start when they are called, so they cannot have needs.
  void check_called(std::uint32_t i) {
    const DraftNode& draft = drafts_[i];
    const bool compensation = compensates_.contains(i);
    if (draft.each && draft.compensation) {
      problems_.add(
          draft.compensation->path,
          "a node with each cannot have one: add it to a node that needs this node and undo all elements there");
    }
    if (draft.each && draft.node.on_call) {
      problems_.add(draft.each->path, "an error node or compensation runs once: it has no each");
    }
    for (const NodeReference& need : draft.needs) {
      const auto found = index_.find(need.name);
      if (found != index_.end() && compensates_.contains(found->second)) {
        problems_.add(
            need.path,
            excerpt(need.name) + " is a compensation, which runs only after the flow has failed: no node can need it");
      }
    }
    if (!draft.node.on_call) return;
    const std::string what = compensation ? "a compensation" : "an error node";
    if (!draft.needs.empty())
      problems_.add(draft.path + ".needs", what + " runs when it is called: it cannot need nodes");
    if (!draft.when.empty())
      problems_.add(draft.path + ".when", what + " runs when it is called: it has no conditions");
    if (!compensation) return;
    if (routed_.contains(i)) {
      problems_.add(draft.path, "is an error node and a compensation: make two nodes of it");
    }
    if (draft.node.kind != NodeKind::job && draft.node.kind != NodeKind::log) {
      problems_.add(draft.path,
                    "a compensation is a job or a log line, not " + std::string(to_string(draft.node.kind)));
    }
    if (draft.route)
      problems_.add(draft.route->path, "a failure of a compensation is recorded and the next compensation runs");
    if (draft.compensation) problems_.add(draft.compensation->path, "a compensation cannot have a compensation");
    if (!draft.node.gates.empty()) {
      problems_.add(draft.path + ".prerequisites", "a compensation cannot wait for " + draft.node.gates.front());
    }
  }

  // `flow approve NAME` must be unambiguous.
  void check_gates() {
    for (const DraftNode& draft : drafts_) {
      for (const std::string& gate : draft.node.gates) {
        if (!gate.starts_with("approval:")) continue;
        const auto found = index_.find(gate.substr(sizeof "approval:" - 1));
        if (found == index_.end() || node(found->second).kind != NodeKind::approval) continue;
        problems_.add(draft.path + ".prerequisites",
                      gate + ": a node has the same name: need that node, or rename one of them");
      }
    }
  }

  void link_conditions(const std::vector<std::uint32_t>& order) {
    std::unordered_map<std::uint32_t, std::vector<ConditionUse>> uses;
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) {
      for (DraftCondition& each : drafts_[i].when) {
        if (is_of_input(each)) continue;
        const auto found = look_up(each.node, i, "condition");
        if (!found) continue;
        each.condition.node = *found;
        uses[*found].push_back({i, &each});
      }
    }
    find_predecessors(order, uses);
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) {
      for (DraftCondition& each : drafts_[i].when) take_condition(i, each);
    }
    for (PlanNode& each : plan_.nodes) {
      std::sort(each.watched.begin(), each.watched.end());
      each.watched.erase(std::unique(each.watched.begin(), each.watched.end()), each.watched.end());
    }
  }

  struct ConditionUse {
    std::uint32_t node;
    DraftCondition* written;
  };
  // Marks the nodes that come before other nodes. Each pass handles 64 nodes that conditions read: each node has a bit,
  // which is passed on to all nodes that follow.
  void find_predecessors(const std::vector<std::uint32_t>& order,
                         std::unordered_map<std::uint32_t, std::vector<ConditionUse>>& uses) {
    std::vector<std::uint64_t> before(plan_.nodes.size());
    std::vector<std::uint64_t> own(plan_.nodes.size());
    for (auto at = uses.begin(); at != uses.end();) {
      const auto first = at;
      std::fill(before.begin(), before.end(), 0);
      std::fill(own.begin(), own.end(), 0);
      for (unsigned bit = 0; bit < 64 && at != uses.end(); ++bit, ++at) own[at->first] = 1ULL << bit;
      for (std::uint32_t i : order) {
        for (std::uint32_t next : plan_.nodes[i].dependents) before[next] |= before[i] | own[i];
      }
      for (auto group = first; group != at; ++group) {
        for (ConditionUse& use : group->second)
          use.written->is_ordered_before = (before[use.node] & own[group->first]) != 0;
      }
    }
  }

  bool is_of_input(const DraftCondition& written) const {
    return written.node.name == kInputsName && !plan_.inputs.empty();
  }

  void take_input_condition(std::uint32_t i, const DraftCondition& written) {
    const auto names = input_names();
    const std::string& key = written.condition.key;
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      return problems_.add(written.node.path, "there is no input " + excerpt(key) + did_you_mean(key, names));
    }
    FlowCondition condition = written.condition;
    condition.of_input = true;
    plan_.nodes[i].when.push_back(condition);
  }

  void take_condition(std::uint32_t i, const DraftCondition& written) {
    if (is_of_input(written)) return take_input_condition(i, written);
    const auto found = index_.find(written.node.name);
    if (found == index_.end() || found->second == i) return;  // rejected before
    if (!written.is_ordered_before) {
      problems_.add(
          written.node.path,
          excerpt(written.node.name) + " does not run before this node: name it, or a node that needs it, in needs");
      return;
    }
    const std::string& key = written.condition.key;
    if (plan_.nodes[found->second].kind == NodeKind::each && key != "count" && key != "$status") {
      return problems_.add(
          written.node.path,
          excerpt(written.node.name) +
              " is a node with each: it has only count and $status; read its results in a job that needs it");
    }
    if (!key.starts_with('$')) plan_.nodes[written.condition.node].watched.push_back(key);
    plan_.nodes[i].when.push_back(written.condition);
  }

  FlowPlan& plan_;
  std::vector<DraftNode> drafts_;
  Problems& problems_;
  std::unordered_map<std::string, std::uint32_t> index_;
  std::vector<std::string_view> names_;
  std::unordered_set<std::uint32_t> routed_;
  std::unordered_map<std::uint32_t, std::uint32_t> compensates_;  // compensation -> the node that it compensates
};

}  // namespace

void link(FlowPlan& plan, std::vector<DraftNode> drafts, Problems& problems) {
  PlanLinker(plan, std::move(drafts), problems).run();
}

// Nodes for the elements of a list: the fields `each` and `max`.

std::optional<std::vector<std::string>> elements_of(const json& value) {
  if (!value.is_structured()) return std::nullopt;
  std::vector<std::string> elements;
  elements.reserve(value.size());
  if (value.is_array()) {
    for (const json& each : value) elements.push_back(dump_json(each));
  } else {
    for (const auto& item : value.items())
      elements.push_back(dump_json({{"key", item.key()}, {"value", item.value()}}));
  }
  return elements;
}

void read_each(const JsonPath& at, DraftNode& draft, int) {
  DraftEach each = draft.each.value_or(DraftEach{});
  each.path = at.path;
  if (const auto* text = at.value.get_ptr<const std::string*>()) {
    const std::size_t dot = std::min(text->find('.'), text->size());
    each.from = {text->substr(0, dot), at.path};
    each.key = text->substr(std::min(dot + 1, text->size()));
    if (each.from.name.empty() || each.key.empty() || each.key.front() == '$') {
      at.report_problem(excerpt(*text) + " is not NODE.KEY, a list in a result, and not inputs.NAME");
      each.from = {};
    }
  } else if (auto elements = elements_of(at.value)) {
    each.elements = std::move(*elements);
  } else {
    at.report_wrong_type("a list, a map, inputs.NAME or NODE.KEY");
  }
  draft.each = std::move(each);
}

void read_max(const JsonPath& at, DraftNode& draft, int) {
  std::int64_t number = 0;
  if (!read_whole(at, 1, kMaxEach, number)) return;
  DraftEach each = draft.each.value_or(DraftEach{});
  each.max = static_cast<std::uint32_t>(number);
  each.max_path = at.path;
  draft.each = std::move(each);
}

}  // namespace plans

namespace {

PlanNode place_of(const PlanNode& group, std::uint32_t at, std::uint32_t element) {
  PlanNode place;
  place.name = group.name + '[' + std::to_string(element) + ']';
  place.kind = NodeKind::job;
  place.needs = {at};
  place.each = at;
  place.on_error = group.on_error;
  place.error_node = group.error_node;
  place.irreversible = group.irreversible;
  place.supervisor_url = group.supervisor_url;
  place.job.name = place.name;
  return place;
}

}  // namespace

void make_elements(FlowPlan& plan) {
  std::vector<PlanNode> old = std::move(plan.nodes);
  std::vector<std::uint32_t> to(old.size());
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < old.size(); ++i) {
    to[i] = count;
    count += 1 + old[i].places;
  }
  plan.nodes.clear();
  plan.nodes.reserve(count);
  for (std::size_t i = 0; i < old.size(); ++i) {
    PlanNode node = old[i];
    node.dependents.clear();
    node.needs.clear();
    for (const std::uint32_t need : old[i].needs) {
      for (std::uint32_t k = 0; k <= old[need].places; ++k) node.needs.push_back(to[need] + k);
    }
    for (FlowCondition& condition : node.when) {
      if (!condition.of_input) condition.node = to[condition.node];
    }
    if (node.from) node.from->node = to[node.from->node];
    if (node.error_node) node.error_node = to[*node.error_node];
    if (node.compensation) node.compensation = to[*node.compensation];
    const std::uint32_t at = to[i];
    plan.nodes.push_back(std::move(node));
    for (std::uint32_t k = 0; k < old[i].places; ++k) plan.nodes.push_back(place_of(plan.nodes[at], at, k));
    // Only the places have irreversible effects, not the node of kind each.
    if (old[i].kind == NodeKind::each) plan.nodes[at].irreversible = false;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    for (const std::uint32_t need : plan.nodes[i].needs) plan.nodes[need].dependents.push_back(i);
  }
}

std::size_t FlowPlan::static_node_count() const {
  return static_cast<std::size_t>(std::count_if(
      nodes.begin(), nodes.end(), [this](const PlanNode& node) { return !node.each || !nodes[*node.each].from; }));
}

// The definition of existing jobs: their records and the additions in `nodes`.

namespace {

using nlohmann::json;

constexpr std::string_view kAdded[] = {"when",         "on_error",       "compensate",
                                       "irreversible", "supervisor_url", "gate_timeout"};

// Returns names by job id: the job's own name if it is valid and unique, otherwise job<id>.
std::map<Id, std::string> names_of(const std::vector<Job>& jobs) {
  std::map<std::string_view, int> uses;
  for (const Job& job : jobs) ++uses[job.name];
  std::map<Id, std::string> names;
  for (const Job& job : jobs) {
    const bool own = plans::is_node_name(job.name) && uses[job.name] == 1;
    names[job.id] = own ? job.name : "job" + std::to_string(job.id);
  }
  return names;
}

std::optional<Id> id_of(std::string_view text) {
  std::uint64_t id = 0;
  if (!parse_u64(text, id) || id == 0 || id > UINT32_MAX) return std::nullopt;
  return static_cast<Id>(id);
}

// Finds a job by id or name. Error not_found: names the text.
Result<Id> job_of(const std::string& text, const std::map<Id, std::string>& names) {
  if (const auto id = id_of(text); id && names.contains(*id)) return *id;
  std::vector<std::string_view> known;
  for (const auto& [id, name] : names) {
    if (name == text) return id;
    known.push_back(name);
  }
  return fail(Code::invalid,
              excerpt(text) + " is not the id or name of a job of this flow" + did_you_mean(text, known));
}

std::string in_ms(std::uint64_t ms) { return std::to_string(ms) + "ms"; }

Result<json> node_of(const Job& job, const std::map<Id, std::string>& names) {
  json node = {{"name", names.at(job.id)}, {"script", job.script}, {"type", job.script_type}};
  if (job.timeout) node["timeout"] = std::to_string(*job.timeout) + "s";
  if (job.retries != 0) node["retries"] = job.retries;
  if (!job.env_vars.empty()) node["env"] = job.env_vars;
  if (!job.prerequisites.empty()) node["prerequisites"] = job.prerequisites;
  if (job.priority != 0) node["priority"] = job.priority;
  if (job.queue_timeout_ms != 0) node["queue_timeout"] = in_ms(job.queue_timeout_ms);
  if (!job.concurrency_key.empty()) node["concurrency_key"] = job.concurrency_key;
  if (job.concurrency_limit != 0) node["concurrency_limit"] = job.concurrency_limit;
  const std::string where = "job " + std::to_string(job.id) + ": ";
  if (!job.notify.empty()) {
    auto notify = parse_json(job.notify);
    node["notify"] = notify ? std::move(*notify) : json(job.notify);  // a URL alone is valid
  }
  if (!job.policy.empty()) {
    auto policy = parse_json(job.policy);
    if (!policy) return fail(policy.error(), where + "policy");
    node["policy"] = std::move(*policy);
  }
  for (Id need : job.dependends) {
    const auto found = names.find(need);
    if (found == names.end()) {
      return fail(Code::invalid, where + "dependends: " + std::to_string(need) +
                                     " is not a job of this flow: add it, or remove it from dependends");
    }
    node["needs"].push_back(found->second);
  }
  for (const std::string& input : job.inputs) {
    const std::size_t slash = std::min(input.find('/'), input.size());
    const auto id = id_of(input.substr(0, slash));
    const bool known = id && names.contains(*id);
    node["inputs"].push_back(known ? names.at(*id) + input.substr(slash) : input);
  }
  return node;
}

// In on_error, compensate and conditions, a job may be named by its id.
Result<json> added_value(std::string_view field, const json& value, const std::map<Id, std::string>& names) {
  const auto* text = value.get_ptr<const std::string*>();
  if (field == "on_error" || field == "compensate") {
    if (value.is_number_unsigned() || (text && id_of(*text))) {
      MJ_TRY(id, job_of(text ? *text : dump_json(value), names));
      return json(names.at(id));
    }
    return value;
  }
  if (field != "when") return value;
  json conditions = value.is_array() ? value : json::array({value});
  for (json& condition : conditions) {
    if (!condition.is_object() || !condition.contains("key") || !condition["key"].is_string()) continue;
    const std::string key = condition["key"].get<std::string>();
    const std::size_t dot = std::min(key.find('.'), key.size());
    if (!id_of(key.substr(0, dot))) continue;
    MJ_TRY(id, job_of(key.substr(0, dot), names));
    condition["key"] = names.at(id) + key.substr(dot);
  }
  return conditions;
}

Result<void> add(const json& more, json& node, const std::map<Id, std::string>& names) {
  if (!more.is_object()) return fail(Code::invalid, "is not a map of fields");
  for (const auto& item : more.items()) {
    if (item.key() == "id" || item.key() == "name") continue;
    if (std::find(std::begin(kAdded), std::end(kAdded), item.key()) == std::end(kAdded)) {
      return fail(Code::invalid, excerpt(item.key()) +
                                     " is a field of the job's record; allowed are when, on_error, compensate, "
                                     "irreversible, supervisor_url and gate_timeout" +
                                     did_you_mean(item.key(), kAdded));
    }
    auto value = added_value(item.key(), item.value(), names);
    if (!value) return fail(value.error(), item.key());
    node[item.key()] = std::move(*value);
  }
  return {};
}

}  // namespace

// `nodes` is a map by job id or name, or a list of maps with an id or name.
Result<json> definition_of_jobs(const std::string& name, const TextMap& env_vars, const std::vector<Job>& jobs,
                                const json& nodes) {
  if (jobs.empty()) return fail(Code::invalid, "jobs: is empty: give the flow at least one");
  const std::map<Id, std::string> names = names_of(jobs);
  if (names.size() != jobs.size()) return fail(Code::invalid, "jobs: a job is listed twice");
  json list = json::array();
  std::map<Id, std::size_t> places;
  for (const Job& job : jobs) {
    MJ_TRY(node, node_of(job, names));
    places[job.id] = list.size();
    list.push_back(std::move(node));
  }
  std::set<Id> seen;
  const auto add_to = [&](const std::string& which, const json& more, const std::string& path) -> Result<void> {
    auto id = job_of(which, names);
    if (!id) return fail(id.error(), path);
    if (!seen.insert(*id).second) return fail(Code::invalid, path + ": job " + std::to_string(*id) + " is named twice");
    if (auto added = add(more, list[places[*id]], names); !added) return fail(added.error(), path);
    return {};
  };
  if (nodes.is_object()) {
    for (const auto& item : nodes.items()) MJ_CHECK(add_to(item.key(), item.value(), "nodes." + excerpt(item.key())));
  } else if (nodes.is_array()) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::string path = "nodes[" + std::to_string(i) + "]";
      const json& more = nodes[i];
      const char* by = more.is_object() && more.contains("id") ? "id" : "name";
      if (!more.is_object() || !more.contains(by) || more[by].is_structured()) {
        return fail(Code::invalid, path + ": is not a map with the id or name of its job");
      }
      const auto* text = more[by].get_ptr<const std::string*>();
      MJ_CHECK(add_to(text ? *text : dump_json(more[by]), more, path));
    }
  } else if (!nodes.is_null()) {
    return fail(Code::invalid, "nodes: is neither a map nor a list");
  }
  json definition = {{"name", name.empty() ? "flow" : name}, {"jobs", std::move(list)}};
  if (!env_vars.empty()) definition["env"] = env_vars;
  return definition;
}

namespace plans {
namespace {

constexpr std::int64_t kMaxParallel = 1000000;

bool is_flow_name(std::string_view name) {
  const auto plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
  const auto any = [&](char c) { return plain(c) || c == '.' || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= 128 && plain(name.front()) && std::all_of(name.begin(), name.end(), any);
}

void read_name(const JsonPath& at, FlowPlan& plan) {
  if (!read_text(at, plan.name) || is_flow_name(plan.name)) return;
  at.report_problem(
      excerpt(plan.name) +
      " is not a valid name of a flow: use 1 to 128 letters, digits, '.', '_' and '-', with a letter or digit first");
}

void read_on_error(const JsonPath& at, FlowPlan& plan) {
  std::string word;
  if (!read_text(at, word)) return;
  if (word != "stop" && word != "continue") {
    at.report_problem(excerpt(word) + " is neither stop nor continue (only a job can route its error to a node)");
  }
  plan.on_error = word == "continue" ? OnError::go_on : OnError::stop;
}

void read_max_parallel(const JsonPath& at, FlowPlan& plan) {
  std::int64_t number = 0;
  if (read_whole(at, 0, kMaxParallel, number)) plan.max_parallel = static_cast<std::uint32_t>(number);
}

struct FlowField {
  std::string_view name;
  void (*read)(const JsonPath&, FlowPlan&);
  std::string_view takes, meaning;
};
const std::array<FlowField, 10>& flow_fields() {
  static const std::array<FlowField, 10> kFields{{
      {"name", read_name, "text", "name of the flow in lists; required"},
      {"env", [](const JsonPath& at, FlowPlan& plan) { read_map(at, plan.env_vars); }, "map",
       "environment of every job; the job's own values have priority"},
      {"on_error", read_on_error, "stop, continue",
       "effect of a failed node on the flow, unless the node sets its own; default stop"},
      {"timeout", [](const JsonPath& at, FlowPlan& plan) { read_duration(at, plan.timeout_ms); }, "duration",
       "of the whole flow, from its start; then it is cancelled, with the detail timeout"},
      {"max_parallel", read_max_parallel, "number", "jobs in flight at one time; default 0: any number"},
      {"notify", [](const JsonPath& at, FlowPlan& plan) { read_notify_field(at, plan.notify); },
       "url, map, list of both", "receivers of the notification of the flow's end: webhook, job or topic"},
      {"inputs", [](const JsonPath&, FlowPlan&) {}, "map", "values that are given at the start, by name"},
      {"given", [](const JsonPath&, FlowPlan&) {}, "map", "default values of inputs"},
      {"defaults", [](const JsonPath&, FlowPlan&) {}, "map", "fields of every job that does not have them"},
      {"jobs", [](const JsonPath&, FlowPlan&) {}, "map, or list of maps that give their name", "the nodes; required"},
  }};
  return kFields;
}

void read_flow_fields(const JsonPath& at, FlowPlan& plan) {
  for (const auto& item : at.value.items()) {
    const auto& fields = flow_fields();
    const auto* field =
        std::find_if(fields.begin(), fields.end(), [&](const FlowField& each) { return each.name == item.key(); });
    if (field != fields.end()) {
      field->read(at.at(item.value(), item.key()), plan);
      continue;
    }
    std::vector<std::string_view> names;
    for (const FlowField& each : fields) names.push_back(each.name);
    const std::string_view meant = resolve_node_name(item.key());
    at.at(item.value(), item.key())
        .report_problem("unknown field of a flow" +
                        (meant == "env" ? "; did you mean \"env\"?" : did_you_mean(item.key(), names)));
  }
}

// Reads the nodes in the order of a list. A map has no order, so its nodes are ordered by name.
std::vector<DraftNode> read_nodes(const JsonPath& jobs, int depth, const json& defaults) {
  std::vector<DraftNode> drafts;
  if (jobs.value.is_object()) {
    for (const auto& item : jobs.value.items())
      drafts.push_back(read_node(jobs.at(item.value(), item.key()), item.key(), false, depth, defaults));
    return drafts;
  }
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < jobs.value.size(); ++i) {
    const JsonPath at = jobs.at(jobs.value[i], i);
    const auto name = at.value.is_object() ? at.value.find("name") : at.value.end();
    std::string text;
    if (!at.value.is_object() || name == at.value.end()) {
      at.report_problem("is not a map with its name");
    } else if (read_text(at.at(*name, "name"), text)) {
      if (names.insert(text).second) {
        drafts.push_back(read_node(at, text, true, depth, defaults));
      } else {
        at.at(*name, "name").report_problem("a node before has the name " + excerpt(text) + " too: rename one");
      }
    }
  }
  return drafts;
}

void read_jobs(const JsonPath& root, FlowPlan& plan, int depth) {
  const auto found = root.value.find("jobs");
  if (found == root.value.end()) return root.report_problem("jobs: is missing: give the flow at least one");
  const JsonPath jobs = root.at(*found, "jobs");
  if (!found->is_structured()) {
    jobs.report_wrong_type("a map of jobs by name");
    return;
  }
  if (found->empty()) return jobs.report_problem("is empty: give the flow at least one");
  if (found->size() > kMaxFlowNodes) {
    return jobs.report_problem(std::to_string(found->size()) + " nodes are more than " + std::to_string(kMaxFlowNodes) +
                               ": divide them into child flows");
  }
  static const json kNoDefaults = json::object();
  const auto defaults = root.value.find("defaults");
  const bool there = defaults != root.value.end();
  if (there) check_defaults(root.at(*defaults, "defaults"));
  link(plan, read_nodes(jobs, depth, there && defaults->is_object() ? *defaults : kNoDefaults), root.problems);
}

}  // namespace

FlowPlan read_flow(const JsonPath& root, int depth) {
  FlowPlan plan;
  if (!root.value.is_object()) {
    root.report_wrong_type("a map with a name and jobs");
    return plan;
  }
  read_flow_fields(root, plan);
  if (!root.value.contains("name")) root.report_problem("name: is missing: give the flow one");
  read_inputs(root, plan);
  read_jobs(root, plan, depth);
  return plan;
}

}  // namespace plans

ParsedPlan read_plan(const nlohmann::json& definition) {
  plans::Problems problems;
  FlowPlan plan = plans::read_flow({definition, "", problems}, 0);
  if (problems.empty()) {
    plan.canonical = dump_json(definition);
    if (plan.canonical.size() > kMaxDefinitionBytes) {
      problems.add("", std::to_string(plan.canonical.size()) + " bytes are more than the " +
                           std::to_string(kMaxDefinitionBytes) + " that a definition may have");
    }
  }
  if (!problems.empty()) return {std::nullopt, problems.take_problems()};
  plan.hash = sha256_hex(plan.canonical);
  return {std::move(plan), {}};
}

Result<FlowPlan> plan_of_text(std::string_view canonical, std::string_view hash) {
  if (sha256_hex(canonical) != hash) {
    return fail(Code::invalid, "definition " + excerpt(hash, 64) +
                                   ": its text has another hash: it was changed or cut off in the store; start the "
                                   "flow again from its file");
  }
  MJ_TRY(parsed, parse_json(canonical, kMaxDefinitionBytes));
  ParsedPlan read = read_plan(parsed);
  if (!read.plan) return fail(Code::invalid, "definition " + std::string(hash) + ": " + join(read.problems));
  return std::move(*read.plan);
}

std::optional<std::uint32_t> FlowPlan::find(std::string_view wanted) const {
  const auto found =
      std::find_if(nodes.begin(), nodes.end(), [&](const PlanNode& node) { return node.name == wanted; });
  if (found == nodes.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - nodes.begin());
}

std::string_view to_string(NodeKind kind) {
  static constexpr std::array<std::string_view, 7> kWords{"job", "log", "wait", "pause", "approval", "flow", "each"};
  return kWords[static_cast<std::size_t>(kind)];
}

std::string join(const std::vector<PlanProblem>& problems) {
  std::string out;
  for (const PlanProblem& problem : problems) {
    if (!out.empty()) out += '\n';
    if (problem.line != 0) {
      out += "line " + std::to_string(problem.line) + ", column " + std::to_string(problem.column) + ": ";
    }
    // A path may contain names that were chosen to disturb a terminal.
    const std::string path = ascii(problem.path, 200);
    out += path + (path.empty() ? "" : ": ") + problem.message;
  }
  return out;
}

std::vector<PlanField> plan_fields() {
  std::vector<PlanField> rows;
  for (const auto& field : plans::flow_fields()) rows.push_back({"flow", field.name, field.takes, field.meaning});
  for (const auto& field : plans::node_fields()) rows.push_back({"node", field.name, field.takes, field.meaning});
  return rows;
}

namespace {

using Test = FlowCondition::Test;

std::string_view word_of(Test test) {
  switch (test) {
    case Test::equals:
      return "equals";
    case Test::greater_than:
      return "greater_than";
    case Test::less_than:
      return "less_than";
    case Test::exists:
      break;
  }
  return "exists";
}

template <class Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Returns whether the text is a number as JSON spells it: 1, 1.0 and 1e0 are numbers; 007 is a text.
bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789+-.eE") == std::string_view::npos && is_json(text);
}

std::optional<double> finite(std::string_view text) {
  const auto number = number_of<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

// A decimal text as the exact value 0.DIGITS x 10^exponent. DIGITS has no zeros at either end, and is empty for zero.
struct Decimal {
  bool is_negative = false;
  std::string digits;
  std::int64_t exponent = 0;
};

// REQUIRES: finite(text).
Decimal decimal_of(std::string_view text) {
  Decimal out;
  out.is_negative = text.starts_with('-');
  if (out.is_negative) text.remove_prefix(1);
  if (const std::size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    const std::size_t digits = text.find_first_not_of('+', e + 1);
    out.exponent = number_of<std::int64_t>(text.substr(digits)).value_or(0);
    text = text.substr(0, e);
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  out.exponent += static_cast<std::int64_t>(point);
  out.digits = text.substr(0, point);
  out.digits += text.substr(std::min(point + 1, text.size()));
  out.digits.erase(out.digits.find_last_not_of('0') + 1);
  const std::size_t zeros = out.digits.find_first_not_of('0');
  if (zeros == std::string::npos) return {};
  out.digits.erase(0, zeros);
  out.exponent -= static_cast<std::int64_t>(zeros);
  return out;
}

// Returns a negative number, 0 or a positive number, or no value if a text is not a number. The comparison is exact;
// doubles could round two different numbers to the same value.
std::optional<int> compare(std::string_view a, std::string_view b) {
  if (!finite(a) || !finite(b)) return std::nullopt;
  const Decimal left = decimal_of(a), right = decimal_of(b);
  const auto sign = [](const Decimal& number) { return number.digits.empty() ? 0 : number.is_negative ? -1 : 1; };
  if (sign(left) != sign(right)) return sign(left) < sign(right) ? -1 : 1;
  const auto magnitude = [](const Decimal& number) { return std::tie(number.exponent, number.digits); };
  if (magnitude(left) == magnitude(right)) return 0;
  return (magnitude(left) < magnitude(right)) == (sign(left) > 0) ? -1 : 1;
}

}  // namespace

std::string describe(const FlowCondition& condition, std::string_view node_name) {
  const bool text = condition.test == Test::equals;
  if (condition.of_input) node_name = kInputsName;
  return std::string(node_name) + '.' + condition.key + ' ' + std::string(word_of(condition.test)) + ' ' +
         (text ? excerpt(condition.value) : condition.value);
}

bool holds(const FlowCondition& condition, std::string_view node_name, const TextMap& values, std::string& why_not) {
  if (condition.of_input) node_name = kInputsName;
  const std::string what = std::string(node_name) + '.' + condition.key;
  const auto found = values.find(condition.key);
  const bool there = found != values.end();
  if (condition.test == Test::exists) {
    if (there == (condition.value == "true")) return true;
    why_not = what + (there ? " exists" : " is absent");
    return false;
  }
  if (!there) {
    why_not = what + " is absent";
    return false;
  }
  const std::string& value = found->second;
  if (condition.test == Test::equals) {
    if (value == condition.value) return true;
    if (is_number(value) && is_number(condition.value) && compare(value, condition.value) == 0) return true;
    why_not = what + " is " + excerpt(value) + ", not " + excerpt(condition.value);
    return false;
  }
  const bool greater = condition.test == Test::greater_than;
  const auto order = compare(value, condition.value);
  if (order && (greater ? *order > 0 : *order < 0)) return true;
  why_not = what + " is " + excerpt(value) + ", not " +
            (order ? (greater ? "greater than " : "less than ") + condition.value : std::string("a number"));
  return false;
}

}  // namespace mycojobs
