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
#include "model/result_references.h"
#include "model/submitted_files.h"
#include "text/json.h"
#include "text/suggestion.h"
#include "text/utf8.h"

namespace mycojobs {

// Topological order of the nodes of a plan, and its cycles.

namespace plans {

namespace {

constexpr std::size_t kMaxCycles = 10;      // cycles that are reported
constexpr std::size_t kMaxShownNames = 12;  // names shown per cycle
// Limit of the search for the shortest cycle. A search that reaches it returns the shortest cycle found so far.
constexpr std::size_t kMaxSearchSteps = 20'000'000;
constexpr std::uint32_t kNeverVisited = UINT32_MAX;

// Kahn's algorithm. successors_[i] has the nodes that can start only after i: its dependents and its error node.
class TopologicalOrder {
 public:
  explicit TopologicalOrder(const FlowPlan& plan)
      : successors_(plan.nodes.size()), open_predecessors_(plan.nodes.size()), removed_(plan.nodes.size()) {
    for (std::uint32_t i = 0; i < plan.nodes.size(); ++i) {
      successors_[i] = plan.nodes[i].dependents;
      if (plan.nodes[i].error_node) successors_[i].push_back(*plan.nodes[i].error_node);
    }
    for (const auto& list : successors_) {
      for (std::uint32_t successor : list) ++open_predecessors_[successor];
    }
    for (std::uint32_t i = 0; i < successors_.size(); ++i) {
      if (open_predecessors_[i] == 0) ready_.push_back(i);
    }
    process_ready();
  }
  const std::vector<std::uint32_t>& order() const { return order_; }

  // Returns a shortest cycle of the remaining nodes and removes its nodes, or returns an empty list.
  std::vector<std::uint32_t> remove_cycle() {
    std::vector<std::uint32_t> shortest;
    steps_ = 0;
    for (std::uint32_t i = 0; i < successors_.size() && steps_ < kMaxSearchSteps; ++i) {
      if (removed_[i]) continue;
      std::vector<std::uint32_t> match =
          find_shortest_cycle(i, shortest.empty() ? successors_.size() : shortest.size() - 1);
      if (!match.empty()) shortest = std::move(match);
      if (shortest.size() == 2) break;  // the shortest possible cycle: a node that needs itself was rejected before
    }
    for (std::uint32_t i : shortest) {
      if (!removed_[i]) remove_node(i);
    }
    process_ready();
    return shortest;
  }

 private:
  void remove_node(std::uint32_t i) {
    removed_[i] = true;
    for (std::uint32_t successor : successors_[i]) {
      if (--open_predecessors_[successor] == 0 && !removed_[successor]) ready_.push_back(successor);
    }
  }
  void process_ready() {
    while (!ready_.empty()) {
      const std::uint32_t i = ready_.front();
      ready_.pop_front();
      if (removed_[i]) continue;
      order_.push_back(i);
      remove_node(i);
    }
  }

  // Searches breadth-first for a cycle through i with at most `max_length` nodes.
  std::vector<std::uint32_t> find_shortest_cycle(std::uint32_t i, std::size_t max_length) {
    if (previous_.size() != successors_.size()) {
      previous_.resize(successors_.size());
      visited_in_.assign(successors_.size(), kNeverVisited);
    }
    ++search_;
    std::vector<std::uint32_t> frontier{i};
    for (std::size_t length = 1; length <= max_length && !frontier.empty() && steps_ < kMaxSearchSteps; ++length) {
      std::vector<std::uint32_t> next_frontier;
      for (std::uint32_t current : frontier) {
        for (std::uint32_t successor : successors_[current]) {
          ++steps_;
          if (successor == i) return trace_cycle(i, current);
          if (removed_[successor] || visited_in_[successor] == search_) continue;
          visited_in_[successor] = search_;
          previous_[successor] = current;
          next_frontier.push_back(successor);
        }
      }
      frontier = std::move(next_frontier);
    }
    return {};
  }
  std::vector<std::uint32_t> trace_cycle(std::uint32_t first, std::uint32_t last) const {
    std::vector<std::uint32_t> cycle{last};
    while (last != first) cycle.push_back(last = previous_[last]);
    std::reverse(cycle.begin(), cycle.end());
    return cycle;
  }

  std::vector<std::vector<std::uint32_t>> successors_;
  std::vector<std::uint32_t> open_predecessors_;
  std::vector<bool> removed_;
  std::deque<std::uint32_t> ready_;
  std::vector<std::uint32_t> order_;
  std::vector<std::uint32_t> previous_, visited_in_;
  std::uint32_t search_ = 0;
  std::size_t steps_ = 0;
};

std::string format_cycle(const FlowPlan& plan, const std::vector<std::uint32_t>& cycle) {
  std::string out;
  const std::size_t count = cycle.size() > kMaxShownNames ? kMaxShownNames - 1 : cycle.size();
  for (std::size_t i = 0; i < count; ++i) out += plan.nodes[cycle[i]].name + " -> ";
  if (count < cycle.size()) out += "(" + std::to_string(cycle.size() - count) + " more) -> ";
  return out + plan.nodes[cycle.front()].name;
}

}  // namespace

std::vector<std::uint32_t> sort_topologically(const FlowPlan& plan, const std::vector<DraftNode>& drafts,
                                              DocumentProblems& problems) {
  TopologicalOrder order(plan);
  const std::vector<std::uint32_t> sorted = order.order();
  if (sorted.size() == plan.nodes.size()) return sorted;
  for (std::size_t i = 0; i < kMaxCycles; ++i) {
    const auto cycle = order.remove_cycle();
    if (cycle.empty()) break;
    // The nodes of the cycle wait for each other; the second node needs the first.
    const std::uint32_t reported = cycle[cycle.size() > 1 ? 1 : 0];
    const bool has_needs = !plan.nodes[reported].needs.empty();
    problems.add(drafts[reported].path + (has_needs ? ".needs" : ""),
                 "a cycle of nodes that can never start: " + format_cycle(plan, cycle));
  }
  return sorted;
}

// The linker of drafts: resolves names to indexes, and rejects plans that cannot work.

namespace {

constexpr std::size_t kMaxNeeds = 10000;  // per node; the same as the limit of dependencies of a job

class PlanLinker {
 public:
  PlanLinker(FlowPlan& plan, std::vector<DraftNode> drafts, DocumentProblems& problems)
      : plan_(plan), drafts_(std::move(drafts)), problems_(problems) {}

