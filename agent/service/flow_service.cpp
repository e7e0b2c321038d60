#include "service/flow_service.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "flows/flow_creation.h"
#include "flows/flow_decider.h"
#include "flows/flow_plan.h"
#include "flows/flow_progress.h"
#include "flows/flow_warnings.h"
#include "flows/flow_yaml.h"
#include "flows/plan_limits.h"
#include "inspect/flow_view.h"
#include "inspect/job_view.h"
#include "model/codec.h"
#include "model/prerequisite.h"
#include "model/trace_context.h"
#include "security/rights.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {
namespace {

// The rights of an actor to control a flow. Commands and RPC check them before they return anything about the flow.
struct FlowAccess {
  bool is_admin = false;   // admin of the context, according to its record
  bool can_steer = false;  // false: allowed only because a step names the actor as approver
};

// Returns the rights of an actor to a flow. owner: owner of the flow; 0: the flow does not exist. is_answer: the
// request is approve or reject, which actors that a step names may send, too. Error `denied` is the same for a missing
// flow, except for actors with the right to control all flows.
Result<FlowAccess> find_flow_access(const service::FlowStores& stores, const AclContext& acl, Id actor, Id flow,
                                    Id owner, bool is_answer) {
  Resource resource{.name = "flow " + std::to_string(flow), .creator = owner};
  // A context that is open without a record has no admins, so the approvers of a step are checked.
  const bool is_admin = acl.record && check_permission(actor, Action::administer, acl, resource);
  const auto steer_refusal = find_refusal(actor, Action::steer, acl, resource);
  if (!steer_refusal) return FlowAccess{is_admin, true};
  if (!is_answer) return tl::unexpected<Error>(service::refuse(stores.records, *steer_refusal));
  resource.names_actors = true;
  if (owner != 0) {
    auto run = load_run(stores.flows, acl.context, flow, stores.runs);
    if (!run && run.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(run).error());
    resource.names_caller = run && has_approver(*run->plan, actor);
    if (run) stores.runs.cache_run(acl.context, flow, std::move(*run));
  }
  const auto answer_refusal = find_refusal(actor, Action::answer, acl, resource);
  if (answer_refusal) return tl::unexpected<Error>(service::refuse(stores.records, *answer_refusal));
  return FlowAccess{is_admin, false};
}

}  // namespace
}  // namespace mycojobs

