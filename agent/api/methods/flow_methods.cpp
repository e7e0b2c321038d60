// The `flow.` methods that create, read and delete flows. Methods that control a flow are in flow_control_methods.cpp.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "api/methods/flow_methods.h"
#include "base/parse.h"
#include "flows/flow_run.h"
#include "inspect/flow_view.h"
#include "model/codec.h"
#include "model/flow_data.h"
#include "model/notify_targets.h"
#include "model/result_values.h"
#include "text/json.h"

namespace mycojobs::api {

using nlohmann::json;

json flow_to_json(const Flow& flow) {
  json object = to_json(flow);
  object.erase("result_json");
  if (!flow.result.empty()) object["result"] = to_typed_json(flow.result, flow.result_json);
  object.erase("definition");  // may be large; flow.get returns it on request
  if (auto inputs = parse_flow_inputs(flow); !inputs.is_null()) object["inputs"] = std::move(inputs);
  return object;
}

json flow_result_to_json(const Flow& flow) {
  const bool ended = flow.status == FlowStatus::finished || flow.status == FlowStatus::error;
  return {{"id", flow.id},         {"status", to_string(flow.status)},
          {"detail", flow.detail}, {"error", flow.error},
          {"ended", ended},        {"result", to_typed_json(flow.result, flow.result_json)}};
}

namespace flow_methods {

Result<Flow> read_flow(MethodCall& call) {
  return service::read_flow(call.request_context(), call.store(), call.id("id"));
}

Result<TextMap> parse_env_vars(const MethodCall& call) {
  json object = json::object();
  if (call.has_param("env_vars")) object["env_vars"] = call.params().at("env_vars");
  auto decoded = decode_json<Job>(object);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  return std::move(decoded.record.env_vars);
}

// Returns the notification targets in the form of the record, or an empty text if the request has no targets.
Result<std::string> parse_notify_param(const MethodCall& call) {
  if (!call.has_param("notify")) return std::string();
  const json& value = call.params().at("notify");
  const ParsedNotify parsed = parse_notify(value, "notify");
  if (!parsed.problems.empty()) return fail(Code::invalid, join(parsed.problems));
  return value.is_array() ? dump_json(value) : dump_json(json::array({value}));
}

Result<Flow> make_flow(MethodCall& call, const service::CreateFlow& request) {
  const auto get_param = [&](const char* name) { return call.has_param(name) ? call.params().at(name) : json(); };
  MJ_TRY(flows, call.open_flow_store());
  if (call.has_param("definition")) {
    if (call.has_param("nodes") || call.has_param("jobs"))
      return fail(Code::invalid, "definition: is given beside jobs or nodes: give one or the other");
    return service::create_flow(call.request_context(), call.make_flow_stores(*flows), get_param("definition"),
                                get_param("inputs"), request);
  }
  if (call.has_param("inputs")) return fail(Code::invalid, "inputs: only a definition declares inputs; omit it");
  if (!call.has_param("jobs")) return fail(Code::invalid, "jobs: is missing: give ids of jobs, or a definition");
  const json nodes = call.has_param("nodes") ? call.params().at("nodes") : json::object();
  return service::create_flow_of_jobs(call.request_context(), call.make_flow_stores(*flows), call.text("name"),
                                      get_param("jobs"), nodes, request);
}

Result<json> create(MethodCall& call) {
  service::CreateFlow request;
  request.owner = call.optional_id("caller_id");
  request.idempotency_key = call.optional_text("idempotency_key");
  MJ_TRY(env, parse_env_vars(call));
  request.env_vars = std::move(env);
  MJ_TRY(notify, parse_notify_param(call));
  request.notify = std::move(notify);
  request.traceparent = call.text("traceparent");
  MJ_CHECK(service::check(request));
  MJ_TRY(flow, make_flow(call, request));
  return flow_to_json(flow);
}

Result<json> get(MethodCall& call) {
  MJ_TRY(flow, read_flow(call));
  json object = flow_to_json(flow);
  if (!call.flag("definition")) return object;
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(text, flows->definition(call.context(), flow.definition_hash));
  auto parsed = parse_json(text);
  object["definition"] = parsed ? *parsed : json(text);
  return object;
}

json rows_to_json(const std::vector<service::FlowRow>& rows) {
  json list = json::array();
  for (const service::FlowRow& row : rows) {
    json object = flow_to_json(row.flow);
    object["name"] = row.summary.name;
    object["at_ms"] = row.summary.at_ms;
    object["retired"] = row.summary.record.empty();
    if (row.flow.status == FlowStatus::started) object["detail"] = row.display_state;
    list.push_back(std::move(object));
  }
  return list;
}

Result<json> list(MethodCall& call) {
  service::ListFlows request = service::parse_list_flows(call);
  request.before = call.id("before");
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(rows, service::list_flows(call.request_context(), call.make_flow_stores(*flows), request));
  return rows_to_json(rows);
}

Result<json> page(MethodCall& call) {
  service::ListFlows request = service::parse_list_flows(call);
  if (std::uint64_t flow = 0; !call.text("after").empty()) {
    if (!parse_u64(call.text("after"), flow) || flow == 0 || flow > UINT32_MAX)
      return fail(Code::invalid, "after: use the value `after` of the preceding page");
    request.before = static_cast<Id>(flow);
  }
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(page, service::page_flows(call.request_context(), call.make_flow_stores(*flows), request));
  return json{{"flows", rows_to_json(page.flows)},
              {"after", page.after == 0 ? "" : std::to_string(page.after)},
              {"looked_at", page.rows_read},
              {"malformed", page.malformed.size()}};
}

// Returns the FlowNodes of the coordinator's specification, extended by the run-time state of each node.
Result<json> dag(MethodCall& call) {
  MJ_TRY(flow, read_flow(call));
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(view, inspect_flow(*flows, call.store(), call.context(), flow.id));
  // Without a readable definition, the nodes of the record are used.
  auto run = load_run(*flows, call.context(), flow.id, call.run_cache());
  std::map<Id, FlowNode> record_nodes;
  for (const FlowNode& node : run ? build_flow_nodes(*run) : view.record.nodes) record_nodes[node.id] = node;
  if (run) call.run_cache().cache_run(call.context(), flow.id, std::move(*run));
  json nodes = json::array(), edges = json::array();
  for (const NodeView& node : view.nodes) {
    json depends = json::array();
    for (const std::uint32_t dependency : node.needs) {
      if (dependency >= view.nodes.size()) continue;
      depends.push_back(view.nodes[dependency].job);
      edges.push_back({{"from", view.nodes[dependency].job}, {"to", node.job}});
    }
    const auto it = record_nodes.find(node.job);
    const bool is_in_record = it != record_nodes.end();
    nodes.push_back({{"id", node.job},
                     {"name", node.name},
                     {"depends", std::move(depends)},
                     {"prerequisites", is_in_record ? json(it->second.prerequisites) : json::array()},
                     {"supervisor_url", is_in_record ? it->second.supervisor_url : ""},
                     {"node_status", to_string(node.status)},
                     {"kind", node.kind},
                     {"detail", node.detail},
                     {"error", node.error},
                     {"attempt", node.attempt},
                     {"started_ms", node.started_ms},
                     {"ended_ms", node.ended_ms},
                     {"runner_id", node.runner},
                     {"job", node.job_key},
                     {"since_ms", node.since_ms},
                     {"until_ms", node.until_ms},
                     {"on_call", node.on_call},
                     {"gates", node.gates},
                     {"approvers", node.approvers},
                     {"asks", node.prompt},
                     {"child", node.child}});
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
              {"anomalies", view.anomalies},
              {"now_ms", view.now_ms}};
}

Result<json> explain(MethodCall& call) {
  MJ_TRY(flow, read_flow(call));
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(reasons, explain_flow(*flows, call.store(), call.context(), flow.id));
  json list = json::array();
  for (const FlowReason& reason : reasons) list.push_back(to_json(reason));
  return list;
}

Result<json> timeline(MethodCall& call) {
  MJ_TRY(flow, read_flow(call));
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(rows, flow_timeline(*flows, call.store(), call.context(), flow.id, call.number("limit")));
  json list = json::array();
  for (const TimelineRow& row : rows) list.push_back(to_json(row));
  return list;
}

Result<json> result(MethodCall& call) {
  MJ_TRY(flow, read_flow(call));
  return flow_result_to_json(flow);
}

Result<json> replay(MethodCall& call) {
  MJ_TRY(flows, call.open_flow_store());
  const service::ReplayFlow request{call.id("id"), call.flag("allow_irreversible"), call.text("traceparent")};
  MJ_TRY(flow, service::replay_flow(call.request_context(), call.make_flow_stores(*flows), request));
  return flow_to_json(flow);
}

Result<json> remove_flow(MethodCall& call) {
  MJ_TRY(flows, call.open_flow_store());
  const Id id = call.id("id");
  MJ_CHECK(service::delete_flow(call.request_context(), call.make_flow_stores(*flows), id));
  return json{{"key", "flow:" + std::to_string(id)}, {"deleted", true}};
}

}  // namespace flow_methods

void add_flow_methods(Services& services, std::vector<Method>& methods) {
  using namespace flow_methods;
  bind_methods(services,
               {{"flow.create", create},
                {"flow.get", get},
                {"flow.list", list},
                {"flows.page", page},
                {"flow.dag", dag},
                {"flow.explain", explain},
                {"flow.timeline", timeline},
                {"flow.result", result},
                {"flow.replay", replay},
                {"flow.delete", remove_flow}},
               methods);
  add_flow_control_methods(services, methods);
}

}  // namespace mycojobs::api
