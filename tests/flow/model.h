// An independent model of runs for tests: applies the rules of docs/flows.md by repeatedly scanning the whole flow,
// without counters, lists or facts. The model is slow, but small enough to be reviewed as a whole.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "flows/flow_decider.h"

namespace mycojobs {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint32_t below(std::uint32_t n) { return n == 0 ? 0 : static_cast<std::uint32_t>(engine_() % n); }
  bool one_in(std::uint32_t n) { return below(n) == 0; }
  template <class T>
  const T& of(const std::vector<T>& all) {
    return all[below(static_cast<std::uint32_t>(all.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

FlowPlan random_plan(Random&, std::uint32_t max_nodes);

class Model {
 public:
  enum class At {
    waiting,
    uncalled,
    gated,
    ready,
    flying,  // the states up to here are open
    routed,  // failed; the error node handles the failure
    ok,
    continued,
    handled,
    failed,
    dependency_failed,
    skipped,
    cancelled,
    unneeded,
    absent  // the states from `ok` to here are settled
  };
  struct Node {
    At at = At::waiting;
    std::string detail;
    std::uint64_t until = 0;
    int order = 0;  // position in the order of settling
    int runs = 0;
    Id child = 0;
    bool asked_to_end = false, undoes = false, undone = false;
    std::set<std::string> open;  // open gates
    std::vector<Id> who;
    TextMap values;
    std::uint32_t elements = 0;  // number of elements of an "each" node, once known
  };

  explicit Model(const FlowPlan&);
  // The calls correspond to decide(): apply due times, then the event, then all consequences.
  void start(std::uint64_t now);
  void job(std::uint64_t now, std::uint32_t node, const std::string& status, const std::string& detail,
           const TextMap& values);
  void child_started(std::uint64_t now, std::uint32_t node, Id child);
  void flow_ended(std::uint64_t now, Id flow, bool good);
  void time(std::uint64_t now);
  bool control(std::uint64_t now, const FlowControl&);  // returns whether the control is accepted

  std::string describe_node(std::uint32_t node) const;
  std::string describe_flow() const;
  bool ended() const { return ended_; }
  bool own(std::uint32_t i) const;
  const Node& node(std::uint32_t i) const { return nodes_[i]; }
  const std::map<std::string, std::string>& signals() const { return signals_; }
  static bool settled(At at) { return at >= At::ok; }

 private:
  bool take(const FlowControl&);
  bool take_retry(const FlowControl&);
  bool answer(const FlowControl&);
  void pass_time();
  void follow();
  bool one_step();
  bool step_of_stopping();
  bool end_standstill();
  bool begin_something();
  void judge(std::uint32_t i);
  void begin(std::uint32_t i);
  void settle(std::uint32_t i, At at, const std::string& detail);
  void good(std::uint32_t i, const TextMap& values);
  void bad(std::uint32_t i, const std::string& detail);
  void drop(std::uint32_t i);
  int count_elements(std::uint32_t i) const;  // negative: the value is not a list
  void stop(const std::string& outcome);
  bool routes(std::uint32_t i) const;
  bool may_be_called(std::uint32_t error_node) const;  // whether an unsettled node can still route to it
  bool is_error_node(std::uint32_t i) const;
  bool judgeable(std::uint32_t i) const;
  bool place_free() const;
  bool any(At at) const;

  const FlowPlan& plan_;
  std::vector<Node> nodes_;
  std::vector<bool> compensation_;
  std::uint64_t now_ = 0, deadline_ = 0;
  int settled_ = 0;
  bool started_ = false, ended_ = false, paused_ = false, stopping_ = false, cancelling_ = false, undoing_ = false;
  std::string outcome_;
  std::map<std::string, std::string> signals_;
};

// Checks the rules that hold for every journal. Returns a line per violation.
std::vector<std::string> check_journal(const FlowPlan&, const std::vector<RunFact>&);

}  // namespace mycojobs