  void run() {
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      if (drafts_[i].node.name == kInputsName && !plan_.inputs.empty())
        problems_.add(drafts_[i].path, "the name \"inputs\" means the flow's inputs here: choose another");
      names_.push_back(index_.emplace(drafts_[i].node.name, static_cast<std::uint32_t>(i)).first->first);
    }
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) link_elements(i);
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) link_needs(i);
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) link_called_nodes(i);
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) check_called_node(i);
    check_gates();
    for (DraftNode& draft : drafts_) plan_.nodes.push_back(std::move(draft.node));
    for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
      for (std::uint32_t need : plan_.nodes[i].needs) plan_.nodes[need].dependents.push_back(i);
    }
    const std::vector<std::uint32_t> order = sort_topologically(plan_, drafts_, problems_);
    if (order.size() == plan_.nodes.size()) link_conditions(order);
    check_node_counts();
    if (problems_.empty()) expand_each_nodes(plan_);
  }

 private:
  PlanNode& node(std::uint32_t i) { return drafts_[i].node; }

  std::optional<std::uint32_t> resolve(const NodeReference& reference, std::uint32_t referrer, std::string_view role) {
    const auto match = index_.find(reference.name);
    if (match == index_.end()) {
      if (!problems_.is_full()) {
        problems_.add(reference.path,
                      "there is no node " + excerpt(reference.name) + did_you_mean(reference.name, names_));
      }
      return std::nullopt;
    }
    if (match->second == referrer) {
      problems_.add(reference.path,
                    excerpt(reference.name) + " is the node itself: it cannot be its own " + std::string(role));
      return std::nullopt;
    }
    return match->second;
  }

  // Resolves the source and the number of the elements.
  void link_elements(std::uint32_t index) {
    if (!drafts_[index].each) return;
    DraftEach& draft_each = *drafts_[index].each;
    PlanNode& each_node = node(index);
    if (draft_each.path.empty())
      return problems_.add(draft_each.max_path, "belongs to each: also name the list from which the nodes are created");
    if (draft_each.source.name == kInputsName && !plan_.inputs.empty()) {
      read_input_elements(draft_each);
    } else if (!draft_each.source.name.empty()) {
      each_node.max_elements = draft_each.max.value_or(kDefaultMaxElements);
      return link_element_source(index, draft_each);
    }
    const std::uint32_t max = draft_each.max.value_or(kMaxElements);
    if (draft_each.elements.size() > max) {
      problems_.add(draft_each.path, "has " + std::to_string(draft_each.elements.size()) + " elements, more than " +
                                         (draft_each.max ? "its max of " : "the ") + std::to_string(max));
    }
    for (std::size_t element_index = 0; element_index < draft_each.elements.size(); ++element_index) {
      if (draft_each.elements[element_index].size() <= kMaxElementBytes) continue;
      problems_.add(draft_each.path + '[' + std::to_string(element_index) + ']',
                    "is longer than " + std::to_string(kMaxElementBytes) + " bytes");
    }
    each_node.max_elements =
        static_cast<std::uint32_t>(std::min<std::size_t>(draft_each.elements.size(), kMaxElements));
    each_node.elements = std::move(draft_each.elements);
  }

  void read_input_elements(DraftEach& draft_each) {
    const auto input = std::find_if(plan_.inputs.begin(), plan_.inputs.end(),
                                    [&](const FlowInput& declared) { return declared.name == draft_each.key; });
    if (input == plan_.inputs.end()) {
      problems_.add(draft_each.path,
                    "there is no input " + excerpt(draft_each.key) + did_you_mean(draft_each.key, input_names()));
    } else if (input->type != "list" && input->type != "object") {
      if (!input->type.empty())
        problems_.add(draft_each.path,
                      "the input " + draft_each.key + " is of type " + input->type + ", not list or object");
    } else if (const auto value = plan_.values.find(draft_each.key); value != plan_.values.end()) {
      const auto parsed = parse_json(value->second);
      if (parsed) draft_each.elements = split_elements(*parsed).value_or(std::vector<std::string>());
    }
  }

  // The source of the elements comes before the node, whether or not `needs` names it.
  void link_element_source(std::uint32_t index, const DraftEach& draft_each) {
    const auto match = resolve(draft_each.source, index, "list");
    if (!match) return;
    if (drafts_[*match].each) {
      return problems_.add(draft_each.path,
                           excerpt(draft_each.source.name) +
                               " is a node for each of a list itself: make the list in a job that needs it");
    }
    node(index).element_source = EachSource{*match, draft_each.key};
    node(*match).watched_keys.push_back(draft_each.key);
    auto& needs = drafts_[index].needs;
    const bool is_listed = std::any_of(needs.begin(), needs.end(),
                                       [&](const NodeReference& need) { return need.name == draft_each.source.name; });
    if (!is_listed) needs.push_back(draft_each.source);
  }

  std::vector<std::string_view> input_names() const {
    std::vector<std::string_view> names;
    for (const FlowInput& input : plan_.inputs) names.push_back(input.name);
    return names;
  }

  // Checks the number of nodes for the largest possible number of elements.
  void check_node_counts() {
    std::size_t total = 0;
    for (const PlanNode& plan_node : plan_.nodes) total += 1 + plan_node.max_elements;
    if (total > kMaxFlowNodes) {
      problems_.add("jobs", std::to_string(total) + " nodes, including the nodes that each can create, are more than " +
                                std::to_string(kMaxFlowNodes) + ": give smaller max, or divide them into child flows");
    }
    for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
      std::size_t needs = 0;
      for (const std::uint32_t need : plan_.nodes[i].needs) needs += 1 + plan_.nodes[need].max_elements;
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
    std::unordered_set<std::uint32_t> added_needs;
    for (const NodeReference& need : draft.needs) {
      const auto match = resolve(need, i, "need");
      if (!match) continue;
      if (added_needs.insert(*match).second) {
        draft.node.needs.push_back(*match);
      } else {
        problems_.add(need.path, excerpt(need.name) + " is named twice");
      }
    }
    for (const NodeReference& input : draft.inputs) {
      const auto match = index_.find(input.name);
      if (match != index_.end() && added_needs.contains(match->second)) continue;
      problems_.add(input.path,
                    excerpt(input.name) +
                        " is not a node that this node needs: write NODE or NODE/ARTIFACT and name the node in needs");
    }
    for (const DraftReference& reference : draft.references) check_reference(reference, added_needs);
  }

  // A text can name inputs of the flow, and nodes of which the job receives the result.
  void check_reference(const DraftReference& draft, const std::unordered_set<std::uint32_t>& needs) {
    const auto& [source, key] = draft.reference;
    const std::string text = to_string(draft.reference) + ": ";
    if (source == kInputsName && !plan_.inputs.empty()) {
      const auto has_name = [&name = key](const FlowInput& input) { return input.name == name; };
      if (std::none_of(plan_.inputs.begin(), plan_.inputs.end(), has_name))
        problems_.add(draft.path, text + "there is no input " + excerpt(key) + did_you_mean(key, input_names()));
      return;
    }
    const auto match = index_.find(source);
    if (match == index_.end() || !needs.contains(match->second)) {
      problems_.add(draft.path, text + excerpt(source) +
                                    " is not a node that this node needs: name the node in needs; for the text "
                                    "itself write $${");
    } else if (drafts_[match->second].each) {
      problems_.add(draft.path, text + excerpt(source) +
                                    " is a node with each, which has a list of results: read it in the script");
    }
  }

  void link_called_nodes(std::uint32_t i) {
    DraftNode& draft = drafts_[i];
    if (draft.error_node) draft.node.error_node = resolve(*draft.error_node, i, "error node");
    if (!draft.has_on_error) draft.node.on_error = plan_.on_error;
    if (draft.node.error_node) {
      node(*draft.node.error_node).on_call = true;
      error_nodes_.insert(*draft.node.error_node);
    }
    if (draft.compensation) draft.node.compensation = resolve(*draft.compensation, i, "compensation");
    if (!draft.node.compensation) return;
    node(*draft.node.compensation).on_call = true;
    const auto [first, added] = compensated_nodes_.emplace(*draft.node.compensation, i);
    if (!added) {
      problems_.add(draft.compensation->path, excerpt(draft.compensation->name) + " is the compensation of " +
                                                  excerpt(node(first->second).name) +
                                                  " already, and runs only once: give each its own");
    }
  }

  // Error nodes and compensations start when they are called, so they cannot have needs.
  void check_called_node(std::uint32_t i) {
    const DraftNode& draft = drafts_[i];
    const bool is_compensation = compensated_nodes_.contains(i);
    if (draft.each && draft.compensation) {
      problems_.add(
          draft.compensation->path,
          "a node with each cannot have one: add it to a node that needs this node and undo all elements there");
    }
    if (draft.each && draft.node.on_call) {
      problems_.add(draft.each->path, "an error node or compensation runs once: it has no each");
    }
    for (const NodeReference& need : draft.needs) {
      const auto match = index_.find(need.name);
      if (match != index_.end() && compensated_nodes_.contains(match->second)) {
        problems_.add(
            need.path,
            excerpt(need.name) + " is a compensation, which runs only after the flow has failed: no node can need it");
      }
    }
    if (!draft.node.on_call) return;
    const std::string role = is_compensation ? "a compensation" : "an error node";
    if (!draft.needs.empty())
      problems_.add(draft.path + ".needs", role + " runs when it is called: it cannot need nodes");
    if (!draft.conditions.empty())
      problems_.add(draft.path + ".when", role + " runs when it is called: it has no conditions");
    if (!is_compensation) return;
    if (error_nodes_.contains(i)) {
      problems_.add(draft.path, "is an error node and a compensation: make two nodes of it");
    }
    if (draft.node.kind != NodeKind::job && draft.node.kind != NodeKind::log) {
      problems_.add(draft.path,
                    "a compensation is a job or a log line, not " + std::string(to_string(draft.node.kind)));
    }
    if (draft.error_node)
      problems_.add(draft.error_node->path, "a failure of a compensation is recorded and the next compensation runs");
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
        const auto match = index_.find(gate.substr(sizeof "approval:" - 1));
        if (match == index_.end() || node(match->second).kind != NodeKind::approval) continue;
        problems_.add(draft.path + ".prerequisites",
                      gate + ": a node has the same name: need that node, or rename one of them");
      }
    }
  }

  void link_conditions(const std::vector<std::uint32_t>& order) {
    std::unordered_map<std::uint32_t, std::vector<ConditionUse>> uses;
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) {
      for (DraftCondition& each : drafts_[i].conditions) {
        if (reads_input(each)) continue;
        const auto match = resolve(each.node, i, "condition");
        if (!match) continue;
        each.condition.node = *match;
        uses[*match].push_back({i, &each});
      }
    }
    find_predecessors(order, uses);
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) {
      for (DraftCondition& each : drafts_[i].conditions) add_condition(i, each);
    }
    for (PlanNode& each : plan_.nodes) {
      std::sort(each.watched_keys.begin(), each.watched_keys.end());
      each.watched_keys.erase(std::unique(each.watched_keys.begin(), each.watched_keys.end()), each.watched_keys.end());
    }
  }

  struct ConditionUse {
    std::uint32_t node;
    DraftCondition* condition;
  };
  // Sets is_ordered_before of each condition. Each pass handles 64 nodes that conditions read: each of these nodes has
  // a bit, which is propagated along the dependents.
  void find_predecessors(const std::vector<std::uint32_t>& order,
                         std::unordered_map<std::uint32_t, std::vector<ConditionUse>>& uses) {
    std::vector<std::uint64_t> predecessor_bits(plan_.nodes.size());
    std::vector<std::uint64_t> own_bit(plan_.nodes.size());
    for (auto use_it = uses.begin(); use_it != uses.end();) {
      const auto first = use_it;
      std::fill(predecessor_bits.begin(), predecessor_bits.end(), 0);
      std::fill(own_bit.begin(), own_bit.end(), 0);
      for (unsigned bit = 0; bit < 64 && use_it != uses.end(); ++bit, ++use_it) own_bit[use_it->first] = 1ULL << bit;
      for (std::uint32_t i : order) {
        for (std::uint32_t dependent : plan_.nodes[i].dependents)
          predecessor_bits[dependent] |= predecessor_bits[i] | own_bit[i];
      }
      for (auto group = first; group != use_it; ++group) {
        for (ConditionUse& use : group->second)
          use.condition->is_ordered_before = (predecessor_bits[use.node] & own_bit[group->first]) != 0;
      }
    }
  }

  bool reads_input(const DraftCondition& draft) const {
    return draft.node.name == kInputsName && !plan_.inputs.empty();
  }

  void add_input_condition(std::uint32_t i, const DraftCondition& draft) {
    const auto names = input_names();
    const std::string& key = draft.condition.key;
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      return problems_.add(draft.node.path, "there is no input " + excerpt(key) + did_you_mean(key, names));
    }
    FlowCondition condition = draft.condition;
    condition.is_input = true;
    plan_.nodes[i].when.push_back(condition);
  }

  void add_condition(std::uint32_t i, const DraftCondition& draft) {
    if (reads_input(draft)) return add_input_condition(i, draft);
    const auto match = index_.find(draft.node.name);
    if (match == index_.end() || match->second == i) return;  // rejected before
    if (!draft.is_ordered_before) {
      problems_.add(draft.node.path, excerpt(draft.node.name) +
                                         " does not run before this node: name it, or a node that needs it, in needs");
      return;
    }
    const std::string& key = draft.condition.key;
    if (plan_.nodes[match->second].kind == NodeKind::each && key != "count" && key != "$status") {
      return problems_.add(
          draft.node.path,
          excerpt(draft.node.name) +
              " is a node with each: it has only count and $status; read its results in a job that needs it");
    }
    if (!key.starts_with('$')) plan_.nodes[draft.condition.node].watched_keys.push_back(key);
    plan_.nodes[i].when.push_back(draft.condition);
  }

  FlowPlan& plan_;
  std::vector<DraftNode> drafts_;
  DocumentProblems& problems_;
  std::unordered_map<std::string, std::uint32_t> index_;
  std::vector<std::string_view> names_;
  std::unordered_set<std::uint32_t> error_nodes_;
  std::unordered_map<std::uint32_t, std::uint32_t> compensated_nodes_;  // compensation -> the node that it compensates
};

}  // namespace

