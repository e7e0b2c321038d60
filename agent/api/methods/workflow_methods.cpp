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

constexpr std::uint64_t kMaxFrameWaitMs = 30'000;
constexpr std::uint32_t kFramePollIntervalMs = 250;

Result<service::WorkflowStores> workflow_stores(MethodCall& call) {
  MJ_TRY(workflows, call.open_workflow_store());
  return service::WorkflowStores{call.store(), *workflows, &call.services().manifests};
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
  return json{{"manifest", result.deployment},
              {"hash", result.hash},
              {"replaced", result.replaced},
              {"repeated", result.repeated},
              {"owner", result.owner}};
}

Result<json> send(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  service::SendEvent request{call.text("event"), dump_json(call.params().at("value")), call.text("workflow")};
  if (call.has_param("idempotency_key")) request.idempotency_key = call.text("idempotency_key");
  request.traceparent = call.text("traceparent");
  MJ_TRY(result, service::send_event(call.request_context(), stores, request));
  return json{{"manifest", result.deployment},
              {"event", result.event},
              {"id", result.id},
              {"repeated", result.repeated},
              {"targets", result.targets}};
}

Result<json> list(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::list_workflows(call.request_context(), stores);
}
Result<json> list_instances(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::list_instances(call.request_context(), stores,
                                 {call.text("workflow"), call.text("status"), call.number("limit", 100)});
}
Result<json> show(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::show_instance(call.request_context(), stores, parse_instance(call));
}
Result<json> timeline(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::read_instance_timeline(call.request_context(), stores, parse_instance(call),
                                         {call.number("limit", service::kTimelineFacts), call.number("before", 0)});
}
Result<json> logs(MethodCall& call) {
  const std::uint64_t deadline_ms =
      call.services().clock.boot_ms() + std::min<std::uint64_t>(call.number("wait_ms", 0), kMaxFrameWaitMs);
  service::LogRequest request{call.text("after"), call.number("limit", service::kLogFrames)};
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
  return service::read_facts(call.request_context(), stores, call.text("workflow"), call.number("after", 0),
                             call.number("limit", 100));
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

// Adds the methods that approve, reject, cancel and remove an instance.
void add_decision_methods(Services& services, const std::vector<Param>& instance_params, std::vector<Method>& methods) {
  const Param actor{"actor_id", "id", "the acting actor, if an operator calls; default: the caller"};
  const Param comment{"comment", "text", "the reason, stored with actor and time"};
  const Param intent{"intent", "text", "first characters of the intent, if several wait"};
  std::vector<Param> decision_params = instance_params;
  decision_params.insert(decision_params.end(), {intent, comment, actor});
  methods.push_back(make_method(services, "workflow.approve", "approve a pending approval of an instance",
                                decision_params, "WorkflowAnswer: the intent", decide_approval<true>));
  methods.push_back(make_method(services, "workflow.reject", "reject a pending approval of an instance",
                                decision_params, "WorkflowAnswer: the intent", decide_approval<false>));
  std::vector<Param> cancel_params = instance_params;
  cancel_params.push_back({"reason", "text", "the reason, stored with actor and time"});
  methods.push_back(make_method(services, "workflow.cancel", "end an instance, and the jobs and flows that run for it",
                                cancel_params, "WorkflowCancel: cancelling", cancel_instance));
  methods.push_back(make_method(services, "workflow.remove", "remove a failed instance", instance_params,
                                "Deleted: workflow and key", remove_instance));
}

}  // namespace workflow_methods

void add_workflow_methods(Services& services, std::vector<Method>& methods) {
  using namespace workflow_methods;
  const Param context{"context_id", "id", "the context; absent: the server's first"};
  const Param workflow{"workflow", "text", "name of the workflow; parts can be omitted while the name stays unique",
                       true};
  const Param key{"key", "any", "key of the instance; absent: the workflow has no keys"};
  const std::vector<Param> instance_params{workflow, key, context};
  methods.push_back(
      make_method(services, "workflow.apply", "apply a manifest of workflows, unless its instances block the change",
                  {{"manifest", "object", "the manifest (docs/workflows)", true},
                   {"code", "variables", "Lua modules of the workflows: text by name"},
                   {"caller_id", "id", "actor that owns the effects of the workflows; default: the caller"},
                   context},
                  "WorkflowApplied: hash, replaced, owner", apply));
  methods.push_back(
      make_method(services, "workflow.send", "send an event to the workflows that take it",
                  {{"event", "text", "name of the event; parts can be omitted while the name stays unique", true},
                   {"value", "any", "value of the event; must match its schema", true},
                   {"workflow", "text", "the manifest, if several manifests take the event"},
                   {"idempotency_key", "text", "the same key of the same caller returns the same record"},
                   {"traceparent", "text",
                    "the trace that it belongs to; default: the trace of the request's header (docs/tracing.md)"},
                   context},
                  "WorkflowSent: its id and targets", send));
  methods.push_back(make_method(services, "workflow.list", "list the workflows with the states of their instances",
                                {context}, "[WorkflowRow]: the workflows, by manifest", list));
  methods.push_back(
      make_method(services, "workflow.cells", "list the instances of a workflow",
                  {workflow,
                   {"status", "text", "only instances in this state: running, waiting, completed or failed"},
                   {"limit", "count", "maximum number (default 100, at most 10000)"},
                   context},
                  "[WorkflowCell]: instances by key", list_instances));
  methods.push_back(make_method(services, "workflow.show", "read an instance: its state, intents and waiting events",
                                instance_params, "WorkflowInstance: state, intents, mail", show));
  std::vector<Param> timeline_params = instance_params;
  timeline_params.push_back({"before", "count", "only facts before this height; absent: the latest"});
  timeline_params.push_back({"limit", "count", "maximum number (default 300, at most 1000)"});
  methods.push_back(make_method(services, "workflow.timeline", "read the latest facts of an instance", timeline_params,
                                "[WorkflowFact]: facts, oldest first", timeline));
  std::vector<Param> log_params = instance_params;
  log_params.push_back({"after", "text", "the value `after` of the preceding page; absent: the first page"});
  log_params.push_back({"limit", "count", "maximum number (default 500, at most 1000)"});
  log_params.push_back({"wait_ms", "ms", "maximum wait for the first frame (default 0, at most 30000)"});
  methods.push_back(make_method(services, "workflow.logs", "read the output of the jobs of an instance's effects",
                                log_params, "WorkflowLog: frames, after, more, ended", logs));
  methods.push_back(make_method(services, "workflow.explain", "explain the state of an instance", instance_params,
                                "[WorkflowReason]: cause, reason, evidence, next", explain));
  methods.push_back(make_method(services, "workflow.facts", "read the journal of a workflow's manifest",
                                {workflow,
                                 {"after", "count", "only facts after this height"},
                                 {"limit", "count", "maximum number (default 100, at most 1000)"},
                                 context},
                                "WorkflowFacts: height, facts", facts));
  add_decision_methods(services, instance_params, methods);
}

}  // namespace mycojobs::api
