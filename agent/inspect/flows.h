// Flows as people read them: read from the journal's projection and the jobs' places, in a store that changes
// meanwhile. Reads only; survives whatever stands there: what does not fit is listed as an anomaly. Never shows a
// secret: scripts, results and payloads only where they are asked for by name.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "domain/flow_plan.h"
#include "domain/flow_state.h"
#include "mycojobs/flows.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

// What somebody said of a flow or a node: a control of its journal.
struct FlowAnswer {
  std::string what;  // approved, rejected, resumed, signalled, paused ...
  Id actor = 0;
  std::string comment;
  std::uint64_t at_ms = 0;
};

struct NodeView {
  std::uint32_t index = 0;
  Id job = 0;
  std::string job_key, name, kind;
  std::vector<std::uint32_t> needs;
  std::optional<std::uint32_t> error_node, compensation;
  bool on_call = false;                     // an error node or compensation
  std::vector<std::string> when;            // its conditions, as text
  std::vector<std::string> gates;           // that are not open yet: approval:NAME, signal:NAME, flow:ID
  std::vector<Id> approvers;                // of an approval that waits; empty: any actor who may write
  std::string asks;                         // approval, pause: the comment of the definition
  std::string text;                         // log: its line
  std::vector<FlowAnswer> answers;          // in the order in which they came
  NodeStatus status = NodeStatus::pending;  // with the job's own state laid over it: running, ready between attempts
  std::string detail, error;
  std::uint32_t attempt = 0;
  std::uint64_t since_ms = 0, started_ms = 0, ended_ms = 0;
  std::uint64_t until_ms = 0;  // running: end of its lease; delayed, wait: due; approval, pause, gate: time limit
  Id runner = 0, child = 0;
};

struct FlowView {
  Flow record;
  std::string status, detail;      // the record's word; a word of flow_words() (inspect/flow_words.h)
  std::optional<FlowAnswer> said;  // of a flow that is paused, cancelling or cancelled: who wanted it, and why
  std::vector<NodeView> nodes;
  // What inspection of a run shows (counts and names): planned, visible (queued), claimed, expired (leases over),
  // applied, waiting, manual (approvals, pauses), terminal.
  std::uint64_t revision = 0, checkpoint_at = 0, events_waiting = 0, now_ms = 0;
  std::vector<std::uint32_t> planned, visible, claimed, expired, applied, waiting, manual, unapplied;
  std::vector<std::string> anomalies;
  bool has_plan = true;  // false: its definition is gone; nodes are what the record says
};

// One look: the run from its journal, the jobs of its nodes (at most max_jobs of those under way are laid over).
Result<FlowView> look_at_flow(FlowStore&, Store&, Id context, Id flow, std::size_t max_jobs = 5000);
FlowView view_of_plan(const FlowPlan&);  // of a definition that does not run: every node pending, no times
nlohmann::json to_json(const FlowView&);
nlohmann::json to_json(const NodeView&);

struct FlowReason {
  std::string node;    // empty: of the flow
  std::string cause;   // a row of flow_causes()
  std::string reason;  // "node deploy waits for approval:legal since 14:02"
  std::vector<std::string> evidence;
  std::string next;  // what to do now; commands in `...`
};
struct FlowCauseRow {
  std::string_view cause, meaning;
};
std::vector<FlowCauseRow> flow_causes();
// Why nothing moves, or what moves it: the one reason that matters first, then the others (at most 20). Of a node that
// waits for its job: that job's explanation (inspect/explain.h).
Result<std::vector<FlowReason>> explain_flow(FlowStore&, Store&, Id context, Id flow);

enum class GraphFormat { text, ascii, mermaid, dot, json };
std::string_view word(GraphFormat);
// text: boxes in layers with their arrows' targets, for a terminal of `width` columns; colours if `colour`. Large flows
// (over max_nodes) are folded by layer and status, with counts. ascii: the same for a terminal that knows no more.
std::string draw_flow(const FlowView&, GraphFormat, std::size_t width = 100, bool colour = false,
                      std::size_t max_nodes = 200);

// "approved by 12: ship it"
std::string describe(const FlowAnswer&);

struct TimelineRow {
  std::uint64_t at_ms = 0, revision = 0;  // revision 0: told by the job's own journal
  std::string node, what;                 // "build queued", "approved by 12: ship it", "attempt 1 failed: exit"
};
// The facts of its journal, and between them the attempts that failed, were lost or given back, of at most 500 jobs.
Result<std::vector<TimelineRow>> flow_timeline(FlowStore&, Store&, Id context, Id flow, std::size_t max = 10000);

}  // namespace mycojobs
