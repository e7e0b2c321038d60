// Operations on flows: create, start, control, answer, replay, delete, read.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "flows/flow_plan.h"
#include "flows/flow_progress.h"
#include "service/request_params.h"
#include "service/service_caller.h"
#include "store/flow_store.h"

namespace mycojobs::service {

// The stores and the cache that the functions for flows use. Not thread-safe.
struct FlowStores {
  Store& records;
  FlowStore& flows;
  RunCache& runs;
};

struct CreateFlow {
  std::optional<Id> owner;  // empty: the caller
  TextMap env_vars;         // override the variables of the definition
  std::string notify;       // format of a record; replaces the setting of the definition
  std::optional<std::string> idempotency_key;
  std::string traceparent = {};  // empty: the trace of the caller
};
Result<void> check(const CreateFlow&);  // Runs the checks that need no store.
// Creates a flow without starting it. A repeated call with the same idempotency key returns the same flow. Error
// `conflict`: the key was used with another definition.
Result<Flow> create_flow(const RequestContext&, const FlowStores&, const FlowPlan&, const CreateFlow&);
// Same, with a definition as JSON. inputs: null, or values by name.
Result<Flow> create_flow(const RequestContext&, const FlowStores&, nlohmann::json definition,
                         const nlohmann::json& inputs, const CreateFlow&);
// Creates a flow from existing jobs of its owner. nodes: properties that the records of the jobs lack, by id or name.
Result<Flow> create_flow_of_jobs(const RequestContext&, const FlowStores&, const std::string& name,
                                 const nlohmann::json& job_ids, const nlohmann::json& nodes, const CreateFlow&);

struct StartFlow {
  Id flow = 0;
  std::string trigger;  // manual, rpc
};
// Starts a flow. A flow that another client wrote is adopted first. In the result, facts == 0 means that the flow had
// been started before.
Result<FlowProgress> start_flow(const RequestContext&, const FlowStores&, const StartFlow&);

struct ControlFlow {
  Id flow = 0;
  FlowControl::Verb verb = FlowControl::Verb::pause;
  std::string target = {};                        // see FlowControl::target
  std::string comment = {};                       // at most kMaxComment bytes
  std::string payload = {};                       // payload of a signal: JSON, at most 64 KiB; empty: no payload
  std::optional<std::string> key = std::nullopt;  // idempotency key; repeats change nothing
  bool allow_irreversible = false;  // retry: allowed although an irreversible node of a child flow has completed
};
ControlFlow parse_control_flow(const RequestParams&, FlowControl::Verb);
Result<void> check(const ControlFlow&);  // Checks the limits only.
// Applies a control request to a flow. In the result, facts == 0 means that the same request was made before. Error
// `conflict`: the idempotency key was used for another request.
Result<FlowProgress> control_flow(const RequestContext&, const FlowStores&, const ControlFlow&);

struct ReplayFlow {
  Id flow = 0;
  bool allow_irreversible = false;  // allowed although an irreversible node of the flow has completed
  std::string traceparent = {};     // see CreateFlow
};
// Creates a new flow from an earlier one, without starting it. Needs the rights to control that flow and to create
// flows. The new flow belongs to the original caller and runs with that caller's rights, for every requester. Errors
// `invalid`, `too_large`: a job of the flow exceeds the current limits.
Result<Flow> replay_flow(const RequestContext&, const FlowStores&, const ReplayFlow&);

// Deletes a flow. Error `conflict`: the flow has not ended.
Result<void> delete_flow(const RequestContext&, const FlowStores&, Id flow);

// Same as check_policy(), for a node (jobs/job_limits.h).
Result<void> check_node_policy(const RequestContext&, const PlanNode&);
struct FlowCheck : ParsedPlan {
  std::vector<DocumentProblem> warnings = {};  // only for a plan without problems (flows/flow_warnings.h)
};
// Returns all problems of a definition, given as text (YAML or JSON) or as a value. Creates nothing. The plan is set if
// there are no problems. Problems and warnings of a text have line numbers.
FlowCheck check_flow(const nlohmann::json& definition);
nlohmann::json to_json(const std::vector<DocumentProblem>&);

Result<Flow> read_flow(const RequestContext&, Store&, Id flow);  // Returns the record of the flow.

struct ListFlows {
  std::string name = {};  // name of the definition; empty: any
  Id before = 0;
  std::uint64_t limit = 50;  // reduced to 1000
  std::optional<FlowStatus> status = std::nullopt;
  std::string display_state = {};  // displayed state: one of flow_display_states() (inspect/flow_view.h); empty: any
  Id caller = 0;                   // 0: any
  std::uint64_t until_ms = 0;      // created at this time or before; 0: any
};
ListFlows parse_list_flows(const RequestParams&);  // filters and limit of flow.list and flows.page
struct FlowRow {
  FlowSummary summary;
  Flow flow;
  std::string display_state;  // one of flow_display_states(); for active flows the jobs were read
};
struct FlowPage {
  std::vector<FlowRow> flows;
  Id after = 0;               // last flow that was read; the next page continues before it; 0: there are no more flows
  std::size_t rows_read = 0;  // number of rows of the catalog that were read
  std::vector<std::string> malformed;  // entries of the catalog that are not ids of flows
};
// Returns a page of the flows that the caller can see, newest first. A page can have fewer flows than requested, or be
// empty, although more flows follow: a page reads a limited number of rows, and the jobs of at most 200 flows. Error
// `invalid`: `display_state` is not in flow_display_states().
Result<FlowPage> page_flows(const RequestContext&, const FlowStores&, const ListFlows&);
// Returns the flows of as many pages as needed. Reads at most as many rows of the catalog as one call of page_flows()
// that reads no jobs.
Result<std::vector<FlowRow>> list_flows(const RequestContext&, const FlowStores&, const ListFlows&);

}  // namespace mycojobs::service
