// flow. methods: making, reading. What moves a flow is in methods_flow_control.cpp.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "api/flow_parts.h"
#include "coordinator/create.h"
#include "coordinator/flow_run.h"
#include "domain/codec.h"
#include "domain/flow_data.h"
#include "domain/flow_inputs.h"
#include "domain/flow_plan.h"
#include "domain/notify.h"
#include "domain/result_values.h"
#include "inspect/flows.h"
#include "inspect/jobs.h"

namespace mycojobs::api {

using nlohmann::json;

Result<Flow> load_flow(Call& call) {
  Flow wanted;
  wanted.id = call.id("id");
  MJ_TRY(fields, call.store().load(call.context(), redis_key(wanted)));
  Flow flow = decode<Flow>(fields).record;
  flow.id = wanted.id;
  return flow;
}

Result<Flow> read_flow(Call& call) {
  Flow wanted;
  wanted.id = call.id("id");
  MJ_TRY(fields, call.open(Action::read, redis_key(wanted), "flow " + std::to_string(wanted.id),
                           [](const Fields& fields) { return decode<Flow>(fields).record.caller_id; }));
  Flow flow = decode<Flow>(fields).record;
  flow.id = wanted.id;
  return flow;
}

json shown(const Flow& flow) {
  json object = to_json(flow);
  object.erase("result_json");
  if (!flow.result.empty()) object["result"] = typed_values(flow.result, flow.result_json);
  object.erase("definition");  // may be large: flow.get gives it where it is asked for
  if (auto inputs = inputs_of(flow); !inputs.is_null()) object["inputs"] = std::move(inputs);
  return object;
}

namespace {

constexpr std::size_t kMaxListed = 1000, kMaxJobs = kMaxFlowNodes;
constexpr int kMaxPages = 20;  // that are looked through for the flows of one actor

Result<TextMap> env_vars_of(const Call& call) {
  json object = json::object();
  if (call.has("env_vars")) object["env_vars"] = call.params().at("env_vars");
  auto decoded = decode_json<Job>(object);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  return std::move(decoded.record.env_vars);
}

// As the record has it; empty: nothing was said.
Result<std::string> notify_of(const Call& call) {
  if (!call.has("notify")) return std::string();
  const json& value = call.params().at("notify");
  const NotifyRead read = read_notify(value, "notify");
  if (!read.problems.empty()) return fail(Code::invalid, join(read.problems));
  return value.is_array() ? dump_json(value) : dump_json(json::array({value}));
}

Result<Flow> of_definition(Call& call, Id owner, const TextMap& env) {
  if (call.has("nodes") || call.has("jobs"))
    return fail(Code::invalid, "definition: is given beside jobs or nodes: give one or the other");
  json definition = call.params().at("definition");
  if (call.has("inputs")) MJ_CHECK(give_inputs(definition, call.params().at("inputs")));
  PlanRead read = read_plan(definition);
  if (!read.plan) return fail(Code::invalid, "definition: " + join(read.problems));
  if (!read.plan->missing.empty()) return fail(Code::invalid, missing_inputs(*read.plan));
  MJ_TRY(flows, call.flows());
  NewFlow wish;
  wish.context = call.context();
  wish.caller = owner;
  wish.env_vars = env;
  wish.idempotency_key = call.text("idempotency_key");
  MJ_TRY(notify, notify_of(call));
  wish.notify = std::move(notify);
  return create_flow(*flows, *read.plan, wish);
}

// Jobs that job.create has written. An entry is an id of the flow's caller, or a text "CALLER:ID".
Result<Flow> of_jobs(Call& call, Id owner, const TextMap& env) {
  if (call.has("inputs")) return fail(Code::invalid, "inputs: only a definition declares any; leave it out");
  if (!call.has("jobs")) return fail(Code::invalid, "jobs: is missing: give ids of jobs, or a definition");
  const json& list = call.params().at("jobs");
  if (list.empty()) return fail(Code::invalid, "jobs: is empty: a flow has at least one job");
  if (list.size() > kMaxJobs)
    return fail(Code::too_large, "jobs: a flow has at most " + std::to_string(kMaxJobs) + " jobs");
  std::vector<Job> jobs;
  Flow wish;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = "jobs[" + std::to_string(i) + "]";
    const json& entry = list[i];
    if (!entry.is_number_unsigned() || entry == 0 || entry.get<std::uint64_t>() > UINT32_MAX)
      return fail(Code::invalid, place + ": must be the id of a job of actor " + std::to_string(owner));
    const Id id = entry.get<Id>();
    if (std::find(wish.jobs.begin(), wish.jobs.end(), id) != wish.jobs.end())
      return fail(Code::invalid, place + ": " + std::to_string(id) + " is named twice");
    auto view = load_job(call.store(), call.context(), job_key(owner, id));
    if (!view) return fail(view.error(), place);
    if (!view->problems.empty()) return fail(Code::invalid, place + ": " + view->problems.front());
    wish.jobs.push_back(id);
    jobs.push_back(std::move(view->job));
  }
  wish.caller_id = owner;
  wish.context_id = call.context();
  wish.name = call.text("name");
  wish.env_vars = env;
  MJ_TRY(notify, notify_of(call));
  wish.notify = std::move(notify);
  const json nodes = call.has("nodes") ? call.params().at("nodes") : json::object();
  MJ_TRY(flows, call.flows());
  return create_flow_of_jobs(*flows, wish, jobs, nodes);
}

Result<json> create(Call& call) {
  MJ_CHECK(call.may(Action::create, {.name = "flows"}));
  MJ_TRY(owner, call.owner());
  MJ_TRY(env, env_vars_of(call));
  auto flow = call.has("definition") ? of_definition(call, owner, env) : of_jobs(call, owner, env);
  if (!flow) return tl::unexpected<Error>(std::move(flow).error());
  return shown(*flow);
}

Result<json> get(Call& call) {
  MJ_TRY(flow, read_flow(call));
  json object = shown(flow);
  if (!call.flag("definition")) return object;
  MJ_TRY(flows, call.flows());
  MJ_TRY(text, flows->definition(call.context(), flow.definition_hash));
  auto parsed = parse_json(text);
  object["definition"] = parsed ? *parsed : json(text);
  return object;
}

Result<json> list(Call& call) {
  MJ_TRY(only, call.sight());
  MJ_TRY(flows, call.flows());
  const auto limit = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(call.number("limit", 50), 1, kMaxListed));
  const std::uint32_t page = only ? kMaxListed : limit;
  Id before = call.id("before");
  json all = json::array();
  for (int pages = 0; pages < kMaxPages && all.size() < limit; ++pages) {
    MJ_TRY(rows, flows->list(call.context(), call.text("name"), before, page));
    for (const FlowSummary& row : rows) {
      Flow flow = decode<Flow>(row.record).record;
      flow.id = before = row.flow;
      if (all.size() == limit || (only && flow.caller_id != *only)) continue;
      json object = shown(flow);
      object["name"] = row.name;
      object["at_ms"] = row.at_ms;
      object["retired"] = row.record.empty();
      all.push_back(std::move(object));
    }
    if (rows.size() < page) break;
  }
  return all;
}