void link_plan(FlowPlan& plan, std::vector<DraftNode> drafts, DocumentProblems& problems) {
  PlanLinker(plan, std::move(drafts), problems).run();
}

// Nodes for the elements of a list: the fields `each` and `max`.

std::optional<std::vector<std::string>> split_elements(const json& value) {
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

void read_each(const DocumentValue& source, DraftNode& draft, int) {
  DraftEach each = draft.each.value_or(DraftEach{});
  each.path = source.path;
  if (const auto* text = source.value.get_ptr<const std::string*>()) {
    const std::size_t dot = std::min(text->find('.'), text->size());
    each.source = {text->substr(0, dot), source.path};
    each.key = text->substr(std::min(dot + 1, text->size()));
    if (each.source.name.empty() || each.key.empty() || each.key.front() == '$') {
      source.report_problem(excerpt(*text) + " is not NODE.KEY, a list in a result, and not inputs.NAME");
      each.source = {};
    }
  } else if (auto elements = split_elements(source.value)) {
    each.elements = std::move(*elements);
  } else {
    source.report_wrong_type("a list, a map, inputs.NAME or NODE.KEY");
  }
  draft.each = std::move(each);
}

void read_max(const DocumentValue& source, DraftNode& draft, int) {
  std::int64_t number = 0;
  if (!read_integer(source, 1, kMaxElements, number)) return;
  DraftEach each = draft.each.value_or(DraftEach{});
  each.max = static_cast<std::uint32_t>(number);
  each.max_path = source.path;
  draft.each = std::move(each);
}

}  // namespace plans

