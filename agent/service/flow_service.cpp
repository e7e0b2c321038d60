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
  bool admin = false;   // admin of the context, according to its record
  bool steers = false;  // false: allowed only because a step names the actor as approver
};

// maker: owner of the flow; 0: the flow has no owner. answers: approve and reject are also allowed for actors that a
// step names. Error `denied` is the same for a missing flow, except for actors with the right to control all flows.
Result<FlowAccess> flow_standing(const service::FlowStores& in, const AclContext& place, Id actor, Id flow, Id maker,
                                 bool answers) {
  Resource thing{.name = "flow " + std::to_string(flow), .maker = maker};
  // A context that is open without a record has no admins, so the approvers of a step are checked.
  const bool admin = place.record && check_permission(actor, Action::administer, place, thing);
  const auto may_not_steer = find_refusal(actor, Action::steer, place, thing);
  if (!may_not_steer) return FlowAccess{admin, true};
  if (!answers) return tl::unexpected<Error>(service::refuse(in.records, *may_not_steer));
  thing.names_others = true;
  if (maker != 0) {
    auto run = load_run(in.flows, place.context, flow, in.runs);
    if (!run && run.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(run).error());
    thing.names_it = run && names_approver(*run->plan, actor);
    if (run) in.runs.cache_run(place.context, flow, std::move(*run));
  }
  const auto may_not_answer = find_refusal(actor, Action::answer, place, thing);
  if (may_not_answer) return tl::unexpected<Error>(service::refuse(in.records, *may_not_answer));
  return FlowAccess{admin, false};
}

}  // namespace
}  // namespace mycojobs

namespace mycojobs::service {
namespace {

constexpr std::size_t kMaxFlowsListed = 1000;
constexpr int kMaxPages = 20;            // maximum number of pages read to find the flows of one actor
constexpr std::size_t kMaxChecks = 200;  // maximum number of flows of a page whose jobs are read
constexpr std::string_view kIdentity[] = {"id", "caller_id"};

Resource thing_of(Id flow, Id maker) { return {.name = "flow " + std::to_string(flow), .maker = maker}; }

Error no_such_flow(const RequestContext& by, Id flow) {
  const std::string context = std::to_string(by.context);
  return {Code::not_found, "flow " + std::to_string(flow) + ": does not exist in context " + context +
                               "; `mycojobs flow list" + (by.context == 1 ? "" : " --context " + context) +
                               "` shows them"};
}

// Returns the owner of a flow from its record, or no value if there is no such flow.
Result<std::optional<Id>> maker_of(const RequestContext& by, Store& store, Id flow) {
  Flow named;
  named.id = flow;
  auto fields = store.load_fields(by.context, redis_key(named), kIdentity);
  if (fields) return decode<Flow>(*fields).record.caller_id;
  if (is_absent(fields.error())) return std::nullopt;
  return tl::unexpected<Error>(std::move(fields).error());
}

// Returns the caller's rights to control a flow. Rights are checked before anything about the flow is returned.
Result<FlowAccess> steers(const RequestContext& by, const FlowStores& in, Id flow, bool answers = false) {
  MJ_TRY(maker, maker_of(by, in.records, flow));
  FlowAccess standing{false, true};
  if (!by.is_operator) {
    MJ_TRY(place, acl_context_of(by, in.records));
    MJ_TRY(asked, flow_standing(in, place, by.actor, flow, maker.value_or(0), answers));
    standing = asked;
  }
  if (!maker) return tl::unexpected<Error>(no_such_flow(by, flow));
  return standing;
}

// Checks the right to create a flow and returns the owner of the new flow.
Result<Id> owner_of_new(const RequestContext& by, Store& store, const CreateFlow& request) {
  MJ_CHECK(check(request));
  MJ_CHECK(check_permission(by, store, Action::create, {.name = "flows"}));
  return resource_owner(by, request.owner);
}

NewFlow asked_for(const RequestContext& by, const CreateFlow& request, Id owner) {
  NewFlow asked;
  asked.context = by.context;
  asked.caller = owner;
  asked.env_vars = request.env_vars;
  asked.idempotency_key = request.idempotency_key.value_or("");
  asked.notify = request.notify;
  asked.traceparent = request.traceparent.empty() ? by.traceparent : request.traceparent;
  return asked;
}

Result<Flow> make(const RequestContext& by, const FlowStores& in, const FlowPlan& plan, const CreateFlow& request,
                  Id owner) {
  MJ_TRY(limits, limits_of(by, in.records));
  if (auto fits = check_jobs(plan, limits); !fits) return fail(fits.error(), "definition");
  return mycojobs::create_flow(in.flows, plan, asked_for(by, request, owner));
}

// Returns the jobs of the owner that a list names. Each element is an id, at most once in the list.
Result<std::vector<Job>> jobs_of_list(const RequestContext& by, Store& store, const nlohmann::json& list, Id owner) {
  if (list.empty()) return fail(Code::invalid, "jobs: is empty: a flow has at least one job");
  if (list.size() > kMaxFlowNodes)
    return fail(Code::too_large, "jobs: a flow has at most " + std::to_string(kMaxFlowNodes) + " jobs");
  std::vector<Job> jobs;
  std::vector<Id> seen;
  MJ_TRY(limits, limits_of(by, store));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = "jobs[" + std::to_string(i) + "]";
    const auto& entry = list[i];
    if (!entry.is_number_unsigned() || entry == 0 || entry.get<std::uint64_t>() > UINT32_MAX)
      return fail(Code::invalid, place + ": must be the id of a job of actor " + std::to_string(owner));
    const Id id = entry.get<Id>();
    if (std::find(seen.begin(), seen.end(), id) != seen.end())
      return fail(Code::invalid, place + ": " + std::to_string(id) + " is named twice");
    auto view = load_job(store, by.context, job_key(owner, id));
    if (!view) return fail(view.error(), place);
    if (!view->problems.empty()) return fail(Code::invalid, place + ": " + view->problems.front());
    if (auto fits = mycojobs::check_policy(view->job, limits); !fits) return fail(fits.error(), place);
    seen.push_back(id);
    jobs.push_back(std::move(view->job));
  }
  return jobs;
}

}  // namespace