namespace mycojobs::service {
namespace {

constexpr std::size_t kMaxFlowsListed = 1000;
constexpr int kMaxPages = 20;                    // maximum number of pages read to find the flows of one actor
constexpr std::size_t kMaxInspectedFlows = 200;  // maximum number of flows of a page whose jobs are read
constexpr std::string_view kOwnerFields[] = {"id", "caller_id"};

Resource flow_resource(Id flow, Id owner) { return {.name = "flow " + std::to_string(flow), .creator = owner}; }

Error flow_not_found_error(const RequestContext& caller, Id flow) {
  const std::string context = std::to_string(caller.context);
  return {Code::not_found, "flow " + std::to_string(flow) + ": does not exist in context " + context +
                               "; `mycojobs flow list" + (caller.context == 1 ? "" : " --context " + context) +
                               "` shows them"};
}

// Returns the owner of a flow from its record, or no value if there is no such flow.
Result<std::optional<Id>> load_flow_owner(const RequestContext& caller, Store& store, Id flow) {
  Flow record;
  record.id = flow;
  auto fields = store.load_fields(caller.context, redis_key(record), kOwnerFields);
  if (fields) return decode<Flow>(*fields).record.caller_id;
  if (is_absent(fields.error())) return std::nullopt;
  return tl::unexpected<Error>(std::move(fields).error());
}

// Returns the caller's rights to control a flow. Rights are checked before anything about the flow is returned.
Result<FlowAccess> check_flow_access(const RequestContext& caller, const FlowStores& stores, Id flow,
                                     bool is_answer = false) {
  MJ_TRY(owner, load_flow_owner(caller, stores.records, flow));
  FlowAccess access{false, true};
  if (!caller.is_operator) {
    MJ_TRY(acl, load_acl_context(caller, stores.records));
    MJ_TRY(flow_access, find_flow_access(stores, acl, caller.actor, flow, owner.value_or(0), is_answer));
    access = flow_access;
  }
  if (!owner) return tl::unexpected<Error>(flow_not_found_error(caller, flow));
  return access;
}

// Checks the right to create a flow and returns the owner of the new flow.
Result<Id> check_flow_creation(const RequestContext& caller, Store& store, const CreateFlow& request) {
  MJ_CHECK(check(request));
  MJ_CHECK(check_permission(caller, store, Action::create, {.name = "flows"}));
  return resolve_owner(caller, request.owner);
}

NewFlow make_new_flow(const RequestContext& caller, const CreateFlow& request, Id owner) {
  NewFlow new_flow;
  new_flow.context = caller.context;
  new_flow.caller = owner;
  new_flow.env_vars = request.env_vars;
  new_flow.idempotency_key = request.idempotency_key.value_or("");
  new_flow.notify = request.notify;
  new_flow.traceparent = request.traceparent.empty() ? caller.traceparent : request.traceparent;
  return new_flow;
}

Result<Flow> create_flow_of_plan(const RequestContext& caller, const FlowStores& stores, const FlowPlan& plan,
                                 const CreateFlow& request, Id owner) {
  MJ_TRY(limits, get_job_limits(caller, stores.records));
  if (auto fits = check_jobs(plan, limits); !fits) return fail(fits.error(), "definition");
  return mycojobs::create_flow(stores.flows, plan, make_new_flow(caller, request, owner));
}

// Returns the jobs of the owner that a list names. Each element is an id, at most once in the list.
Result<std::vector<Job>> load_listed_jobs(const RequestContext& caller, Store& store, const nlohmann::json& list,
                                          Id owner) {
  if (list.empty()) return fail(Code::invalid, "jobs: is empty: a flow has at least one job");
  if (list.size() > kMaxFlowNodes)
    return fail(Code::too_large, "jobs: a flow has at most " + std::to_string(kMaxFlowNodes) + " jobs");
  std::vector<Job> jobs;
  std::vector<Id> ids;
  MJ_TRY(limits, get_job_limits(caller, store));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string field = "jobs[" + std::to_string(i) + "]";
    const auto& entry = list[i];
    if (!entry.is_number_unsigned() || entry == 0 || entry.get<std::uint64_t>() > UINT32_MAX)
      return fail(Code::invalid, field + ": must be the id of a job of actor " + std::to_string(owner));
    const Id id = entry.get<Id>();
    if (std::find(ids.begin(), ids.end(), id) != ids.end())
      return fail(Code::invalid, field + ": " + std::to_string(id) + " is named twice");
    auto view = load_job(store, caller.context, job_key(owner, id));
    if (!view) return fail(view.error(), field);
    if (!view->problems.empty()) return fail(Code::invalid, field + ": " + view->problems.front());
    if (auto fits = mycojobs::check_policy(view->job, limits); !fits) return fail(fits.error(), field);
    ids.push_back(id);
    jobs.push_back(std::move(view->job));
  }
  return jobs;
}

}  // namespace

Result<void> check(const CreateFlow& request) {
  if (auto context = check_traceparent(request.traceparent); !context) return fail(context.error(), "traceparent");
  return check_key("idempotency_key", request.idempotency_key);
}

Result<Flow> create_flow(const RequestContext& caller, const FlowStores& stores, const FlowPlan& plan,
                         const CreateFlow& request) {
  MJ_TRY(owner, check_flow_creation(caller, stores.records, request));
  return create_flow_of_plan(caller, stores, plan, request, owner);
}

Result<Flow> create_flow(const RequestContext& caller, const FlowStores& stores, nlohmann::json definition,
                         const nlohmann::json& inputs, const CreateFlow& request) {
  MJ_TRY(owner, check_flow_creation(caller, stores.records, request));
  if (definition.is_string()) {
    YamlText yaml_positions;
    auto parsed_yaml = flow_yaml_to_json(definition.get_ref<const std::string&>(), yaml_positions);
    if (!parsed_yaml) return fail(parsed_yaml.error(), "definition");
    definition = std::move(*parsed_yaml);
  }
  if (!inputs.is_null()) MJ_CHECK(apply_inputs(definition, inputs));
  ParsedPlan parsed_plan = read_plan(definition);
  if (!parsed_plan.plan) return fail(Code::invalid, "definition: " + join(parsed_plan.problems));
  return create_flow_of_plan(caller, stores, *parsed_plan.plan, request, owner);
}

