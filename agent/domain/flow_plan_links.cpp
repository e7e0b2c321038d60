// What nodes say of each other: names become indexes, and what cannot be a plan is refused.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "domain/codec.h"
#include "domain/flow_plan_read.h"
#include "domain/nearest.h"
#include "domain/utf8.h"

namespace mycojobs::plans {
namespace {

constexpr std::size_t kMaxNeeds = 10000;  // of one node: as many as a job may depend on

class Linker {
 public:
  Linker(FlowPlan& plan, std::vector<Draft> drafts, Problems& problems)
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
    for (Draft& draft : drafts_) plan_.nodes.push_back(std::move(draft.node));
    for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
      for (std::uint32_t need : plan_.nodes[i].needs) plan_.nodes[need].dependents.push_back(i);
    }
    const std::vector<std::uint32_t> order = order_of(plan_, drafts_, problems_);
    if (order.size() == plan_.nodes.size()) link_conditions(order);
    check_places();
    if (problems_.empty()) make_places(plan_);
  }

 private:
  PlanNode& node(std::uint32_t i) { return drafts_[i].node; }

  std::optional<std::uint32_t> look_up(const Named& named, std::uint32_t from, std::string_view as) {
    const auto found = index_.find(named.name);
    if (found == index_.end()) {
      if (!problems_.full()) {
        problems_.add(named.path, "there is no node " + shown(named.name) + did_you_mean(named.name, names_));
      }
      return std::nullopt;
    }
    if (found->second == from) {
      problems_.add(named.path, shown(named.name) + " is the node itself: it cannot be its own " + std::string(as));
      return std::nullopt;
    }
    return found->second;
  }