Result<void> check(const CreateFlow& request) {
  if (auto context = check_traceparent(request.traceparent); !context) return fail(context.error(), "traceparent");
  return check_key("idempotency_key", request.idempotency_key);
}

Result<Flow> create_flow(const RequestContext& by, const FlowStores& in, const FlowPlan& plan,
                         const CreateFlow& request) {
  MJ_TRY(owner, owner_of_new(by, in.records, request));
  return make(by, in, plan, request, owner);
}

Result<Flow> create_flow(const RequestContext& by, const FlowStores& in, nlohmann::json definition,
                         const nlohmann::json& inputs, const CreateFlow& request) {
  MJ_TRY(owner, owner_of_new(by, in.records, request));
  if (definition.is_string()) {
    YamlText places;
    auto parsed = flow_yaml_to_json(definition.get_ref<const std::string&>(), places);
    if (!parsed) return fail(parsed.error(), "definition");
    definition = std::move(*parsed);
  }
  if (!inputs.is_null()) MJ_CHECK(apply_inputs(definition, inputs));
  ParsedPlan read = read_plan(definition);
  if (!read.plan) return fail(Code::invalid, "definition: " + join(read.problems));
  return make(by, in, *read.plan, request, owner);
}

Result<void> check_node_policy(const RequestContext& by, const PlanNode& node) {
  return mycojobs::check_policy(node, limits_of(by));
}

FlowCheck check_flow(const nlohmann::json& definition) {
  YamlText places;
  nlohmann::json parsed;
  if (definition.is_string()) {
    auto read = flow_yaml_to_json(definition.get_ref<const std::string&>(), places);
    if (!read) return {{std::nullopt, {{"", read.error().message}}}};
    parsed = std::move(*read);
  }
  const nlohmann::json& value = definition.is_string() ? parsed : definition;
  FlowCheck check{read_plan(value)};
  if (check.plan) check.warnings = warnings_of(*check.plan, value);
  for (PlanProblem& problem : check.problems) locate(places, problem);
  for (PlanProblem& warning : check.warnings) locate(places, warning);
  return check;
}