Result<void> check_node_policy(const RequestContext& caller, const PlanNode& node) {
  return mycojobs::check_policy(node, get_job_limits(caller));
}

FlowCheck check_flow(const nlohmann::json& definition) {
  YamlText yaml_positions;
  nlohmann::json yaml_value;
  if (definition.is_string()) {
    auto parsed_yaml = flow_yaml_to_json(definition.get_ref<const std::string&>(), yaml_positions);
    if (!parsed_yaml) return {{std::nullopt, {{"", parsed_yaml.error().message}}}};
    yaml_value = std::move(*parsed_yaml);
  }
  const nlohmann::json& value = definition.is_string() ? yaml_value : definition;
  FlowCheck check{read_plan(value)};
  if (check.plan) check.warnings = find_warnings(*check.plan, value);
  for (DocumentProblem& problem : check.problems) set_position(yaml_positions, problem);
  for (DocumentProblem& warning : check.warnings) set_position(yaml_positions, warning);
  return check;
}

Result<Flow> create_flow_of_jobs(const RequestContext& caller, const FlowStores& stores, const std::string& name,
                                 const nlohmann::json& job_ids, const nlohmann::json& nodes,
                                 const CreateFlow& request) {
  MJ_TRY(owner, check_flow_creation(caller, stores.records, request));
  MJ_TRY(jobs, load_listed_jobs(caller, stores.records, job_ids, owner));
  return mycojobs::create_flow_of_jobs(stores.flows, name, make_new_flow(caller, request, owner), jobs, nodes);
}

Result<FlowProgress> start_flow(const RequestContext& caller, const FlowStores& stores, const StartFlow& request) {
  MJ_CHECK(check_flow_access(caller, stores, request.flow));
  MJ_TRY(limits, get_job_limits(caller, stores.records));
  MJ_CHECK(adopt_flow(stores.flows, stores.records, limits, request.flow));
  ProgressRequest progress_request;
  progress_request.context = caller.context;
  progress_request.flow = request.flow;
  progress_request.start = StartRun{request.trigger, caller.actor};
  return advance_run(stores.flows, stores.runs, progress_request);
}

ControlFlow parse_control_flow(const RequestParams& params, FlowControl::Verb verb) {
  ControlFlow request{.flow = params.id("id"), .verb = verb, .comment = params.text("comment")};
  request.target = params.text(params.has_param("name") ? "name" : "node");
  request.key = params.optional_text("key");
  if (params.has_param("payload")) request.payload = dump_json(params.params().at("payload"));
  request.allow_irreversible = params.flag("allow_irreversible");
  return request;
}

Result<void> check(const ControlFlow& request) {
  MJ_CHECK(check_length("comment", request.comment, kMaxComment));
  MJ_CHECK(check_length("payload", request.payload, kMaxSignalPayload));
  if (!request.payload.empty()) {
    if (auto parsed = parse_exact_json(request.payload); !parsed) return fail(parsed.error(), "payload");
  }
  return check_key("key", request.key);
}

namespace {

// Runs check_retry() unless the same retry was made before: a repeated request with its key changes nothing. If the run
// of a flow cannot be loaded, advance_run() reports the reason.
Result<void> check_children_of_retry(const RequestContext& caller, const FlowStores& stores,
                                     const ControlFlow& request) {
  auto run = load_run(stores.flows, caller.context, request.flow, stores.runs);
  if (!run && run.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(run).error());
  if (!run) return {};
  const bool is_repeated = request.key && run->state.control_digests.contains(*request.key);
  auto result = is_repeated ? Result<void>() : check_retry(stores.flows, *run);
  stores.runs.cache_run(caller.context, request.flow, std::move(*run));
  return result;
}

}  // namespace

