#include "domain/flow_decide.h"

#include <array>

#include "domain/codec.h"
#include "domain/flow_decide_run.h"
#include "domain/flow_fold.h"
#include "domain/transitions.h"

namespace mycojobs {
namespace runs {

using What = NextStep::What;

bool is_place_free(const FlowPlan& plan, const RunState& run) {
  return plan.max_parallel == 0 || run.in_flight.size() - run.waiting.size() < plan.max_parallel;
}

namespace {

std::optional<NextStep> next_begin(const FlowPlan& plan, const RunState& run) {
  if (!run.met.empty()) return NextStep{What::judge, *run.met.begin()};
  if (run.paused || run.ready.empty()) return std::nullopt;
  if (!run.ready_own.empty()) return NextStep{What::begin, *run.ready_own.begin()};
  if (is_place_free(plan, run)) return NextStep{What::begin, *run.ready.begin()};
  return std::nullopt;
}

std::optional<NextStep> next_end(const RunState& run) {
  if (!run.uncalled.empty()) return NextStep{What::drop, *run.uncalled.begin()};
  return NextStep{What::end, 0};
}

// Error nodes that route to one another can wait for each other's end: nobody is left who could call them.
std::optional<NextStep> next_of_standstill(const RunState& run) {
  if (!run.in_flight.empty() || !run.ready.empty() || !run.gated.empty()) return std::nullopt;
  for (const std::uint32_t i : run.uncalled) {
    if (run.nodes[i].callers > 0) return NextStep{What::drop, i};
  }
  return std::nullopt;
}

// Nothing begins; what is in flight ends; what never began is settled; compensations run one after the other.
std::optional<NextStep> next_of_stopping(const FlowPlan& plan, const RunState& run) {
  if (!run.compensating) {
    if (!run.to_cancel.empty()) return NextStep{What::tell, *run.to_cancel.begin()};
    if (!run.waiting.empty()) return NextStep{What::drop, *run.waiting.begin()};
    if (!run.in_flight.empty()) return std::nullopt;
    for (const auto* places : {&run.met, &run.ready, &run.gated}) {
      if (!places->empty()) return NextStep{What::drop, *places->begin()};
    }
  }
  if (const auto begin = next_begin(plan, run)) return begin;
  if (run.unsettled > 0) return next_of_standstill(run);
  if (!run.compensable.empty()) {
    if (run.paused) return std::nullopt;
    return NextStep{What::compensate, run.compensable.back().second};
  }
  return next_end(run);
}

}  // namespace

std::optional<NextStep> next_step(const FlowPlan& plan, const RunState& run) {
  const bool begun = run.status == FlowStatus::started || (run.status == FlowStatus::dispatched && run.stopping);
  if (!begun) return std::nullopt;
  if (!run.to_retry.empty()) return NextStep{What::retry, *run.to_retry.begin()};
  if (!run.to_resolve.empty()) return NextStep{What::resolve, *run.to_resolve.begin()};
  if (run.stopping) return next_of_stopping(plan, run);
  if (!run.failures.empty()) return NextStep{What::stop, *run.failures.begin()};
  if (const auto begin = next_begin(plan, run)) return begin;
  if (run.unsettled == 0) return next_end(run);
  return next_of_standstill(run);
}

void Deciding::emit(std::string_view kind, std::optional<std::uint32_t> node, const Json& more) {
  RunFact fact;
  fact.revision = run().revision + 1;
  fact.at_ms = now_;
  fact.kind = kind;
  fact.node = node;
  if (!more.empty()) fact.more = dump_json(more);
  fold(plan_, run(), fact);
  out_.facts.push_back(std::move(fact));
}

void Deciding::effect(Effect::Kind kind, std::uint32_t node, std::string detail, std::string error) {
  Effect effect;
  effect.kind = kind;
  effect.node = node;
  effect.detail = std::move(detail);
  effect.error = std::move(error);
  out_.effects.push_back(std::move(effect));
}

void Deciding::follow() {
  while (!full()) {
    const auto next = next_step(plan_, run());
    if (!next) return;
    apply(*next);
  }
}

void Deciding::apply(NextStep next) {
  switch (next.what) {
    case What::retry:
      return retry(next.node);
    case What::tell:
      return tell(next.node);
    case What::drop:
      return drop(next.node);
    case What::resolve:
      return resolve(next.node);
    case What::stop:
      return stop("failed", "node " + planned(next.node).name + " failed: " + node(next.node).detail +
                                (node(next.node).error.empty() ? "" : ": " + node(next.node).error));
    case What::judge:
      return judge(next.node);
    case What::begin:
      return begin(next.node, Json::array());
    case What::compensate:
      return emit("compensating", next.node, {{"by", planned(*planned(next.node).compensation).name}});
    case What::end:
      return end();
  }
}

void Deciding::stop(const std::string& outcome, const std::string& error) {
  emit("stopping", std::nullopt, {{"outcome", outcome}, {"error", error.substr(0, 2000)}});
}

void Deciding::end() {
  const RunState& now = run();
  if (now.stopping) {
    return emit("ended", std::nullopt, {{"status", "error"}, {"detail", now.outcome}, {"error", now.error}});
  }
  if (now.result_bytes <= kMaxFlowResultBytes) {
    return emit("ended", std::nullopt, {{"status", "finished"}, {"detail", "ok"}});
  }
  std::uint32_t largest = 0;
  for (std::uint32_t i = 0; i < plan_.nodes.size(); ++i) {
    if (node(i).result_bytes > node(largest).result_bytes) largest = i;
  }
  stop("result_too_large", "the results have " + std::to_string(now.result_bytes) + " bytes together, more than " +
                               std::to_string(kMaxFlowResultBytes) + "; the largest is that of node " +
                               planned(largest).name + ", " + std::to_string(node(largest).result_bytes) +
                               " bytes: return less, and keep what is large elsewhere");
}

std::uint64_t bytes_of(const TextMap& values) {
  std::uint64_t bytes = 0;
  for (const auto& [key, value] : values) bytes += key.size() + value.size();
  return bytes;
}

}  // namespace runs

Result<Decision> decide(const FlowPlan& plan, RunState run, const FlowEvent& event, const DecideLimits& limits) {
  runs::Deciding deciding(plan, std::move(run), event.now_ms, limits);
  if (const auto* control = std::get_if<FlowControl>(&event.what)) {
    deciding.time();
    MJ_CHECK(deciding.control(*control));
  } else if (const auto* start = std::get_if<StartRun>(&event.what)) {
    deciding.start(*start);
  } else {
    deciding.time();
    if (const auto* job = std::get_if<JobSeen>(&event.what)) deciding.job(*job);
    if (const auto* child = std::get_if<ChildStarted>(&event.what)) deciding.child(*child);
    if (const auto* flow = std::get_if<FlowSeen>(&event.what)) deciding.flow(*flow);
  }
  deciding.follow();
  return deciding.take();
}

std::size_t place_bytes(const FlowPlan& plan, std::uint32_t node) {
  const Job& job = plan.job_at(node);
  std::size_t bytes = 1000 + job.script.size() + job.policy.size();
  for (const TextMap* texts : {&job.env_vars, &plan.env_vars, &plan.input_texts}) bytes += runs::bytes_of(*texts);
  return bytes;
}

bool more_to_do(const FlowPlan& plan, const RunState& run) { return runs::next_step(plan, run).has_value(); }

std::uint64_t next_timer_ms(const RunState& run) {
  if (run.status != FlowStatus::started) return 0;
  const std::uint64_t node = run.timers.empty() ? 0 : run.timers.begin()->first;
  const bool watched = !run.cancelling && !run.compensating;
  const std::uint64_t flow = watched ? run.deadline_ms : 0;
  if (node == 0 || flow == 0) return node + flow;
  return std::min(node, flow);
}

std::vector<Effect> owed(const FlowPlan& plan, const RunState& run) {
  std::vector<Effect> effects;
  const auto add = [&effects](Effect::Kind kind, std::uint32_t node, Id flow) {
    Effect effect;
    effect.kind = kind;
    effect.node = node;
    effect.flow = flow;
    effects.push_back(std::move(effect));
  };
  for (const std::uint32_t i : run.in_flight) {
    if (plan.nodes[i].kind == NodeKind::flow && run.nodes[i].child == 0) add(Effect::Kind::start_child, i, 0);
  }
  for (const auto& [flow, i] : run.awaited) {
    const bool gate = run.nodes[i].status == NodeStatus::pending;
    const bool told = run.nodes[i].detail == "cancelling";
    if (gate) add(Effect::Kind::await_flow, i, flow);
    if (!gate && told) add(Effect::Kind::cancel_child, i, flow);
  }
  return effects;
}

std::string_view word(FlowControl::Verb verb) {
  static constexpr std::array<std::string_view, 7> kWords{"pause",  "resume", "approve", "reject",
                                                          "signal", "cancel", "retry"};
  return kWords[static_cast<std::size_t>(verb)];
}

}  // namespace mycojobs