Result<Flow> create_flow_of_jobs(const RequestContext& by, const FlowStores& in, const std::string& name,
                                 const nlohmann::json& job_ids, const nlohmann::json& nodes,
                                 const CreateFlow& request) {
  MJ_TRY(owner, owner_of_new(by, in.records, request));
  MJ_TRY(jobs, jobs_of_list(by, in.records, job_ids, owner));
  return mycojobs::create_flow_of_jobs(in.flows, name, asked_for(by, request, owner), jobs, nodes);
}

Result<FlowProgress> start_flow(const RequestContext& by, const FlowStores& in, const StartFlow& request) {
  MJ_CHECK(steers(by, in, request.flow));
  MJ_TRY(limits, limits_of(by, in.records));
  MJ_CHECK(adopt_flow(in.flows, in.records, limits, request.flow));
  ProgressRequest round;
  round.context = by.context;
  round.flow = request.flow;
  round.start = StartRun{request.trigger, by.actor};
  return progress(in.flows, in.runs, round);
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
// of a flow cannot be loaded, progress() reports the reason.
Result<void> check_children_of_retry(const RequestContext& by, const FlowStores& in, const ControlFlow& request) {
  auto run = load_run(in.flows, by.context, request.flow, in.runs);
  if (!run && run.error().code == Code::unavailable) return tl::unexpected<Error>(std::move(run).error());
  if (!run) return {};
  const bool repeated = request.key && run->state.keys.contains(*request.key);
  auto checked = repeated ? Result<void>() : check_retry(in.flows, *run);
  in.runs.cache_run(by.context, request.flow, std::move(*run));
  return checked;
}

}  // namespace

Result<FlowProgress> control_flow(const RequestContext& by, const FlowStores& in, const ControlFlow& request) {
  MJ_CHECK(check(request));
  const bool answers = request.verb == FlowControl::Verb::approve || request.verb == FlowControl::Verb::reject;
  MJ_TRY(standing, steers(by, in, request.flow, answers));
  if (request.verb == FlowControl::Verb::retry && !request.allow_irreversible)
    MJ_CHECK(check_children_of_retry(by, in, request));
  FlowControl control;
  control.verb = request.verb;
  control.target = request.target;
  control.actor = by.actor;
  control.admin = standing.admin;
  control.steers = standing.steers;
  control.comment = request.comment;
  control.key = request.key.value_or("");
  control.payload = request.payload;
  ProgressRequest round;
  round.context = by.context;
  round.flow = request.flow;
  round.control = std::move(control);
  return progress(in.flows, in.runs, round);
}

Result<Flow> replay_flow(const RequestContext& by, const FlowStores& in, const ReplayFlow& request) {
  if (auto context = check_traceparent(request.traceparent); !context) return fail(context.error(), "traceparent");
  MJ_CHECK(steers(by, in, request.flow));
  MJ_CHECK(check_permission(by, in.records, Action::create, {.name = "flows"}));
  MJ_TRY(run, load_run(in.flows, by.context, request.flow, in.runs));
  // The limits may have been lowered since the flow was created, and the replay may run on another server.
  MJ_TRY(limits, limits_of(by, in.records));
  if (auto fits = check_jobs(*run.plan, limits); !fits)
    return fail(fits.error(), "flow " + std::to_string(request.flow));
  return mycojobs::replay_flow(
      in.flows, run, {request.allow_irreversible, request.traceparent.empty() ? by.traceparent : request.traceparent});
}

Result<void> delete_flow(const RequestContext& by, const FlowStores& in, Id flow) {
  MJ_CHECK(check_permission(by, in.records, Action::administer, thing_of(flow, 0)));
  MJ_TRY(maker, maker_of(by, in.records, flow));
  if (!maker) return tl::unexpected<Error>(no_such_flow(by, flow));
  return in.flows.remove(by.context, flow);
}

Result<Flow> read_flow(const RequestContext& by, Store& store, Id flow) {
  Flow wanted;
  wanted.id = flow;
  MJ_TRY(fields, open_record(by, store, Action::read, redis_key(wanted), thing_of(flow, 0).name,
                             [](const Fields& read) { return decode<Flow>(read).record.caller_id; }));
  Flow found = decode<Flow>(fields).record;
  found.id = flow;
  return found;
}