// The FlowNodes of the coordinator's specification, and beside them what more is known of each.
Result<json> dag(Call& call) {
  MJ_TRY(flow, read_flow(call));
  MJ_TRY(flows, call.flows());
  MJ_TRY(view, look_at_flow(*flows, call.store(), call.context(), flow.id));
  auto run = load_run(*flows, call.context(), flow.id, call.runs());  // an unreadable definition: what the record says
  std::map<Id, FlowNode> stored;
  for (const FlowNode& node : run ? nodes_of(*run) : view.record.nodes) stored[node.id] = node;
  if (run) call.runs().keep(call.context(), flow.id, std::move(*run));
  json nodes = json::array(), edges = json::array();
  for (const NodeView& node : view.nodes) {
    json depends = json::array();
    for (const std::uint32_t need : node.needs) {
      if (need >= view.nodes.size()) continue;
      depends.push_back(view.nodes[need].job);
      edges.push_back({{"from", view.nodes[need].job}, {"to", node.job}});
    }
    const auto found = stored.find(node.job);
    const bool known = found != stored.end();
    nodes.push_back({{"id", node.job},
                     {"name", node.name},
                     {"depends", std::move(depends)},
                     {"prerequisites", known ? json(found->second.prerequisites) : json::array()},
                     {"supervisor_url", known ? found->second.supervisor_url : ""},
                     {"node_status", word(node.status)},
                     {"kind", node.kind},
                     {"detail", node.detail},
                     {"error", node.error},
                     {"attempt", node.attempt},
                     {"started_ms", node.started_ms},
                     {"ended_ms", node.ended_ms},
                     {"runner_id", node.runner}});
  }
  return json{{"id", flow.id},
              {"caller_id", flow.caller_id},
              {"context_id", call.context()},
              {"name", flow.name},
              {"status", view.status},
              {"detail", view.detail},
              {"revision", view.revision},
              {"nodes", std::move(nodes)},
              {"edges", std::move(edges)},
              {"anomalies", view.anomalies}};
}