Result<FlowProgress> control_flow(const RequestContext& caller, const FlowStores& stores, const ControlFlow& request) {
  MJ_CHECK(check(request));
  const bool is_answer = request.verb == FlowControl::Verb::approve || request.verb == FlowControl::Verb::reject;
  MJ_TRY(access, check_flow_access(caller, stores, request.flow, is_answer));
  if (request.verb == FlowControl::Verb::retry && !request.allow_irreversible)
    MJ_CHECK(check_children_of_retry(caller, stores, request));
  FlowControl control;
  control.verb = request.verb;
  control.target = request.target;
  control.actor = caller.actor;
  control.admin = access.is_admin;
  control.can_steer = access.can_steer;
  control.comment = request.comment;
  control.key = request.key.value_or("");
  control.payload = request.payload;
  ProgressRequest progress_request;
  progress_request.context = caller.context;
  progress_request.flow = request.flow;
  progress_request.control = std::move(control);
  return advance_run(stores.flows, stores.runs, progress_request);
}

Result<Flow> replay_flow(const RequestContext& caller, const FlowStores& stores, const ReplayFlow& request) {
  if (auto context = check_traceparent(request.traceparent); !context) return fail(context.error(), "traceparent");
  MJ_CHECK(check_flow_access(caller, stores, request.flow));
  MJ_CHECK(check_permission(caller, stores.records, Action::create, {.name = "flows"}));
  MJ_TRY(run, load_run(stores.flows, caller.context, request.flow, stores.runs));
  // The limits may have been lowered since the flow was created, and the replay may run on another server.
  MJ_TRY(limits, get_job_limits(caller, stores.records));
  if (auto fits = check_jobs(*run.plan, limits); !fits)
    return fail(fits.error(), "flow " + std::to_string(request.flow));
  return mycojobs::replay_flow(
      stores.flows, run,
      {request.allow_irreversible, request.traceparent.empty() ? caller.traceparent : request.traceparent});
}

Result<void> delete_flow(const RequestContext& caller, const FlowStores& stores, Id flow) {
  MJ_CHECK(check_permission(caller, stores.records, Action::administer, flow_resource(flow, 0)));
  MJ_TRY(owner, load_flow_owner(caller, stores.records, flow));
  if (!owner) return tl::unexpected<Error>(flow_not_found_error(caller, flow));
  return stores.flows.remove(caller.context, flow);
}

nlohmann::json to_json(const std::vector<DocumentProblem>& problems) {
  nlohmann::json rows = nlohmann::json::array();
  for (const DocumentProblem& problem : problems)
    rows.push_back({{"path", to_utf8(problem.path)},
                    {"message", to_utf8(problem.message)},
                    {"line", problem.line},
                    {"column", problem.column}});
  return rows;
}

Result<Flow> read_flow(const RequestContext& caller, Store& store, Id flow) {
  Flow record;
  record.id = flow;
  MJ_TRY(fields, open_record(caller, store, Action::read, redis_key(record), flow_resource(flow, 0).name,
                             [](const Fields& stored) { return decode<Flow>(stored).record.caller_id; }));
  Flow result = decode<Flow>(fields).record;
  result.id = flow;
  return result;
}

namespace {

// Returns whether the record of a flow matches the request, apart from the displayed state, which may need its jobs.
bool may_match(const ListFlows& request, const FlowSummary& row, const Flow& flow) {
  const std::string state = to_display_state(flow.status, flow.detail);
  return (!request.status || (flow.status == *request.status && !row.record.empty())) &&
         (request.display_state.empty() ||
          (!row.record.empty() && (state == request.display_state ||
                                   (state == "running" && is_running_display_state(request.display_state))))) &&
         (request.caller == 0 || flow.caller_id == request.caller) &&
         (request.until_ms == 0 || row.at_ms <= request.until_ms);
}

// If the jobs of a flow cannot be read, the state of the record is used; the view of the flow reports the error.
Result<std::string> read_flow_state(const RequestContext& caller, const FlowStores& stores, const Flow& flow) {
  auto state = read_display_state(stores.flows, stores.records, caller.context, flow);
  if (state || state.error().code == Code::unavailable) return state;
  return to_display_state(flow.status, flow.detail);
}

Result<void> check_display_state(const std::string& state) {
  std::string names;
  for (const FlowDisplayState& row : flow_display_states()) {
    if (state.empty() || row.state == state) return {};
    names += (names.empty() ? "" : ", ") + std::string(row.state);
  }
  return fail(Code::invalid, "state: " + excerpt(state) + " is not one of " + names);
}

// A page under construction, which reads one row of the catalog after the other.
class FlowPageBuilder {
 public:
  FlowPageBuilder(const RequestContext& caller, const FlowStores& stores, const ListFlows& request,
                  std::optional<Id> visible_owner)
      : caller_(caller), stores_(stores), request_(request), visible_owner_(visible_owner) {}