namespace {

// Returns whether the record of a flow matches the request, apart from the displayed state, which may need its jobs.
bool may_be_wanted(const ListFlows& request, const FlowSummary& row, const Flow& flow) {
  const std::string word = flow_word(flow.status, flow.detail);
  return (!request.status || (flow.status == *request.status && !row.record.empty())) &&
         (request.word.empty() || word == request.word || (word == "running" && is_under_way(request.word))) &&
         (request.caller == 0 || flow.caller_id == request.caller) &&
         (request.until_ms == 0 || row.at_ms <= request.until_ms);
}

// If the jobs of a flow cannot be read, the state of the record is used; the view of the flow reports the error.
Result<std::string> word_of(const RequestContext& by, const FlowStores& in, const Flow& flow) {
  auto word = flow_state_text(in.flows, in.records, by.context, flow);
  if (word || word.error().code == Code::unavailable) return word;
  return flow_word(flow.status, flow.detail);
}

Result<void> check_word(const std::string& word) {
  std::string all;
  for (const FlowStateText& row : flow_words()) {
    if (word.empty() || row.word == word) return {};
    all += (all.empty() ? "" : ", ") + std::string(row.word);
  }
  return fail(Code::invalid, "state: " + excerpt(word) + " is not one of " + all);
}

// A page under construction, which reads one row of the catalog after the other.
class FlowPageBuilder {
 public:
  FlowPageBuilder(const RequestContext& by, const FlowStores& in, const ListFlows& request, std::optional<Id> only)
      : by_(by), in_(in), request_(request), only_(only) {}

  FlowPage page;

  Result<void> take(FlowSummary row) {
    Flow flow = decode<Flow>(row.record).record;
    flow.id = page.after = row.flow;
    ++page.looked_at;
    if ((only_ && flow.caller_id != *only_) || !may_be_wanted(request_, row, flow)) return {};
    const bool checks_done = flow_word(flow.status, flow.detail) == "running";
    checks_ += checks_done ? 1 : 0;
    MJ_TRY(word, word_of(by_, in_, flow));
    if (!request_.word.empty() && word != request_.word) return {};
    page.flows.push_back({std::move(row), std::move(flow), std::move(word)});
    return {};
  }
  bool is_full(std::size_t limit) const { return page.flows.size() >= limit || checks_ >= kMaxChecks; }

 private:
  const RequestContext& by_;
  const FlowStores& in_;
  const ListFlows& request_;
  std::optional<Id> only_;
  std::size_t checks_ = 0;
};

}  // namespace

Result<FlowPage> page_flows(const RequestContext& by, const FlowStores& in, const ListFlows& request) {
  MJ_CHECK(check_word(request.word));
  MJ_TRY(only, listable_actor(by, in.records));
  const auto limit = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(request.limit, 1, kMaxFlowsListed));
  const bool filters = only || request.status || request.caller != 0 || request.until_ms != 0 || !request.word.empty();
  const std::uint32_t at_once = filters ? kMaxFlowsListed : limit;
  FlowPageBuilder found(by, in, request, only);
  FlowPage& page = found.page;
  page.after = request.before;
  for (int checks_done = 0; checks_done < kMaxPages; ++checks_done) {
    MJ_TRY(rows, in.flows.list(by.context, request.name, page.after, at_once, &page.malformed));
    const bool last = rows.size() < at_once;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      MJ_CHECK(found.take(std::move(rows[i])));
      if (!found.is_full(limit)) continue;
      if (last && i + 1 == rows.size()) page.after = 0;
      return std::move(page);
    }
    if (last) {
      page.after = 0;
      break;
    }
  }
  return std::move(page);
}

Result<std::vector<FlowRow>> list_flows(const RequestContext& by, const FlowStores& in, const ListFlows& request) {
  ListFlows rest = request;
  rest.limit = std::clamp<std::uint64_t>(request.limit, 1, kMaxFlowsListed);
  std::vector<FlowRow> all;
  for (std::size_t looked = 0; looked < kMaxPages * kMaxFlowsListed;) {
    MJ_TRY(page, page_flows(by, in, rest));
    rest.limit -= page.flows.size();
    std::move(page.flows.begin(), page.flows.end(), std::back_inserter(all));
    looked += page.looked_at;
    rest.before = page.after;
    if (page.after == 0 || rest.limit == 0) break;
  }
  return all;
}

}  // namespace mycojobs::service
