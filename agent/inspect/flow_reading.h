// A flow's record, definition and journal, read without changing anything. For agent/inspect only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "domain/flow_plan.h"
#include "domain/flow_state.h"
#include "inspect/flows.h"
#include "mycojobs/flows.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

struct FlowReading {
  Flow record;
  std::optional<FlowPlan> plan;
  std::string plan_problem;  // why there is none
  RunState state;            // folded up to `revision`; without a plan: fresh
  std::uint64_t revision = 0, checkpoint_at = 0, now_ms = 0;
  std::vector<FlowEventText> events;
  std::vector<std::string> anomalies;  // of record, journal and folding; at most kMaxAnomalies
};
inline constexpr std::size_t kMaxAnomalies = 100;

// Error not_found: nothing in the context knows this flow. What is wrong with what stands there is no error.
Result<FlowReading> read_flow(FlowStore&, Id context, Id flow);
// look_at_flow() of what was read.
Result<FlowView> view_of(FlowReading, FlowStore&, Store&, Id context, std::size_t max_jobs);
// Fills in FlowView::said and the answers of its nodes.
Result<void> take_answers(FlowStore&, Id context, const FlowPlan&, FlowView&);
// The facts from the first one on, at most max.
Result<std::vector<RunFact>> read_facts(FlowStore&, Id context, Id flow, std::size_t max,
                                        std::vector<std::string>& anomalies);

}  // namespace mycojobs