  FlowPage page;

  Result<void> add_row(FlowSummary row) {
    Flow flow = decode<Flow>(row.record).record;
    flow.id = page.after = row.flow;
    ++page.rows_read;
    if ((visible_owner_ && flow.caller_id != *visible_owner_) || !may_match(request_, row, flow)) return {};
    const bool needs_jobs = to_display_state(flow.status, flow.detail) == "running";
    inspected_count_ += needs_jobs ? 1 : 0;
    MJ_TRY(state, read_flow_state(caller_, stores_, flow));
    if (!request_.display_state.empty() && state != request_.display_state) return {};
    page.flows.push_back({std::move(row), std::move(flow), std::move(state)});
    return {};
  }
  bool is_full(std::size_t limit) const { return page.flows.size() >= limit || inspected_count_ >= kMaxInspectedFlows; }

 private:
  const RequestContext& caller_;
  const FlowStores& stores_;
  const ListFlows& request_;
  std::optional<Id> visible_owner_;
  std::size_t inspected_count_ = 0;  // number of flows whose jobs were read
};

}  // namespace

ListFlows parse_list_flows(const RequestParams& params) {
  return {.name = params.text("name"),
          .limit = params.number("limit"),
          .status = parse<FlowStatus>(params.text("status")),
          .display_state = params.text("state"),
          .caller = params.id("caller_id"),
          .until_ms = params.number("until_ms")};
}

Result<FlowPage> page_flows(const RequestContext& caller, const FlowStores& stores, const ListFlows& request) {
  MJ_CHECK(check_display_state(request.display_state));
  MJ_TRY(visible_owner, find_listable_actor(caller, stores.records));
  const auto limit = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(request.limit, 1, kMaxFlowsListed));
  const bool has_filter =
      visible_owner || request.status || request.caller != 0 || request.until_ms != 0 || !request.display_state.empty();
  const std::uint32_t batch_rows = has_filter ? kMaxFlowsListed : limit;
  FlowPageBuilder builder(caller, stores, request, visible_owner);
  FlowPage& page = builder.page;
  page.after = request.before;
  for (int page_count = 0; page_count < kMaxPages; ++page_count) {
    MJ_TRY(rows, stores.flows.list(caller.context, request.name, page.after, batch_rows, &page.malformed));
    const bool is_last_page = rows.size() < batch_rows;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      MJ_CHECK(builder.add_row(std::move(rows[i])));
      if (!builder.is_full(limit)) continue;
      if (is_last_page && i + 1 == rows.size()) page.after = 0;
      return std::move(page);
    }
    if (is_last_page) {
      page.after = 0;
      break;
    }
  }
  return std::move(page);
}

Result<std::vector<FlowRow>> list_flows(const RequestContext& caller, const FlowStores& stores,
                                        const ListFlows& request) {
  ListFlows page_request = request;
  page_request.limit = std::clamp<std::uint64_t>(request.limit, 1, kMaxFlowsListed);
  std::vector<FlowRow> flows;
  for (std::size_t rows_read = 0; rows_read < kMaxPages * kMaxFlowsListed;) {
    MJ_TRY(page, page_flows(caller, stores, page_request));
    page_request.limit -= page.flows.size();
    std::move(page.flows.begin(), page.flows.end(), std::back_inserter(flows));
    rows_read += page.rows_read;
    page_request.before = page.after;
    if (page.after == 0 || page_request.limit == 0) break;
  }
  return flows;
}

}  // namespace mycojobs::service
