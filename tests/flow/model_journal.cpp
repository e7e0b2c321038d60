// Checks the rules that hold for every journal of a run, from the facts alone.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "flow/model.h"

namespace mycojobs {
namespace {

class JournalChecker {
 public:
  explicit JournalChecker(const FlowPlan& plan) : plan_(plan), nodes_(plan.nodes.size()) {}

  void read(const RunFact& fact) {
    at_ = &fact;
    if (ended_ && fact.kind != "retried" && fact.kind != "control") say("stands after the end");
    if (fact.kind == "stopping") stopping_ = true;
    if (fact.kind == "retried") stopping_ = ended_ = false;
    if (fact.kind == "ended") end();
    if (fact.node) node(fact);
  }
  std::vector<std::string> wrong;

 private:
  struct Seen {
    bool settled = false, called = false, skipped = false, absent = false;
    int begun = 0, retried = 0, settled_times = 0;
    std::uint64_t order = 0;
  };
  void say(const std::string& what) {
    wrong.push_back("revision " + std::to_string(at_->revision) + ' ' + at_->kind + ' ' +
                    (at_->node ? plan_.nodes[*at_->node].name : "") + ": " + what);
  }

  void node(const RunFact& fact) {
    Seen& seen = nodes_[*fact.node];
    if (fact.kind == "node_dispatched" || fact.kind == "node_expanded") begin(*fact.node);
    if (fact.kind == "node_retried") {
      if (!seen.settled) say("it has not settled");
      if (seen.skipped) say("it was skipped, and why still holds");
      seen.settled = false;
      ++seen.retried;
      for (std::uint32_t i = *fact.node + 1; i <= *fact.node + plan_.nodes[*fact.node].max_elements; ++i) {
        if (nodes_[i].absent) nodes_[i].absent = nodes_[i].settled = false;
      }
    }
    if (fact.kind == "compensating") {
      // Compensations run in the reverse order of completion.
      if (last_undone_ != 0 && seen.order > last_undone_) say("out of order");
      last_undone_ = seen.order;
      nodes_[*plan_.nodes[*fact.node].compensation].called = true;
    }
    const bool routed = fact.kind == "node_failed" && nlohmann::json::parse(fact.data_json).contains("routed");
    const bool expanded = fact.kind == "node_expanded";
    const bool settles = expanded || fact.kind == "node_completed" || (fact.kind == "node_failed" && !routed) ||
                         fact.kind == "node_unhandled" || fact.kind == "node_cancelled";
    if (!settles) return;
    if (seen.settled) say("it had settled");
    seen.settled = true;
    seen.order = fact.revision;
    seen.skipped = fact.kind == "node_cancelled" && nlohmann::json::parse(fact.data_json).at("detail") == "skipped";
    if (++seen.settled_times > 1 + seen.retried) say("it settles too often");
    const std::uint32_t count = expanded ? nlohmann::json::parse(fact.data_json).at("count").get<std::uint32_t>() : 0;
    for (std::uint32_t k = count; k < plan_.nodes[*fact.node].max_elements; ++k) {
      Seen& place = nodes_[*fact.node + 1 + k];
      if (!place.settled) place.settled = place.absent = true;
    }
  }

  void begin(std::uint32_t i) {
    Seen& seen = nodes_[i];
    if (++seen.begun > 1 + seen.retried) say("it begins too often");
    if (seen.settled) say("it had settled");
    if (stopping_ && !seen.called) say("it begins though the flow stops");
    for (const std::uint32_t need : plan_.nodes[i].needs) {
      if (!nodes_[need].settled) say("it begins before " + plan_.nodes[need].name + " has settled");
    }
  }

  void end() {
    ended_ = true;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].settled) say(plan_.nodes[i].name + " has not settled");
    }
  }

  const FlowPlan& plan_;
  const RunFact* at_ = nullptr;
  std::vector<Seen> nodes_;
  bool stopping_ = false, ended_ = false;
  std::uint64_t last_undone_ = 0;
};

}  // namespace

std::vector<std::string> check_journal(const FlowPlan& plan, const std::vector<RunFact>& journal) {
  JournalChecker reading(plan);
  for (const RunFact& fact : journal) reading.read(fact);
  return reading.wrong;
}

}  // namespace mycojobs