namespace {

PlanNode make_element_node(const PlanNode& each_node, std::uint32_t each_index, std::uint32_t element) {
  PlanNode element_node;
  element_node.name = each_node.name + '[' + std::to_string(element) + ']';
  element_node.kind = NodeKind::job;
  element_node.needs = {each_index};
  element_node.each_node = each_index;
  element_node.on_error = each_node.on_error;
  element_node.error_node = each_node.error_node;
  element_node.irreversible = each_node.irreversible;
  element_node.supervisor_url = each_node.supervisor_url;
  element_node.job.name = element_node.name;
  return element_node;
}

}  // namespace

void expand_each_nodes(FlowPlan& plan) {
  std::vector<PlanNode> drafts = std::move(plan.nodes);
  std::vector<std::uint32_t> new_index(drafts.size());
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    new_index[i] = count;
    count += 1 + drafts[i].max_elements;
  }
  plan.nodes.clear();
  plan.nodes.reserve(count);
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    PlanNode node = drafts[i];
    node.dependents.clear();
    node.needs.clear();
    for (const std::uint32_t need : drafts[i].needs) {
      for (std::uint32_t k = 0; k <= drafts[need].max_elements; ++k) node.needs.push_back(new_index[need] + k);
    }
    for (FlowCondition& condition : node.when) {
      if (!condition.is_input) condition.node = new_index[condition.node];
    }
    if (node.element_source) node.element_source->node = new_index[node.element_source->node];
    if (node.error_node) node.error_node = new_index[*node.error_node];
    if (node.compensation) node.compensation = new_index[*node.compensation];
    const std::uint32_t index = new_index[i];
    plan.nodes.push_back(std::move(node));
    for (std::uint32_t k = 0; k < drafts[i].max_elements; ++k)
      plan.nodes.push_back(make_element_node(plan.nodes[index], index, k));
    // Only the element nodes have irreversible effects, not the node of kind each.
    if (drafts[i].kind == NodeKind::each) plan.nodes[index].irreversible = false;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    for (const std::uint32_t need : plan.nodes[i].needs) plan.nodes[need].dependents.push_back(i);
  }
}