Result<json> explain(Call& call) {
  MJ_TRY(flow, read_flow(call));
  MJ_TRY(flows, call.flows());
  MJ_TRY(reasons, explain_flow(*flows, call.store(), call.context(), flow.id));
  json all = json::array();
  for (const FlowReason& why : reasons) {
    all.push_back({{"node", why.node},
                   {"cause", why.cause},
                   {"reason", why.reason},
                   {"evidence", why.evidence},
                   {"next", why.next}});
  }
  return all;
}

Result<json> timeline(Call& call) {
  MJ_TRY(flow, read_flow(call));
  MJ_TRY(flows, call.flows());
  const std::size_t limit = std::clamp<std::uint64_t>(call.number("limit", 10000), 1, 10000);
  MJ_TRY(rows, flow_timeline(*flows, call.store(), call.context(), flow.id, limit));
  json all = json::array();
  for (const TimelineRow& row : rows)
    all.push_back({{"at_ms", row.at_ms}, {"revision", row.revision}, {"node", row.node}, {"what", row.what}});
  return all;
}

Result<json> result(Call& call) {
  MJ_TRY(flow, read_flow(call));
  const bool ended = flow.status == FlowStatus::finished || flow.status == FlowStatus::error;
  return json{{"id", flow.id},         {"status", word(flow.status)},
              {"detail", flow.detail}, {"error", flow.error},
              {"ended", ended},        {"result", typed_values(flow.result, flow.result_json)}};
}

Result<json> replay(Call& call) {
  MJ_TRY(flow, read_flow(call));
  MJ_CHECK(call.may(Action::create, {.name = "flows"}));
  MJ_TRY(owner, call.owner());
  if (call.flag("allow_irreversible"))
    MJ_CHECK(call.may(Action::steer, {.name = "flow " + std::to_string(flow.id), .maker = flow.caller_id}));
  MJ_TRY(flows, call.flows());
  MJ_TRY(made, replay_flow(*flows, call.runs(), call.context(), flow.id, owner, call.flag("allow_irreversible")));
  return shown(made);
}

}  // namespace

std::vector<Param> flow_params(std::vector<Param> more) {
  std::vector<Param> all{{"id", "id", "the flow's id", true},
                         {"context_id", "id", "the context; absent: the server's first"}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void add_flow_methods(Services& s, std::vector<Method>& all) {
  const Param context{"context_id", "id", "the context; absent: the server's first"};
  const Param caller{"caller_id", "id", "whose flow it is; absent: the caller's"};
  all.push_back(method(s, "flow.create", "make a flow of jobs that exist, or of a definition; flow.start begins it",
                       {context,
                        caller,
                        {"jobs", "ids", "jobs of the caller that job.create has written"},
                        {"nodes", "object",
                         "what the jobs' records do not say, by job id or name: when, on_error, "
                         "compensate, supervisor_url, irreversible"},
                        {"definition", "object", "instead of jobs: a whole definition (docs/flows.md)"},
                        {"inputs", "object", "values of the inputs that the definition declares, by name"},
                        {"name", "text", "of a flow of jobs"},
                        {"env_vars", "variables", "over the definition's own"},
                        {"notify", "any", "who hears of its end (docs/notify.md), instead of the definition's"},
                        {"idempotency_key", "text", "of its caller: again with it is the first one again"}},
                       "Flow: the flow", create));
  all.push_back(method(s, "flow.get", "read a flow's record",
                       flow_params({{"definition", "boolean", "with its definition"}}), "Flow: the flow", get));
  all.push_back(method(s, "flow.list", "list flows, newest first",
                       {context,
                        {"name", "text", "only of definitions of this name"},
                        {"before", "id", "only flows before this one"},
                        {"limit", "integer", "at most so many (50; 1000 at most)"}},
                       "[FlowRow]: flows without definition, nodes and result", list));
  all.push_back(method(s, "flow.dag", "read nodes and edges with their state", flow_params(),
                       "FlowDag: status, detail, nodes (FlowNode and more), edges {from, to} of job ids", dag));
  all.push_back(method(s, "flow.explain", "say why a flow is where it is", flow_params(),
                       "[FlowReason]: reasons, the first one first: node, cause, reason, evidence, next", explain));
  all.push_back(method(s, "flow.timeline", "read what has happened, in order",
                       flow_params({{"limit", "integer", "at most so many rows"}}),
                       "[FlowMoment]: at_ms, revision, node, what", timeline));
  all.push_back(method(s, "flow.result", "read what a flow's jobs have said", flow_params(),
                       "FlowResult: status, detail, error, ended, result {<name>.<key>: value}", result));
  all.push_back(
      method(s, "flow.replay", "make a new run of the same definition and environment",
             flow_params({caller, {"allow_irreversible", "boolean", "although an irreversible node is done"}}),
             "Flow: the new flow, not started", replay));
  add_flow_controls(s, all);
}

}  // namespace mycojobs::api
