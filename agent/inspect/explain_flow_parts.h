// Parts of explain_flow(). For explain_flow*.cpp only.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inspect/flow_reading.h"
#include "inspect/flows.h"

namespace mycojobs::explaining_flow {

// What is known when reasons are looked for.
struct Known {
  Id context = 1;
  FlowView view;
  std::uint32_t max_parallel = 0;  // of the definition
  bool undone = false;             // a compensation was called: it cannot be retried any more
  std::pair<std::string, std::string> leader;
};

// Of nodes that wait for a job: one that explain() was asked about.
struct JobReason {
  std::uint32_t node = 0;
  std::string cause, reason, next;  // of inspect/explain.h
  std::vector<std::string> evidence;
};

std::vector<FlowReason> of_flow(const Known&);   // what holds or moves it as a whole
std::vector<FlowReason> of_nodes(const Known&);  // approvals, pauses, gates, waits, child flows, a bound that is met
FlowReason of_job(const Known&, const JobReason&);
// Nodes whose jobs are worth asking about, the most telling first; not more than a few that stand alike.
std::vector<std::uint32_t> jobs_to_ask(const FlowView&, std::size_t max);

// "`mycojobs flow approve 12 ok --context 3`"
std::string command(const Known&, std::string_view verb, std::string_view rest = "");
// "since 14:02 UTC (3 min)"
std::string since(std::uint64_t at_ms, std::uint64_t now_ms);
std::string named(const NodeView&);  // "node deploy"

}  // namespace mycojobs::explaining_flow
