// The `flow.` methods that change a flow. All of them use advance_run(), like the loop of the coordinator.
#include <nlohmann/json.hpp>

#include "api/methods/flow_methods.h"
#include "text/json.h"

namespace mycojobs::api {
namespace flow_control_methods {

using nlohmann::json;
using Verb = FlowControl::Verb;

json flow_state_to_json(Id flow, const FlowProgress& progress) {
  return {{"id", flow},
          {"status", to_string(progress.status)},
          {"detail", progress.detail},
          {"revision", progress.revision}};
}

// Returns the context of the request with the actor that acts: the caller, or the actor_id that an operator specifies.
Result<service::RequestContext> make_actor_context(const MethodCall& call) {
  return service::impersonate(call.request_context(), call.optional_id("actor_id"), "actor_id");
}

Result<json> start(MethodCall& call) {
  MJ_TRY(context, make_actor_context(call));
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(progress, service::start_flow(context, call.make_flow_stores(*flows), {call.id("id"), "rpc"}));
  return flow_state_to_json(call.id("id"), progress);
}

Result<json> control(MethodCall& call, Verb verb) {
  MJ_TRY(context, make_actor_context(call));
  service::ControlFlow request{.flow = call.id("id"), .verb = verb, .comment = call.text("comment")};
  request.target = call.text(call.has_param("name") ? "name" : "node");
  if (call.has_param("key")) request.key = call.text("key");
  if (call.has_param("payload")) request.payload = dump_json(call.params().at("payload"));
  request.allow_irreversible = call.flag("allow_irreversible");
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(progress, service::control_flow(context, call.make_flow_stores(*flows), request));
  return flow_state_to_json(request.flow, progress);
}

template <Verb verb>
Result<json> handle_control(MethodCall& call) {
  return control(call, verb);
}

}  // namespace flow_control_methods

void add_flow_control_methods(Services& services, std::vector<Method>& methods) {
  using namespace flow_control_methods;
  const Param actor{"actor_id", "id", "the acting actor, if an operator calls; default: the caller"};
  const Param comment{"comment", "text", "the reason, stored with actor and time"};
  const Param key{"key", "text", "idempotency key: the same control with the same key changes nothing"};
  const Param node{"node", "text", "a node's name; absent: the whole flow"};
  const Param node_name{"name", "text", "the approval's or node's name", true};
  const std::string_view result_help = "FlowState: id, status, detail, revision";
  methods.push_back(make_method(services, "flow.start", "begin a flow", flow_params({actor}), result_help, start));
  methods.push_back(make_method(services, "flow.cancel", "end a flow: its jobs, its children, then compensations",
                                flow_params({actor, comment, key}), result_help, handle_control<Verb::cancel>));
  methods.push_back(make_method(services, "flow.pause", "pause a flow: no node starts; running jobs continue",
                                flow_params({actor, comment, key}), result_help, handle_control<Verb::pause>));
  methods.push_back(make_method(services, "flow.resume", "resume a flow, or pass a pause node of it",
                                flow_params({node, actor, comment, key}), result_help, handle_control<Verb::resume>));
  methods.push_back(make_method(services, "flow.approve", "approve a step that waits for it",
                                flow_params({node_name, actor, comment, key}), result_help,
                                handle_control<Verb::approve>));
  methods.push_back(make_method(services, "flow.reject", "reject a step that waits for approval: it fails",
                                flow_params({node_name, actor, comment, key}), result_help,
                                handle_control<Verb::reject>));
  methods.push_back(make_method(services, "flow.signal", "open the gates that wait for signal:NAME",
                                flow_params({{"name", "text", "the signal's name", true},
                                             {"payload", "any", "JSON, at most 64 KiB"},
                                             actor,
                                             comment,
                                             key}),
                                result_help, handle_control<Verb::signal>));
  methods.push_back(make_method(
      services, "flow.retry", "run failed nodes again",
      flow_params(
          {node, {"allow_irreversible", "boolean", "although an irreversible node is done"}, actor, comment, key}),
      result_help, handle_control<Verb::retry>));
}

}  // namespace mycojobs::api