std::size_t FlowPlan::static_node_count() const {
  return static_cast<std::size_t>(std::count_if(nodes.begin(), nodes.end(), [this](const PlanNode& node) {
    return !node.each_node || !nodes[*node.each_node].element_source;
  }));
}

// The definition of existing jobs: their records and the additions in `nodes`.

namespace {

using nlohmann::json;

constexpr std::string_view kAdditionalFields[] = {"when",         "on_error",       "compensate",
                                                  "irreversible", "supervisor_url", "gate_timeout"};

// Returns names by job id: the job's own name if it is valid and unique, otherwise job<id>.
std::map<Id, std::string> assign_node_names(const std::vector<Job>& jobs) {
  std::map<std::string_view, int> uses;
  for (const Job& job : jobs) ++uses[job.name];
  std::map<Id, std::string> names;
  for (const Job& job : jobs) {
    const bool is_usable = plans::is_node_name(job.name) && uses[job.name] == 1;
    names[job.id] = is_usable ? job.name : "job" + std::to_string(job.id);
  }
  return names;
}

std::optional<Id> parse_job_id(std::string_view text) {
  std::uint64_t id = 0;
  if (!parse_u64(text, id) || id == 0 || id > UINT32_MAX) return std::nullopt;
  return static_cast<Id>(id);
}

// Finds a job by id or name. Error invalid: no job has this id or name; the message names the text.
Result<Id> find_job_id(const std::string& text, const std::map<Id, std::string>& names) {
  if (const auto id = parse_job_id(text); id && names.contains(*id)) return *id;
  std::vector<std::string_view> known_names;
  for (const auto& [id, name] : names) {
    if (name == text) return id;
    known_names.push_back(name);
  }
  return fail(Code::invalid,
              excerpt(text) + " is not the id or name of a job of this flow" + did_you_mean(text, known_names));
}

std::string format_ms(std::uint64_t ms) { return std::to_string(ms) + "ms"; }

Result<json> job_to_node(const Job& job, const std::map<Id, std::string>& names) {
  json node = {{"name", names.at(job.id)}, {"script", job.script}, {"type", job.script_type}};
  if (job.timeout) node["timeout"] = std::to_string(*job.timeout) + "s";
  if (job.retries != 0) node["retries"] = job.retries;
  for (const auto& [variable, value] : job.env_vars) node["env"][variable] = escape_references(value);
  for (const std::string& argument : job.args) node["args"].push_back(escape_references(argument));
  if (!job.prerequisites.empty()) node["prerequisites"] = job.prerequisites;
  if (job.priority != 0) node["priority"] = job.priority;
  if (job.queue_timeout_ms != 0) node["queue_timeout"] = format_ms(job.queue_timeout_ms);
  if (!job.concurrency_key.empty()) node["concurrency_key"] = job.concurrency_key;
  if (job.concurrency_limit != 0) node["concurrency_limit"] = job.concurrency_limit;
  const std::string prefix = "job " + std::to_string(job.id) + ": ";
  if (has_submitted_files(job)) {
    return fail(Code::invalid, prefix + get_file_field(job) +
                                   ": a flow cannot adopt a job that brings files along: give them to a node of a "
                                   "definition (stdin, files)");
  }
  if (!job.notify.empty()) {
    auto notify = parse_json(job.notify);
    node["notify"] = notify ? std::move(*notify) : json(job.notify);  // a URL alone is valid
  }
  if (!job.policy.empty()) {
    auto policy = parse_json(job.policy);
    if (!policy) return fail(policy.error(), prefix + "policy");
    node["policy"] = std::move(*policy);
  }
  for (Id need : job.dependends) {
    const auto match = names.find(need);
    if (match == names.end()) {
      return fail(Code::invalid, prefix + "dependends: " + std::to_string(need) +
                                     " is not a job of this flow: add it, or remove it from dependends");
    }
    node["needs"].push_back(match->second);
  }
  for (const std::string& input : job.inputs) {
    const std::size_t slash = std::min(input.find('/'), input.size());
    const auto id = parse_job_id(input.substr(0, slash));
    const bool is_job_id = id && names.contains(*id);
    node["inputs"].push_back(is_job_id ? names.at(*id) + input.substr(slash) : input);
  }
  return node;
}

// In on_error, compensate and conditions, a job may be named by its id.
Result<json> replace_job_ids(std::string_view field, const json& value, const std::map<Id, std::string>& names) {
  const auto* text = value.get_ptr<const std::string*>();
  if (field == "on_error" || field == "compensate") {
    if (value.is_number_unsigned() || (text && parse_job_id(*text))) {
      MJ_TRY(id, find_job_id(text ? *text : dump_json(value), names));
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
    if (!parse_job_id(key.substr(0, dot))) continue;
    MJ_TRY(id, find_job_id(key.substr(0, dot), names));
    condition["key"] = names.at(id) + key.substr(dot);
  }
  return conditions;
}

Result<void> add_fields(const json& additions, json& node, const std::map<Id, std::string>& names) {
  if (!additions.is_object()) return fail(Code::invalid, "is not a map of fields");
  for (const auto& item : additions.items()) {
    if (item.key() == "id" || item.key() == "name") continue;
    if (std::find(std::begin(kAdditionalFields), std::end(kAdditionalFields), item.key()) ==
        std::end(kAdditionalFields)) {
      return fail(Code::invalid, excerpt(item.key()) +
                                     " is a field of the job's record; allowed are when, on_error, compensate, "
                                     "irreversible, supervisor_url and gate_timeout" +
                                     did_you_mean(item.key(), kAdditionalFields));
    }
    auto value = replace_job_ids(item.key(), item.value(), names);
    if (!value) return fail(value.error(), item.key());
    node[item.key()] = std::move(*value);
  }
  return {};
}

}  // namespace

// `nodes` is a map by job id or name, or a list of maps with an id or name.
Result<json> build_definition(const std::string& name, const TextMap& env_vars, const std::vector<Job>& jobs,
                              const json& nodes) {
  if (jobs.empty()) return fail(Code::invalid, "jobs: is empty: give the flow at least one");
  const std::map<Id, std::string> names = assign_node_names(jobs);
  if (names.size() != jobs.size()) return fail(Code::invalid, "jobs: a job is listed twice");
  json list = json::array();
  std::map<Id, std::size_t> positions;
  for (const Job& job : jobs) {
    MJ_TRY(node, job_to_node(job, names));
    positions[job.id] = list.size();
    list.push_back(std::move(node));
  }
  std::set<Id> seen;
  const auto add_to_job = [&](const std::string& reference, const json& additions,
                              const std::string& path) -> Result<void> {
    auto id = find_job_id(reference, names);
    if (!id) return fail(id.error(), path);
    if (!seen.insert(*id).second) return fail(Code::invalid, path + ": job " + std::to_string(*id) + " is named twice");
    if (auto added = add_fields(additions, list[positions[*id]], names); !added) return fail(added.error(), path);
    return {};
  };
  if (nodes.is_object()) {
    for (const auto& item : nodes.items())
      MJ_CHECK(add_to_job(item.key(), item.value(), "nodes." + excerpt(item.key())));
  } else if (nodes.is_array()) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::string path = "nodes[" + std::to_string(i) + "]";
      const json& additions = nodes[i];
      const char* key = additions.is_object() && additions.contains("id") ? "id" : "name";
      if (!additions.is_object() || !additions.contains(key) || additions[key].is_structured()) {
        return fail(Code::invalid, path + ": is not a map with the id or name of its job");
      }
      const auto* text = additions[key].get_ptr<const std::string*>();
      MJ_CHECK(add_to_job(text ? *text : dump_json(additions[key]), additions, path));
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
  const auto is_alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  const auto is_allowed = [&](char c) { return is_alphanumeric(c) || c == '.' || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= 128 && is_alphanumeric(name.front()) &&
         std::all_of(name.begin(), name.end(), is_allowed);
}

void read_name(const DocumentValue& source, FlowPlan& plan) {
  if (!read_text(source, plan.name) || is_flow_name(plan.name)) return;
  source.report_problem(
      excerpt(plan.name) +
      " is not a valid name of a flow: use 1 to 128 letters, digits, '.', '_' and '-', with a letter or digit first");
}

void read_on_error(const DocumentValue& source, FlowPlan& plan) {
  std::string word;
  if (!read_text(source, word)) return;
  if (word != "stop" && word != "continue") {
    source.report_problem(excerpt(word) + " is neither stop nor continue (only a job can route its error to a node)");
  }
  plan.on_error = word == "continue" ? OnError::proceed : OnError::stop;
}

void read_max_parallel(const DocumentValue& source, FlowPlan& plan) {
  std::int64_t number = 0;
  if (read_integer(source, 0, kMaxParallel, number)) plan.max_parallel = static_cast<std::uint32_t>(number);
}

struct FlowField {
  std::string_view name;
  void (*read)(const DocumentValue&, FlowPlan&);
  std::string_view value_format, meaning;
};
const std::array<FlowField, 10>& flow_fields() {
  static const std::array<FlowField, 10> kFields{{
      {"name", read_name, "text", "name of the flow in lists; required"},
      {"env", [](const DocumentValue& source, FlowPlan& plan) { read_map(source, plan.env_vars); }, "map",
       "environment of every job; the job's own values have priority"},
      {"on_error", read_on_error, "stop, continue",
       "effect of a failed node on the flow, unless the node sets its own; default stop"},
      {"timeout", [](const DocumentValue& source, FlowPlan& plan) { read_duration(source, plan.timeout_ms); },
       "duration", "of the whole flow, from its start; then it is cancelled, with the detail timeout"},
      {"max_parallel", read_max_parallel, "number", "jobs in flight at one time; default 0: any number"},
      {"notify", [](const DocumentValue& source, FlowPlan& plan) { read_notify_field(source, plan.notify); },
       "url, map, list of both", "receivers of the notification of the flow's end: webhook, job or topic"},
      {"inputs", [](const DocumentValue&, FlowPlan&) {}, "map", "values that are given at the start, by name"},
      {"given", [](const DocumentValue&, FlowPlan&) {}, "map", "default values of inputs"},
      {"defaults", [](const DocumentValue&, FlowPlan&) {}, "map", "fields of every job that does not have them"},
      {"jobs", [](const DocumentValue&, FlowPlan&) {}, "map, or list of maps that give their name",
       "the nodes; required"},
  }};
  return kFields;
}

void read_flow_fields(const DocumentValue& source, FlowPlan& plan) {
  for (const auto& item : source.value.items()) {
    const auto& fields = flow_fields();
    const auto* field =
        std::find_if(fields.begin(), fields.end(), [&](const FlowField& each) { return each.name == item.key(); });
    if (field != fields.end()) {
      field->read(source.at(item.value(), item.key()), plan);
      continue;
    }
    std::vector<std::string_view> names;
    for (const FlowField& each : fields) names.push_back(each.name);
    const std::string_view suggestion = resolve_field_alias(item.key());
    source.at(item.value(), item.key())
        .report_problem("unknown field of a flow" +
                        (suggestion == "env" ? "; did you mean \"env\"?" : did_you_mean(item.key(), names)));
  }
}

// Reads the nodes in the order of a list. A map has no order, so its nodes are ordered by name.
std::vector<DraftNode> read_nodes(const DocumentValue& jobs, int depth, const json& defaults) {
  std::vector<DraftNode> drafts;
  if (jobs.value.is_object()) {
    for (const auto& item : jobs.value.items())
      drafts.push_back(read_node(jobs.at(item.value(), item.key()), item.key(), false, depth, defaults));
    return drafts;
  }
  std::unordered_set<std::string> names;
  for (std::size_t i = 0; i < jobs.value.size(); ++i) {
    const DocumentValue source = jobs.at(jobs.value[i], i);
    const auto name = source.value.is_object() ? source.value.find("name") : source.value.end();
    std::string text;
    if (!source.value.is_object() || name == source.value.end()) {
      source.report_problem("is not a map with its name");
    } else if (read_text(source.at(*name, "name"), text)) {
      if (names.insert(text).second) {
        drafts.push_back(read_node(source, text, true, depth, defaults));
      } else {
        source.at(*name, "name").report_problem("a node before has the name " + excerpt(text) + " too: rename one");
      }
    }
  }
  return drafts;
}

void read_jobs(const DocumentValue& root, FlowPlan& plan, int depth) {
  const auto match = root.value.find("jobs");
  if (match == root.value.end()) return root.report_problem("jobs: is missing: give the flow at least one");
  const DocumentValue jobs = root.at(*match, "jobs");
  if (!match->is_structured()) {
    jobs.report_wrong_type("a map of jobs by name");
    return;
  }
  if (match->empty()) return jobs.report_problem("is empty: give the flow at least one");
  if (match->size() > kMaxFlowNodes) {
    return jobs.report_problem(std::to_string(match->size()) + " nodes are more than " + std::to_string(kMaxFlowNodes) +
                               ": divide them into child flows");
  }
  static const json kNoDefaults = json::object();
  const auto defaults = root.value.find("defaults");
  const bool exists = defaults != root.value.end();
  if (exists) check_defaults(root.at(*defaults, "defaults"));
  link_plan(plan, read_nodes(jobs, depth, exists && defaults->is_object() ? *defaults : kNoDefaults), root.problems);
}

}  // namespace

FlowPlan read_flow(const DocumentValue& root, int depth) {
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

namespace {

// The canonical text of a definition that uses the syntax of references in `env` ends with this. Definitions that older
// versions stored do not: there, "${" in `env` means itself.
constexpr char kReferenceMark = '\n';

// Calls `function` for the texts with "${" in `env` of all nodes, default fields and child flows, until a call returns
// true. Returns whether a call has returned true.
template <class Json, class Function>
bool find_env_text(Json& flow, const Function& function, int depth = 0) {
  if (!flow.is_object() || depth > plans::kMaxChildDepth) return false;
  const auto find_in_env = [&function](Json& owner) {
    const auto env = owner.find("env");
    if (env == owner.end() || !env->is_object()) return false;
    return std::any_of(env->begin(), env->end(), [&function](Json& value) {
      const auto* text = value.template get_ptr<const std::string*>();
      return text != nullptr && text->find("${") != std::string::npos && function(value);
    });
  };
  if (const auto defaults = flow.find("defaults"); defaults != flow.end() && find_in_env(*defaults)) return true;
  const auto jobs = flow.find("jobs");
  if (jobs == flow.end() || !jobs->is_structured()) return false;
  return std::any_of(jobs->begin(), jobs->end(), [&](Json& node) {
    if (!node.is_object()) return false;
    const auto child = node.find("flow");
    return child == node.end() ? find_in_env(node) : find_env_text(*child, function, depth + 1);
  });
}

// Escapes references in `env`. Returns whether a text has changed.
bool escape_env_references(nlohmann::json& flow) {
  bool has_changed = false;
  find_env_text(flow, [&has_changed](nlohmann::json& text) {
    text = escape_references(text.get_ref<const std::string&>());
    has_changed = true;
    return false;
  });
  return has_changed;
}

// Returns whether the canonical text must have the mark.
bool uses_reference_syntax(const std::string& canonical, const nlohmann::json& definition) {
  return canonical.find("${") != std::string::npos &&
         find_env_text(definition, [](const nlohmann::json&) { return true; });
}

}  // namespace

ParsedPlan read_plan(const nlohmann::json& definition) {
  DocumentProblems problems;
  FlowPlan plan = plans::read_flow({definition, "", problems}, 0);
  if (problems.empty()) {
    plan.canonical = dump_json(definition);
    if (uses_reference_syntax(plan.canonical, definition)) plan.canonical += kReferenceMark;
    if (plan.canonical.size() > kMaxDefinitionBytes) {
      problems.add("", std::to_string(plan.canonical.size()) + " bytes are more than the " +
                           std::to_string(kMaxDefinitionBytes) + " that a definition may have");
    }
  }
  if (!problems.empty()) return {std::nullopt, problems.release_problems()};
  plan.hash = sha256_hex(plan.canonical);
  return {std::move(plan), {}};
}

Result<FlowPlan> parse_stored_plan(std::string_view canonical, std::string_view hash) {
  if (sha256_hex(canonical) != hash) {
    return fail(Code::invalid, "definition " + excerpt(hash, 64) +
                                   ": its text has another hash: it was changed or cut off in the store; start the "
                                   "flow again from its file");
  }
  MJ_TRY(parsed, parse_json(canonical, kMaxDefinitionBytes));
  const bool is_older = !canonical.ends_with(kReferenceMark) && escape_env_references(parsed);
  ParsedPlan read = read_plan(parsed);
  if (!read.plan) return fail(Code::invalid, "definition " + std::string(hash) + ": " + join(read.problems));
  if (is_older) {
    read.plan->canonical = canonical;
    read.plan->hash = hash;
  }
  return std::move(*read.plan);
}

std::optional<std::uint32_t> FlowPlan::find(std::string_view node_name) const {
  const auto match =
      std::find_if(nodes.begin(), nodes.end(), [&](const PlanNode& node) { return node.name == node_name; });
  if (match == nodes.end()) return std::nullopt;
  return static_cast<std::uint32_t>(match - nodes.begin());
}

std::string_view to_string(NodeKind kind) {
  static constexpr std::array<std::string_view, 7> kWords{"job", "log", "wait", "pause", "approval", "flow", "each"};
  return kWords[static_cast<std::size_t>(kind)];
}

std::vector<PlanField> plan_fields() {
  std::vector<PlanField> rows;
  for (const auto& field : plans::flow_fields())
    rows.push_back({"flow", field.name, field.value_format, field.meaning});
  for (const auto& field : plans::node_fields())
    rows.push_back({"node", field.name, field.value_format, field.meaning});
  return rows;
}

namespace {

using Test = FlowCondition::Test;

std::string_view test_name(Test test) {
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
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Returns whether the text is a number as JSON spells it: 1, 1.0 and 1e0 are numbers; 007 is a text.
bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789+-.eE") == std::string_view::npos && is_json(text);
}

std::optional<double> parse_finite(std::string_view text) {
  const auto number = parse_number<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

// A decimal text as the exact value 0.DIGITS x 10^exponent. DIGITS has no zeros at either end, and is empty for zero.
struct Decimal {
  bool is_negative = false;
  std::string digits;
  std::int64_t exponent = 0;
};

// REQUIRES: parse_finite(text) has a value.
Decimal parse_decimal(std::string_view text) {
  Decimal out;
  out.is_negative = text.starts_with('-');
  if (out.is_negative) text.remove_prefix(1);
  if (const std::size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    const std::size_t digits = text.find_first_not_of('+', e + 1);
    out.exponent = parse_number<std::int64_t>(text.substr(digits)).value_or(0);
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
  if (!parse_finite(a) || !parse_finite(b)) return std::nullopt;
  const Decimal left = parse_decimal(a), right = parse_decimal(b);
  const auto sign = [](const Decimal& number) { return number.digits.empty() ? 0 : number.is_negative ? -1 : 1; };
  if (sign(left) != sign(right)) return sign(left) < sign(right) ? -1 : 1;
  const auto magnitude = [](const Decimal& number) { return std::tie(number.exponent, number.digits); };
  if (magnitude(left) == magnitude(right)) return 0;
  return (magnitude(left) < magnitude(right)) == (sign(left) > 0) ? -1 : 1;
}

}  // namespace

std::string describe(const FlowCondition& condition, std::string_view node_name) {
  const bool is_text = condition.test == Test::equals;
  if (condition.is_input) node_name = kInputsName;
  return std::string(node_name) + '.' + condition.key + ' ' + std::string(test_name(condition.test)) + ' ' +
         (is_text ? excerpt(condition.value) : condition.value);
}

bool is_met(const FlowCondition& condition, std::string_view node_name, const TextMap& values, std::string& reason) {
  if (condition.is_input) node_name = kInputsName;
  const std::string subject = std::string(node_name) + '.' + condition.key;
  const auto match = values.find(condition.key);
  const bool exists = match != values.end();
  if (condition.test == Test::exists) {
    if (exists == (condition.value == "true")) return true;
    reason = subject + (exists ? " exists" : " is absent");
    return false;
  }
  if (!exists) {
    reason = subject + " is absent";
    return false;
  }
  const std::string& value = match->second;
  if (condition.test == Test::equals) {
    if (value == condition.value) return true;
    if (is_number(value) && is_number(condition.value) && compare(value, condition.value) == 0) return true;
    reason = subject + " is " + excerpt(value) + ", not " + excerpt(condition.value);
    return false;
  }
  const bool greater = condition.test == Test::greater_than;
  const auto order = compare(value, condition.value);
  if (order && (greater ? *order > 0 : *order < 0)) return true;
  reason = subject + " is " + excerpt(value) + ", not " +
           (order ? (greater ? "greater than " : "less than ") + condition.value : std::string("a number"));
  return false;
}

}  // namespace mycojobs
