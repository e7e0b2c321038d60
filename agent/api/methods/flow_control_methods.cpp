// The `flow.` methods that change a flow. All of them use progress(), like the loop of the coordinator.
#include <nlohmann/json.hpp>

#include "api/methods/flow_methods.h"
#include "text/json.h"

namespace mycojobs::api {
namespace flow_control_methods {

using nlohmann::json;
using Verb = FlowControl::Verb;

json shown(Id flow, const FlowProgress& progress) {
  return {{"id", flow},
          {"status", to_string(progress.status)},
          {"detail", progress.detail},
          {"revision", progress.revision}};
}

// Returns the caller, or the actor that an operator names in actor_id.
Result<service::RequestContext> mover(const MethodCall& call) {
  return service::as_named(call.request_context_of(), call.named("actor_id"), "actor_id");
}

Result<json> start(MethodCall& call) {
  MJ_TRY(by, mover(call));
  MJ_TRY(flows, call.flows());
  MJ_TRY(done, service::start_flow(by, call.stores(*flows), {call.id("id"), "rpc"}));
  return shown(call.id("id"), done);
}

Result<json> control(MethodCall& call, Verb verb) {
  MJ_TRY(by, mover(call));
  service::ControlFlow request{.flow = call.id("id"), .verb = verb, .comment = call.text("comment")};
  request.target = call.text(call.has("name") ? "name" : "node");
  if (call.has("key")) request.key = call.text("key");
  if (call.has("payload")) request.payload = dump_json(call.params().at("payload"));
  request.allow_irreversible = call.flag("allow_irreversible");
  MJ_TRY(flows, call.flows());
  MJ_TRY(done, service::control_flow(by, call.stores(*flows), request));
  return shown(request.flow, done);
}

template <Verb verb>
Result<json> run(MethodCall& call) {
  return control(call, verb);
}

}  // namespace flow_control_methods

void add_flow_controls(Services& s, std::vector<Method>& all) {
  using namespace flow_control_methods;
  const Param actor{"actor_id", "id", "the acting actor, if an operator calls; default: the caller"};
  const Param comment{"comment", "text", "the reason, stored with actor and time"};
  const Param key{"key", "text", "idempotency key: the same control with the same key changes nothing"};
  const Param node{"node", "text", "a node's name; absent: the whole flow"};
  const Param step{"name", "text", "the approval's or node's name", true};
  const std::string_view where = "FlowState: id, status, detail, revision";
  all.push_back(method(s, "flow.start", "begin a flow", flow_params({actor}), where, start));
  all.push_back(method(s, "flow.cancel", "end a flow: its jobs, its children, then compensations",
                       flow_params({actor, comment, key}), where, run<Verb::cancel>));
  all.push_back(method(s, "flow.pause", "pause a flow: no node starts; running jobs continue",
                       flow_params({actor, comment, key}), where, run<Verb::pause>));
  all.push_back(method(s, "flow.resume", "resume a flow, or pass a pause node of it",
                       flow_params({node, actor, comment, key}), where, run<Verb::resume>));
  all.push_back(method(s, "flow.approve", "approve a step that waits for it", flow_params({step, actor, comment, key}),
                       where, run<Verb::approve>));
  all.push_back(method(s, "flow.reject", "reject a step that waits for approval: it fails",
                       flow_params({step, actor, comment, key}), where, run<Verb::reject>));
  all.push_back(method(s, "flow.signal", "open the gates that wait for signal:NAME",
                       flow_params({{"name", "text", "the signal's name", true},
                                    {"payload", "any", "JSON, at most 64 KiB"},
                                    actor,
                                    comment,
                                    key}),
                       where, run<Verb::signal>));
  all.push_back(method(
      s, "flow.retry", "run failed nodes again",
      flow_params(
          {node, {"allow_irreversible", "boolean", "although an irreversible node is done"}, actor, comment, key}),
      where, run<Verb::retry>));
}

}  // namespace mycojobs::api
