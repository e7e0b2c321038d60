// A second opinion on runs, for tests: the rules of docs/flows.md applied by looking at the whole flow again and again,
// without counters, lists or facts. Slow, and small enough to be read at one go.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "domain/flow_decide.h"

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
    flying,  // open
    routed,  // failed, its error node has it
    ok,
    continued,
    handled,
    failed,
    dependency_failed,
    skipped,
    cancelled,
    unneeded,
    absent  // settled
  };
  struct Node {
    At at = At::waiting;
    std::string detail;
    std::uint64_t until = 0;
    int order = 0;  // of settling
    int runs = 0;
    Id child = 0;
    bool asked_to_end = false, undoes = false, undone = false;
    std::set<std::string> open;  // gates
    std::vector<Id> who;
    TextMap values;
    std::uint32_t elements = 0;  // of a node of kind each, once it has them
  };

  explicit Model(const FlowPlan&);
  // As decide(): what time has brought, the event, and all that follows.
  void start(std::uint64_t now);
  void job(std::uint64_t now, std::uint32_t node, const std::string& status, const std::string& detail,
           const TextMap& values);
  void child_started(std::uint64_t now, std::uint32_t node, Id child);
  void flow_ended(std::uint64_t now, Id flow, bool good);
  void time(std::uint64_t now);
  bool control(std::uint64_t now, const FlowControl&);  // whether it is taken

  std::string place(std::uint32_t node) const;
  std::string flow() const;
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
  int elements_of(std::uint32_t i) const;  // below 0: there is no list
  void stop(const std::string& outcome);
  bool routes(std::uint32_t i) const;
  bool may_be_called(std::uint32_t error_node) const;  // by somebody who has not settled
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

// What must hold of any journal, whatever made it. Lines of what does not.
std::vector<std::string> check_journal(const FlowPlan&, const std::vector<RunFact>&);

}  // namespace mycojobs
