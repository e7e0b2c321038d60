// The `flow.` methods that change a flow. All of them use advance_run(), like the loop of the coordinator.
#include <nlohmann/json.hpp>

#include "api/methods/flow_methods.h"

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
  const service::ControlFlow request = service::parse_control_flow(call, verb);
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
  bind_methods(services,
               {{"flow.start", start},
                {"flow.cancel", handle_control<Verb::cancel>},
                {"flow.pause", handle_control<Verb::pause>},
                {"flow.resume", handle_control<Verb::resume>},
                {"flow.approve", handle_control<Verb::approve>},
                {"flow.reject", handle_control<Verb::reject>},
                {"flow.signal", handle_control<Verb::signal>},
                {"flow.retry", handle_control<Verb::retry>}},
               methods);
}

}  // namespace mycojobs::api
