// Of flow_decide*.cpp: one decision while it is made. Every fact is folded as it is emitted, so that what follows is
// decided on the state that recovery would see.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "domain/flow_decide.h"

namespace mycojobs::runs {

// The one thing that comes next without waiting for an event.
struct NextStep {
  enum class What { retry, tell, drop, resolve, stop, judge, begin, compensate, end };
  What what = What::end;
  std::uint32_t node = 0;
};
std::optional<NextStep> next_step(const FlowPlan&, const RunState&);

class Deciding {
 public:
  Deciding(const FlowPlan& plan, RunState run, std::uint64_t now_ms, const DecideLimits& limits)
      : plan_(plan), now_(now_ms), limits_(limits) {
    out_.state = std::move(run);
  }
  // What an event says
  void start(const StartRun&);
  void job(const JobSeen&);
  void child(const ChildStarted&);
  void flow(const FlowSeen&);
  void time();
  Result<void> control(const FlowControl&);
  // What comes of it
  void follow();
  Decision take() { return std::move(out_); }

 private:
  using Json = nlohmann::json;
  RunState& run() { return out_.state; }
  const NodeState& node(std::uint32_t i) const { return out_.state.nodes[i]; }
  const PlanNode& planned(std::uint32_t i) const { return plan_.nodes[i]; }
  bool full() const { return out_.facts.size() >= limits_.max_facts || bytes_ >= limits_.max_bytes; }
  bool under_way() const { return out_.state.status == FlowStatus::started; }
  bool in_flight(std::uint32_t i) const { return i < plan_.nodes.size() && node(i).status == NodeStatus::dispatched; }

  void emit(std::string_view kind, std::optional<std::uint32_t> node, const Json& more = Json::object());
  void effect(Effect::Kind kind, std::uint32_t node, std::string detail = {}, std::string error = {});

  // Ends of a node. told: its record has the end already, since a runner wrote it.
  void complete(std::uint32_t i, const TextMap& values, bool told, std::uint64_t bytes);
  void fail_node(std::uint32_t i, const std::string& detail, const std::string& error, bool told);
  void cancel_node(std::uint32_t i, const std::string& detail, const std::string& reason, bool told);

  bool waits_for(std::uint32_t error_node, std::uint32_t i) const;

  void apply(NextStep);
  void judge(std::uint32_t i);
  void drop(std::uint32_t i);
  void tell(std::uint32_t i);
  void begin(std::uint32_t i, Json when);
  void dispatch(std::uint32_t i, bool again);
  void expand(std::uint32_t i, std::size_t count, Json more);
  void retry(std::uint32_t i);
  void resolve(std::uint32_t i);
  void end();
  void stop(const std::string& outcome, const std::string& error);
  void check_deadline();
  std::optional<std::string> why_skipped(std::uint32_t i, Json& when) const;

  Result<void> control_flow(const FlowControl&);
  Result<void> answer(const FlowControl&);
  Result<void> answer_node(const FlowControl&, std::uint32_t i);
  Result<void> answer_gate(const FlowControl&, const std::string& gate);
  Result<void> signal(const FlowControl&);
  Result<void> retry_run(const FlowControl&);
  void record(const FlowControl&);
  void open_gate(std::uint32_t i, const std::string& gate) { emit("gate_opened", i, {{"gate", gate}}); }

  const FlowPlan& plan_;
  std::uint64_t now_;
  DecideLimits limits_;
  std::size_t bytes_ = 0;
  Decision out_;
};

bool is_place_free(const FlowPlan&, const RunState&);
std::uint64_t bytes_of(const TextMap&);
std::string digest_of(const FlowControl&);

}  // namespace mycojobs::runs
