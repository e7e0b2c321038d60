// Flows: making, starting, steering, answering, replaying, deleting, reading.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/progress.h"
#include "domain/flow_plan.h"
#include "mycojobs/flows.h"
#include "service/caller.h"

namespace mycojobs::service {

// What a flow's functions work on; of one thread.
struct FlowStores {
  Store& records;
  FlowStore& flows;
  RunCache& runs;
};

struct CreateFlow {
  std::optional<Id> owner;  // nothing: who asks
  TextMap env_vars;         // over the definition's own
  std::string notify;       // as a record has it; instead of the definition's
  std::optional<std::string> idempotency_key;
  std::string traceparent = {};  // empty: that of who asks
};
Result<void> check(const CreateFlow&);  // what needs no store
// Not started. Again by the same key: the same flow; with another definition: conflict.
Result<Flow> create_flow(const Caller&, const FlowStores&, const FlowPlan&, const CreateFlow&);
// The same from a definition as JSON; inputs: null, or values by name.
Result<Flow> create_flow(const Caller&, const FlowStores&, nlohmann::json definition, const nlohmann::json& inputs,
                         const CreateFlow&);
// Of jobs of its owner that were written before. nodes: what their records do not say, by id or name.
Result<Flow> create_flow_of_jobs(const Caller&, const FlowStores&, const std::string& name,
                                 const nlohmann::json& job_ids, const nlohmann::json& nodes, const CreateFlow&);

struct StartFlow {
  Id flow = 0;
  std::string trigger;  // manual, rpc
};
// One that another client wrote is adopted first. facts 0: it had been started before.
Result<FlowProgress> start_flow(const Caller&, const FlowStores&, const StartFlow&);

struct ControlFlow {
  Id flow = 0;
  FlowControl::Verb verb = FlowControl::Verb::pause;
  std::string target = {};                        // as FlowControl::target
  std::string comment = {};                       // at most kMaxComment bytes
  std::string payload = {};                       // of a signal: JSON, at most 64 KiB; empty: none
  std::optional<std::string> key = std::nullopt;  // idempotency: again nothing changes; for something else: conflict
  bool allow_irreversible = false;                // retry: although an irreversible node of a child flow has completed
};
Result<void> check(const ControlFlow&);  // its limits alone
// facts 0: it had been asked for before.
Result<FlowProgress> control_flow(const Caller&, const FlowStores&, const ControlFlow&);

struct ReplayFlow {
  Id flow = 0;
  bool allow_irreversible = false;  // although an irreversible node of it has completed
  std::string traceparent = {};     // as CreateFlow has it
};
// For who may steer it and create flows. The new flow is of the same caller: whoever asks, it runs with the rights of
// its original caller. Not started. Error invalid, too_large: a job of it is over the limits of
// today.
Result<Flow> replay_flow(const Caller&, const FlowStores&, const ReplayFlow&);

// Error conflict: it has not ended.
Result<void> delete_flow(const Caller&, const FlowStores&, Id flow);

// check_policy() of a node (domain/job_limits.h).
Result<void> check_node_policy(const Caller&, const PlanNode&);
struct FlowCheck : PlanRead {
  std::vector<PlanProblem> warnings = {};  // of a plan without problems (domain/flow_warnings.h)
};
// All that is wrong with a definition, as text (YAML or JSON) or as a value; nothing is made. plan: if nothing is.
// Problems and warnings of a text have their lines.
FlowCheck check_flow(const nlohmann::json& definition);

Result<Flow> read_flow(const Caller&, Store&, Id flow);  // its record

struct ListFlows {
  std::string name = {};  // of its definition; empty: any
  Id before = 0;
  std::uint64_t limit = 50;  // 1 to 1000
  std::optional<FlowStatus> status = std::nullopt;
  std::string word = {};       // as people read it: flow_words() (inspect/flows.h); empty: any
  Id caller = 0;               // 0: any
  std::uint64_t until_ms = 0;  // made at this moment or before; 0: any
};
struct FlowRow {
  FlowSummary summary;
  Flow flow;
  std::string word;  // of flow_words(): the jobs of what is under way were looked at
};
struct FlowPage {
  std::vector<FlowRow> flows;
  Id after = 0;  // the last flow that was looked at, which the next page goes on before; 0: there are no more
  std::size_t looked_at = 0;           // rows of the catalog
  std::vector<std::string> malformed;  // ids of entries of the catalog that name no flow
};
// The newest first; of those that the caller may see. A page may have fewer than asked for, and none, though there are
// more: so many are looked at for it at most, and the jobs of 200. Error invalid: word is none of flow_words().
Result<FlowPage> page_flows(const Caller&, const FlowStores&, const ListFlows&);
// Of as many pages as it takes, as far as one goes that looks at no jobs.
Result<std::vector<FlowRow>> list_flows(const Caller&, const FlowStores&, const ListFlows&);

}  // namespace mycojobs::service
