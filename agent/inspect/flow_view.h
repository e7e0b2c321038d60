// Views of flows for users, from the projection of the journal and the state of the jobs, in a store that changes
// during the read. Read-only. Accepts any content: inconsistent data is listed as an anomaly. Never shows secrets:
// scripts, results and payloads are read only on explicit request.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "artifacts/transfer/job_log_reader.h"
#include "base/result.h"
#include "flows/flow_plan.h"
#include "flows/flow_state.h"
#include "inspect/log_lines.h"
#include "model/records.h"
#include "store/flow_store.h"
#include "store/store.h"

namespace mycojobs {

// A displayed state of a flow. Records and JSON have the FlowStatus in a separate field. docs/flows.md repeats the
// table.
struct FlowDisplayState {
  std::string_view state;
  FlowStatus status;  // status of the record in this state
  std::string_view meaning;
};
std::vector<FlowDisplayState> flow_display_states();

// Returns the displayed state for the status and detail of a record. The states started, waiting and idle need a read
// of the jobs (inspect_flow()); without it, such a flow is running.
std::string to_display_state(FlowStatus, std::string_view detail);

// Returns whether a flow with a running record may have this displayed state.
bool is_running_display_state(std::string_view state);

// Same as to_display_state(), but reads the jobs of a flow with a running record with inspect_flow(), to tell started,
// idle and waiting flows from running flows.
Result<std::string> read_display_state(FlowStore&, Store&, Id context, const Flow&);

// Returns the past form of a verb: "approved" for "approve".
std::string past_tense(std::string_view verb);

// An answer to, or a request for, a flow or a node: a control fact of its journal.
struct FlowAnswer {
  std::string action;  // approved, rejected, resumed, signalled, paused, ...
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
  bool on_call = false;                     // an error node or a compensation
  std::vector<std::string> conditions;      // conditions as text
  std::vector<std::string> gates;           // gates that are still closed: approval:NAME, signal:NAME, flow:ID
  std::vector<Id> approvers;                // of a waiting approval; empty: any actor with the right to write
  std::string prompt;                       // approval, pause: comment of the definition
  std::string text;                         // log: its line
  std::vector<FlowAnswer> answers;          // in the order of arrival
  NodeStatus status = NodeStatus::pending;  // includes the job's own state: running, ready between attempts
  std::string detail, error;
  std::uint32_t attempt = 0;
  std::uint64_t since_ms = 0, started_ms = 0, ended_ms = 0;
  std::uint64_t until_ms = 0;  // running: end of its lease; delayed, wait: due time; approval, pause, gate: time limit
  Id runner = 0, child = 0;
};

struct FlowView {
  Flow record;
  std::string status, detail;              // status of the record; displayed state, one of flow_display_states()
  std::optional<FlowAnswer> hold_request;  // the request that paused or cancelled the flow
  std::vector<NodeView> nodes;
  std::uint64_t revision = 0, checkpoint_revision = 0, events_waiting = 0, now_ms = 0;
  // Node indexes by state: planned, visible (queued), claimed, expired (the lease has expired), applied, waiting,
  // manual (approvals, pauses), unapplied.
  std::vector<std::uint32_t> planned, visible, claimed, expired, applied, waiting, manual, unapplied;
  std::vector<std::string> anomalies;
  bool has_plan = true;  // false: the definition is missing; nodes come from the record
};
bool has_ended(const FlowView&);  // whether the run is finished or has failed

// Reads a flow once: the run from its journal, and the jobs of at most max_jobs active nodes.
Result<FlowView> inspect_flow(FlowStore&, Store&, Id context, Id flow, std::size_t max_jobs = 5000);
// Makes the view of a definition without a run: all nodes are pending, and there are no times.
FlowView make_plan_view(const FlowPlan&);
nlohmann::json to_json(const FlowView&);
nlohmann::json to_json(const NodeView&);

struct FlowReason {
  std::string node;    // empty: the reason is about the flow
  std::string cause;   // a row of flow_causes()
  std::string reason;  // "node deploy waits for approval:legal since 14:02"
  std::vector<std::string> evidence;
  std::string next_action;  // commands are in `...`
};
nlohmann::json to_json(const FlowReason&);
struct FlowCauseRow {
  std::string_view cause, meaning;
};
std::vector<FlowCauseRow> flow_causes();
// Explains why a flow does not advance, or how it will advance: the most important reason first, then other reasons (at
// most 20). For a node that waits for its job, the reason is the explanation of the job (inspect/explain.h).
Result<std::vector<FlowReason>> explain_flow(FlowStore&, Store&, Id context, Id flow);

// Formats an answer: "approved by 12: ship it".
std::string describe(const FlowAnswer&);

struct TimelineRow {
  std::uint64_t at_ms = 0, revision = 0;  // revision 0: from the job's own journal
  std::string node, text;                 // "build queued", "approved by 12: ship it", "attempt 1 failed: exit"
};
nlohmann::json to_json(const TimelineRow&);
// Returns the facts of the journal, and between them the attempts that failed, were lost or were released, of at most
// 500 jobs.
Result<std::vector<TimelineRow>> flow_timeline(FlowStore&, Store&, Id context, Id flow, std::size_t max = 10000);

// The record, definition and journal of a flow, read without changes to the store. Used only in agent/inspect.

struct LoadedFlow {
  Flow record;
  std::optional<FlowPlan> plan;
  std::string plan_problem;  // reason for a missing plan
  RunState state;            // folded up to `revision`; without a plan: initial state
  std::uint64_t revision = 0, checkpoint_revision = 0, now_ms = 0;
  std::vector<FlowEventText> events;
  std::vector<std::string> anomalies;  // anomalies of record, journal and folding; at most kMaxAnomalies
};
inline constexpr std::size_t kMaxAnomalies = 100;

// Error `not_found`: the context has no key of this flow. Invalid content is reported as anomalies, not as an error.
Result<LoadedFlow> load_flow(FlowStore&, Id context, Id flow);
// Same as inspect_flow(), for a flow that was read before.
Result<FlowView> make_flow_view(LoadedFlow, FlowStore&, Store&, Id context, std::size_t max_jobs);
// Sets FlowView::hold_request and the answers of the nodes.
Result<void> read_control_answers(FlowStore&, Id context, const FlowPlan&, FlowView&);
// Returns at most `max` facts, starting with the first fact.
Result<std::vector<RunFact>> read_facts(FlowStore&, Id context, Id flow, std::size_t max,
                                        std::vector<std::string>& anomalies);

// The logs of the nodes of a flow, read in parts: the log of each node's job with all attempts, and the lines of log
// nodes. Returns whole lines only; an unfinished line is returned when the job completes it or ends.

struct FlowLogLine {
  std::string node, job_key;
  Log line;  // text without its line end; seq: of the part that ended the line
};

class FlowLogReader {
 public:
  // logs must outlive the reader.
  // nodes: the names of the nodes to read; an empty list selects all.
  FlowLogReader(RecordStore& store, Id context, JobLogReader& logs, std::vector<std::string> nodes = {})
      : store_(store), context_(context), logs_(logs), nodes_(std::move(nodes)) {}

  // Skips lines before the last `lines` of each node, as far as that needs no disk of a runner
  // (JobLogReader::find_last_lines()). Called before read_next().
  Result<void> skip_to_last_lines(const FlowView&, std::size_t lines);
  // Returns the lines that were added since the last call, in the order of the nodes; at most about `max` lines. An
  // empty result means that there are no more lines now.
  Result<std::vector<FlowLogLine>> read_next(const FlowView&, std::size_t max = 1000);

 private:
  struct LogPosition {
    std::uint64_t last_seq = 0;  // number of the last part that was read
    LogLineSplitter splitter;
    bool is_fully_read = false;  // the node is settled, and its log was read to the end
  };
  Result<bool> read(const FlowView&, const NodeView&, LogPosition&, std::vector<FlowLogLine>&);
  bool is_read(const NodeView&) const;  // false for nodes without a log, and for those that are not selected

  RecordStore& store_;
  Id context_;
  JobLogReader& logs_;
  const std::vector<std::string> nodes_;
  // Positions by the name of the node, because nodes that are added later change the indexes of other nodes.
  std::map<std::string, LogPosition> positions_;
};

}  // namespace mycojobs
