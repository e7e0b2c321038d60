// A random run for tests: random events, and checks after each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flow/model.h"
#include "flow/run_world.h"

namespace mycojobs {

// A random run. compared: every decision is completed before the next event, and the model must agree with the result.
class Round {
 public:
  Round(std::uint64_t seed, bool compared)
      : random_(seed), plan_(random_plan(random_, 40)), deployment_(plan_), model_(plan_), compared_(compared) {
    if (!compared_) deployment_.limits.max_facts = 1 + random_.below(12);
    deployment_.start_children = false;
  }

  void run() {
    start();
    for (int lives = 0; lives < 4; ++lives) {
      const std::uint32_t steps = random_.below(120);
      for (std::uint32_t i = 0; i < steps && !over(); ++i) any_event();
      calm_down();
      if (!over()) return;
      checks_at_end();
      if (over() && !random_.one_in(3)) late_events();
      control(FlowControl::Verb::retry, "");
      if (is_terminal_now()) break;
    }
    if (!is_terminal_now()) calm_down();
    (void)over();
    checks_at_end();
  }

  std::string wrong() const { return wrong_; }
  std::size_t facts() const { return deployment_.journal.size(); }
  bool retried() const { return deployment_.count("retried") > 0; }
  bool expanded() const { return deployment_.count("node_expanded") > 0; }
  bool compensated() const { return deployment_.count("compensating") > 0; }

 private:
  bool is_terminal_now() const {
    return deployment_.run.status == FlowStatus::finished || deployment_.run.status == FlowStatus::error;
  }
  bool over() {
    if (!deployment_.violations.empty()) say(deployment_.violations.front());
    return !wrong_.empty() || is_terminal_now();
  }
  void say(const std::string& what);
  std::string drawn() const;
  // Compares the states of the run and the model after both received the same event.
  void compare(const std::string& after);
  bool go_on() { return compared_ || random_.one_in(3); }

  void start();
  void job_seen(const JobObserved& seen);
  void see(std::uint32_t i);
  void end_job(std::uint32_t i, bool well);
  void start_child(std::uint32_t i);
  void end_flow(Id flow, bool well);
  void pass(std::uint64_t ms);
  void control(FlowControl::Verb verb, const std::string& target, Id actor = 7);
  // Repeating a control must not change anything; a different control with the same key must be refused.
  void repeat(FlowControl control);

  void any_event();
  void answer_any();
  void crash();
  void late_events();
  void calm_down();
  void checks_at_end();
  std::vector<std::uint32_t> in_flight(NodeKind kind) const {
    std::vector<std::uint32_t> found;
    for (const std::uint32_t i : deployment_.run.in_flight) {
      if (plan_.nodes[i].kind == kind) found.push_back(i);
    }
    return found;
  }

  Random random_;
  FlowPlan plan_;
  RunWorld deployment_;
  Model model_;
  bool compared_;
  int keys_ = 0;
  std::string wrong_, checkpoint_;
};

}  // namespace mycojobs
