// The `workflow.` methods. They do the same as the commands of the same names.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/services.h"
#include "model/codec.h"
#include "service/workflow_logs.h"
#include "service/workflow_service.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs::api {
namespace workflow_methods {

using nlohmann::json;

constexpr std::uint32_t kFramePollIntervalMs = 250;

Result<service::WorkflowStores> workflow_stores(MethodCall& call) {
  MJ_TRY(workflows, call.open_workflow_store());
  return service::WorkflowStores{call.store(), *workflows, &call.services().manifests, &call.services().logs};
}
service::InstanceReference parse_instance(const MethodCall& call) {
  service::InstanceReference reference{call.text("workflow"), ""};
  if (!call.has_param("key")) return reference;
  const json& key = call.params().at("key");
  reference.key = key.is_string() ? key.get<std::string>() : dump_json(key);
  return reference;
}

Result<json> apply(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  service::ApplyWorkflow request;
  request.owner = call.optional_id("caller_id");
  request.check_code = call.services().settings.check_code;
  if (call.has_param("code"))
    for (const auto& [module, text] : call.params().at("code").items()) {
      if (!text.is_string())
        return fail(Code::invalid, "code." + std::string(whole_characters(module, 100)) + ": must be a text");
      request.code.emplace(module, text.get<std::string>());
    }
  MJ_TRY(result, service::apply_workflow(call.request_context(), stores, call.params().at("manifest"), request));
  return to_json(result);
}

Result<json> send(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  const service::SendEvent request{call.text("event"), dump_json(call.params().at("value")), call.text("workflow"),
                                   call.optional_text("idempotency_key"), call.text("traceparent")};
  MJ_TRY(result, service::send_event(call.request_context(), stores, request));
  return to_json(result);
}

Result<json> list(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::list_workflows(call.request_context(), stores);
}
Result<json> list_instances(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::list_instances(call.request_context(), stores, service::parse_list_instances(call));
}
Result<json> show(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::show_instance(call.request_context(), stores, parse_instance(call));
}
Result<json> timeline(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::read_instance_timeline(call.request_context(), stores, parse_instance(call),
                                         service::parse_timeline_request(call));
}
Result<json> logs(MethodCall& call) {
  const std::uint64_t deadline_ms = call.services().clock.boot_ms() + call.number("wait_ms");
  service::LogRequest request{call.text("after"), call.number("limit")};
  while (true) {
    MJ_TRY(stores, workflow_stores(call));
    MJ_TRY(page, service::read_instance_log(call.request_context(), stores, parse_instance(call), request));
    if (!page.frames.empty() || page.ended || call.services().clock.boot_ms() >= deadline_ms) return to_json(page);
    request.after = page.after;
    if (!page.has_more) MJ_CHECK(call.release_backend_and_sleep(kFramePollIntervalMs));
  }
}
Result<json> explain(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  MJ_TRY(flows, call.open_flow_store());
  MJ_TRY(leader, flows->leader(call.context()));
  return service::explain_instance(call.request_context(), stores, parse_instance(call), leader.first);
}
Result<json> facts(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::read_facts(call.request_context(), stores, call.text("workflow"), call.number("after"),
                             call.number("limit"));
}

// Approves or rejects a pending approval.
template <bool approved>
Result<json> decide_approval(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  MJ_TRY(context, service::impersonate(call.request_context(), call.optional_id("actor_id"), "actor_id"));
  const service::AnswerApproval request{parse_instance(call), call.text("intent"), approved, call.text("comment")};
  MJ_TRY(intent, service::answer_approval(context, stores, request));
  return json{{"intent", intent}, {"approved", approved}};
}

Result<json> cancel_instance(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  MJ_CHECK(service::cancel_instance(call.request_context(), stores, parse_instance(call), call.text("reason")));
  return json{{"cancelling", true}};
}

Result<json> remove_instance(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  const service::InstanceReference reference = parse_instance(call);
  MJ_CHECK(service::remove_instance(call.request_context(), stores, reference));
  return json{{"key", reference.key.empty() ? reference.workflow : reference.workflow + ' ' + reference.key},
              {"deleted", true}};
}

}  // namespace workflow_methods

void add_workflow_methods(Services& services, std::vector<Method>& methods) {
  using namespace workflow_methods;
  bind_methods(services,
               {{"workflow.apply", apply},
                {"workflow.send", send},
                {"workflow.list", list},
                {"workflow.cells", list_instances},
                {"workflow.show", show},
                {"workflow.timeline", timeline},
                {"workflow.logs", logs},
                {"workflow.explain", explain},
                {"workflow.facts", facts},
                {"workflow.approve", decide_approval<true>},
                {"workflow.reject", decide_approval<false>},
                {"workflow.cancel", cancel_instance},
                {"workflow.remove", remove_instance}},
               methods);
}

}  // namespace mycojobs::api
