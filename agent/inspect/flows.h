// Flows as people read them: read from the journal's projection and the jobs' places, in a store that changes
// meanwhile. Reads only; survives whatever stands there: what does not fit is listed as an anomaly. Never shows a
// secret: scripts, results and payloads only where they are asked for by name.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "domain/flow_plan.h"
#include "domain/flow_state.h"
#include "inspect/log_lines.h"
#include "mycojobs/flows.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"
#include "mycojobs/store.h"

namespace mycojobs {

// The words that people read of a flow: one word for where it is, from one table (docs/flows.md repeats it). Records
// and JSON have the words of FlowStatus beside it, in a field of their own.

struct FlowWord {
  std::string_view word;
  FlowStatus status;  // what the record says then
  std::string_view meaning;
};
std::vector<FlowWord> flow_words();

// Of a record's status and detail. started, waiting and idle are seen only by those who look at the jobs too
// (look_at_flow): here such a flow is running.
std::string flow_word(FlowStatus, std::string_view detail);

// The same, for who asks for one: it may be the word of a flow whose record says running.
bool is_under_way(std::string_view word);

// The same for those: of a flow whose record says running, the jobs are looked at. Costs a look_at_flow() then.
Result<std::string> look_at_word(FlowStore&, Store&, Id context, const Flow&);

// "approved" of "approve": what somebody asked for, as what he did.
std::string done_word(std::string_view verb);

// What somebody answered or asked of a flow or a node: a control of its journal.
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
  std::string status, detail;         // the record's word; a word of flow_words()
  std::optional<FlowAnswer> held_by;  // of a flow that is paused, cancelling or cancelled: who wanted it, and why
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
  std::uint64_t at_ms = 0, revision = 0;  // revision 0: from the job's own journal
  std::string node, what;                 // "build queued", "approved by 12: ship it", "attempt 1 failed: exit"
};
// The facts of its journal, and between them the attempts that failed, were lost or given back, of at most 500 jobs.
Result<std::vector<TimelineRow>> flow_timeline(FlowStore&, Store&, Id context, Id flow, std::size_t max = 10000);

// A flow's record, definition and journal, read without changing anything. For agent/inspect only.

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
// Fills in FlowView::held_by and the answers of its nodes.
Result<void> take_answers(FlowStore&, Id context, const FlowPlan&, FlowView&);
// The facts from the first one on, at most max.
Result<std::vector<RunFact>> read_facts(FlowStore&, Id context, Id flow, std::size_t max,
                                        std::vector<std::string>& anomalies);

// What the nodes of a flow have written, read piece by piece: the log of each node's job, all attempts of it, and the
// lines of log nodes. Whole lines only: what a job has begun and not ended comes when it goes on, or at its end.

struct FlowLogLine {
  std::string node, job_key;
  Log line;  // text without its line end; seq: of the piece that ended it
};

class FlowLogs {
 public:
  FlowLogs(RecordStore& store, Id context) : store_(store), context_(context) {}

  // What has come since the last call, node after node in the order in which they follow one another; at most about
  // `max` lines: an empty answer says that there is nothing more now.
  Result<std::vector<FlowLogLine>> next(const FlowView&, std::size_t max = 1000);

 private:
  struct Place {
    std::uint64_t after = 0;
    LogLines lines;
    bool over = false;  // settled, and read to its end
  };
  Result<bool> read(const FlowView&, const NodeView&, Place&, std::vector<FlowLogLine>&);

  RecordStore& store_;
  Id context_;
  std::map<std::string, Place> places_;  // by the name of the node: what a flow gets later moves the others
};

}  // namespace mycojobs