  // Where its elements are to come from, and how many there may be.
  void link_each(std::uint32_t i) {
    if (!drafts_[i].each) return;
    DraftEach& each = *drafts_[i].each;
    PlanNode& group = node(i);
    if (each.path.empty()) return problems_.add(each.max_path, "is of each: say of what there is to be a node each");
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
      problems_.add(each.path, "there is no input " + shown(each.key) + did_you_mean(each.key, input_names()));
    } else if (input->type != "list" && input->type != "object") {
      if (!input->type.empty())
        problems_.add(each.path, "the input " + each.key + " is of type " + input->type + ", not list or object");
    } else if (const auto value = plan_.values.find(each.key); value != plan_.values.end()) {
      const auto parsed = parse_json(value->second);
      if (parsed) each.elements = elements_of(*parsed).value_or(std::vector<std::string>());
    }
  }

  // What it takes its elements from comes before it, named in needs or not.
  void take_source(std::uint32_t i, const DraftEach& each) {
    const auto found = look_up(each.from, i, "list");
    if (!found) return;
    if (drafts_[*found].each) {
      return problems_.add(each.path, shown(each.from.name) +
                                          " is a node for each of a list itself: make the list in a job that needs it");
    }
    node(i).from = EachSource{*found, each.key};
    node(*found).watched.push_back(each.key);
    auto& needs = drafts_[i].needs;
    const bool named =
        std::any_of(needs.begin(), needs.end(), [&](const Named& need) { return need.name == each.from.name; });
    if (!named) needs.push_back(each.from);
  }

  std::vector<std::string_view> input_names() const {
    std::vector<std::string_view> names;
    for (const FlowInput& each : plan_.inputs) names.push_back(each.name);
    return names;
  }

  // As many as there may be, whatever there are then.
  void check_places() {
    std::size_t all = 0;
    for (const PlanNode& each : plan_.nodes) all += 1 + each.places;
    if (all > kMaxFlowNodes) {
      problems_.add("jobs", std::to_string(all) + " nodes, with those that each can come to, are more than " +
                                std::to_string(kMaxFlowNodes) + ": give smaller max, or divide them into child flows");
    }
    for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
      std::size_t needs = 0;
      for (const std::uint32_t need : plan_.nodes[i].needs) needs += 1 + plan_.nodes[need].places;
      if (needs <= kMaxNeeds || plan_.nodes[i].needs.size() > kMaxNeeds) continue;
      problems_.add(drafts_[i].path + ".needs", std::to_string(needs) +
                                                    " nodes, with those that each can come to, are "
                                                    "more than " +
                                                    std::to_string(kMaxNeeds) +
                                                    ": give smaller max, or put a joining node in between");
    }
  }

  void link_needs(std::uint32_t i) {
    Draft& draft = drafts_[i];
    if (draft.needs.size() > kMaxNeeds) {
      problems_.add(draft.path + ".needs", std::to_string(draft.needs.size()) + " nodes are more than " +
                                               std::to_string(kMaxNeeds) + ": put a joining node in between");
      return;
    }
    std::unordered_set<std::uint32_t> seen;
    for (const Named& need : draft.needs) {
      const auto found = look_up(need, i, "need");
      if (!found) continue;
      if (seen.insert(*found).second) {
        draft.node.needs.push_back(*found);
      } else {
        problems_.add(need.path, shown(need.name) + " is named twice");
      }
    }
    for (const Named& input : draft.inputs) {
      const auto found = index_.find(input.name);
      if (found != index_.end() && seen.contains(found->second)) continue;
      problems_.add(input.path, shown(input.name) +
                                    " is none of the nodes that this one needs: write NODE or "
                                    "NODE/ARTIFACT, and name the node in needs");
    }
  }

  void link_calls(std::uint32_t i) {
    Draft& draft = drafts_[i];
    if (draft.route) draft.node.error_node = look_up(*draft.route, i, "error node");
    if (!draft.says_on_error) draft.node.on_error = plan_.on_error;
    if (draft.node.error_node) {
      node(*draft.node.error_node).on_call = true;
      routed_.insert(*draft.node.error_node);
    }
    if (draft.compensation) draft.node.compensation = look_up(*draft.compensation, i, "compensation");
    if (!draft.node.compensation) return;
    node(*draft.node.compensation).on_call = true;
    const auto [first, added] = compensates_.emplace(*draft.node.compensation, i);
    if (!added) {
      problems_.add(draft.compensation->path, shown(draft.compensation->name) + " is the compensation of " +
                                                  shown(node(first->second).name) +
                                                  " already, and runs only once: give each its own");
    }
  }

  // Error nodes and compensations begin when they are called, and so wait for nothing else.
  void check_called(std::uint32_t i) {
    const Draft& draft = drafts_[i];
    const bool compensation = compensates_.contains(i);
    if (draft.each && draft.compensation) {
      problems_.add(draft.compensation->path,
                    "a node with each has none: give it to a node that needs this one, and let that undo all");
    }
    if (draft.each && draft.node.on_call) {
      problems_.add(draft.each->path, "an error node or compensation runs once: it has no each");
    }
    for (const Named& need : draft.needs) {
      const auto found = index_.find(need.name);
      if (found != index_.end() && compensates_.contains(found->second)) {
        problems_.add(need.path, shown(need.name) +
                                     " is a compensation, which runs only when the flow has failed: "
                                     "nothing can need it");
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
      problems_.add(draft.path, "a compensation is a job or a log line, not " + std::string(word(draft.node.kind)));
    }
    if (draft.route) problems_.add(draft.route->path, "what a compensation fails with is noted; the next one runs");
    if (draft.compensation) problems_.add(draft.compensation->path, "a compensation has none of its own");
    if (!draft.node.gates.empty()) {
      problems_.add(draft.path + ".prerequisites", "a compensation cannot wait for " + draft.node.gates.front());
    }
  }

  // `flow approve NAME` must mean one thing.
  void check_gates() {
    for (const Draft& draft : drafts_) {
      for (const std::string& gate : draft.node.gates) {
        if (!gate.starts_with("approval:")) continue;
        const auto found = index_.find(gate.substr(sizeof "approval:" - 1));
        if (found == index_.end() || node(found->second).kind != NodeKind::approval) continue;
        problems_.add(draft.path + ".prerequisites",
                      gate + ": a node is called so too: need that node, or rename one of them");
      }
    }
  }

  void link_conditions(const std::vector<std::uint32_t>& order) {
    std::unordered_map<std::uint32_t, std::vector<Use>> uses;
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) {
      for (DraftCondition& each : drafts_[i].when) {
        if (is_of_input(each)) continue;
        const auto found = look_up(each.node, i, "condition");
        if (!found) continue;
        each.condition.node = *found;
        uses[*found].push_back({i, &each});
      }
    }
    find_what_comes_before(order, uses);
    for (std::uint32_t i = 0; i < drafts_.size(); ++i) {
      for (DraftCondition& each : drafts_[i].when) take_condition(i, each);
    }
    for (PlanNode& each : plan_.nodes) {
      std::sort(each.watched.begin(), each.watched.end());
      each.watched.erase(std::unique(each.watched.begin(), each.watched.end()), each.watched.end());
    }
  }

  struct Use {
    std::uint32_t node;
    DraftCondition* written;
  };
  // A bit for each of 64 nodes that conditions read, carried along to all that follow: a pass for each 64 of them.
  void find_what_comes_before(const std::vector<std::uint32_t>& order,
                              std::unordered_map<std::uint32_t, std::vector<Use>>& uses) {
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
        for (Use& use : group->second) use.written->comes_before = (before[use.node] & own[group->first]) != 0;
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
      return problems_.add(written.node.path, "there is no input " + shown(key) + did_you_mean(key, names));
    }
    FlowCondition condition = written.condition;
    condition.of_input = true;
    plan_.nodes[i].when.push_back(condition);
  }

  void take_condition(std::uint32_t i, const DraftCondition& written) {
    if (is_of_input(written)) return take_input_condition(i, written);
    const auto found = index_.find(written.node.name);
    if (found == index_.end() || found->second == i) return;  // refused before
    if (!written.comes_before) {
      problems_.add(
          written.node.path,
          shown(written.node.name) + " does not come before this node: name it in needs, or a node that needs it");
      return;
    }
    const std::string& key = written.condition.key;
    if (plan_.nodes[found->second].kind == NodeKind::each && key != "count" && key != "$status") {
      return problems_.add(written.node.path, shown(written.node.name) +
                                                  " is a node for each of a list: of itself it has count and $status; "
                                                  "let a job that needs it look at its results");
    }
    if (!key.starts_with('$')) plan_.nodes[written.condition.node].watched.push_back(key);
    plan_.nodes[i].when.push_back(written.condition);
  }

  FlowPlan& plan_;
  std::vector<Draft> drafts_;
  Problems& problems_;
  std::unordered_map<std::string, std::uint32_t> index_;
  std::vector<std::string_view> names_;
  std::unordered_set<std::uint32_t> routed_;
  std::unordered_map<std::uint32_t, std::uint32_t> compensates_;  // compensation -> what it undoes
};

}  // namespace

void link(FlowPlan& plan, std::vector<Draft> drafts, Problems& problems) {
  Linker(plan, std::move(drafts), problems).run();
}

}  // namespace mycojobs::plans
