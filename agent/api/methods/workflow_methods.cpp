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
namespace workflows_methods {

using nlohmann::json;

constexpr std::uint64_t kFrameWaitMs = 30'000;
constexpr std::uint32_t kFramePauseMs = 250;

Result<service::WorkflowStores> workflow_stores(MethodCall& call) {
  MJ_TRY(deployments, call.worlds());
  return service::WorkflowStores{call.store(), *deployments, &call.services().manifests};
}
service::InstanceReference instance_of(const MethodCall& call) {
  service::InstanceReference of{call.text("workflow"), ""};
  if (!call.has("key")) return of;
  const json& key = call.params().at("key");
  of.key = key.is_string() ? key.get<std::string>() : dump_json(key);
  return of;
}

Result<json> apply(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  service::ApplyWorkflow request;
  request.owner = call.named("caller_id");
  request.check_code = call.services().settings.check_code;
  if (call.has("code"))
    for (const auto& [module, text] : call.params().at("code").items()) {
      if (!text.is_string())
        return fail(Code::invalid, "code." + std::string(whole_characters(module, 100)) + ": must be a text");
      request.code.emplace(module, text.get<std::string>());
    }
  MJ_TRY(done, service::apply_workflow(call.request_context_of(), stores, call.params().at("manifest"), request));
  return json{{"manifest", done.deployment},
              {"hash", done.hash},
              {"replaced", done.replaced},
              {"repeated", done.repeated},
              {"owner", done.owner}};
}

Result<json> send(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  service::SendEvent request{call.text("event"), dump_json(call.params().at("value")), call.text("workflow")};
  if (call.has("idempotency_key")) request.idempotency_key = call.text("idempotency_key");
  request.traceparent = call.text("traceparent");
  MJ_TRY(sent, service::send_event(call.request_context_of(), stores, request));
  return json{{"manifest", sent.deployment},
              {"event", sent.event},
              {"id", sent.id},
              {"repeated", sent.repeated},
              {"targets", sent.targets}};
}

Result<json> list(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::list_workflows(call.request_context_of(), stores);
}
Result<json> cells(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::list_cells(call.request_context_of(), stores,
                             {call.text("workflow"), call.text("status"), call.number("limit", 100)});
}
Result<json> show(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::show_instance(call.request_context_of(), stores, instance_of(call));
}
Result<json> timeline(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::instance_timeline(call.request_context_of(), stores, instance_of(call),
                                    {call.number("limit", service::kTimelineFacts), call.number("before", 0)});
}
Result<json> logs(MethodCall& call) {
  const std::uint64_t until =
      call.services().clock.boot_ms() + std::min<std::uint64_t>(call.number("wait_ms", 0), kFrameWaitMs);
  service::LogRequest request{call.text("after"), call.number("limit", service::kLogFrames)};
  while (true) {
    MJ_TRY(stores, workflow_stores(call));
    MJ_TRY(page, service::instance_log(call.request_context_of(), stores, instance_of(call), request));
    if (!page.frames.empty() || page.ended || call.services().clock.boot_ms() >= until) return to_json(page);
    request.after = page.after;
    if (!page.more) MJ_CHECK(call.rest(kFramePauseMs));
  }
}
Result<json> explain(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  MJ_TRY(flows, call.flows());
  MJ_TRY(leader, flows->leader(call.context()));
  return service::explain_instance(call.request_context_of(), stores, instance_of(call), leader.first);
}
Result<json> facts(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  return service::read_facts(call.request_context_of(), stores, call.text("workflow"), call.number("after", 0),
                             call.number("limit", 100));
}

template <bool approved>
Result<json> answer(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  MJ_TRY(by, service::as_named(call.request_context_of(), call.named("actor_id"), "actor_id"));
  const service::AnswerApproval request{instance_of(call), call.text("intent"), approved, call.text("comment")};
  MJ_TRY(intent, service::answer_approval(by, stores, request));
  return json{{"intent", intent}, {"approved", approved}};
}

Result<json> cancel_one(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  MJ_CHECK(service::cancel_instance(call.request_context_of(), stores, instance_of(call), call.text("reason")));
  return json{{"cancelling", true}};
}

Result<json> remove_one(MethodCall& call) {
  MJ_TRY(stores, workflow_stores(call));
  const service::InstanceReference of = instance_of(call);
  MJ_CHECK(service::remove_instance(call.request_context_of(), stores, of));
  return json{{"key", of.key.empty() ? of.workflow : of.workflow + ' ' + of.key}, {"deleted", true}};
}

// Adds the methods that approve, reject, cancel and remove an instance.
void add_answers(Services& s, const std::vector<Param>& instance, std::vector<Method>& all) {
  using namespace workflows_methods;
  const Param actor{"actor_id", "id", "the acting actor, if an operator calls; default: the caller"};
  const Param comment{"comment", "text", "the reason, stored with actor and time"};
  const Param intent{"intent", "text", "first characters of the intent, if several wait"};
  std::vector<Param> answers = instance;
  answers.insert(answers.end(), {intent, comment, actor});
  all.push_back(method(s, "workflow.approve", "approve a pending approval of an instance", answers,
                       "WorkflowAnswer: the intent", answer<true>));
  all.push_back(method(s, "workflow.reject", "reject a pending approval of an instance", answers,
                       "WorkflowAnswer: the intent", answer<false>));
  std::vector<Param> cancels = instance;
  cancels.push_back({"reason", "text", "the reason, stored with actor and time"});
  all.push_back(method(s, "workflow.cancel", "end an instance, and the jobs and flows that run for it", cancels,
                       "WorkflowCancel: cancelling", cancel_one));
  all.push_back(
      method(s, "workflow.remove", "remove a failed instance", instance, "Deleted: workflow and key", remove_one));
}

}  // namespace workflows_methods

void add_workflow_methods(Services& s, std::vector<Method>& all) {
  using namespace workflows_methods;
  const Param context{"context_id", "id", "the context; absent: the server's first"};
  const Param workflow{"workflow", "text", "name of the workflow; parts can be omitted while the name stays unique",
                       true};
  const Param key{"key", "any", "key of the instance; absent: the workflow has no keys"};
  const std::vector<Param> instance{workflow, key, context};
  all.push_back(method(s, "workflow.apply", "apply a manifest of workflows, unless its instances block the change",
                       {{"manifest", "object", "the manifest (docs/workflows)", true},
                        {"code", "variables", "Lua modules of the workflows: text by name"},
                        {"caller_id", "id", "actor that owns the effects of the workflows; default: the caller"},
                        context},
                       "WorkflowApplied: hash, replaced, owner", apply));
  all.push_back(method(s, "workflow.send", "send an event to the workflows that take it",
                       {{"event", "text", "name of the event; parts can be omitted while the name stays unique", true},
                        {"value", "any", "value of the event; must match its schema", true},
                        {"workflow", "text", "the manifest, if several manifests take the event"},
                        {"idempotency_key", "text", "the same key of the same caller returns the same record"},
                        {"traceparent", "text",
                         "the trace that it belongs to; default: the trace of the request's header (docs/tracing.md)"},
                        context},
                       "WorkflowSent: its id and targets", send));
  all.push_back(method(s, "workflow.list", "list the workflows with the states of their instances", {context},
                       "[WorkflowRow]: the workflows, by manifest", list));
  all.push_back(method(s, "workflow.cells", "list the instances of a workflow",
                       {workflow,
                        {"status", "text", "only instances in this state: running, waiting, completed or failed"},
                        {"limit", "count", "maximum number (default 100, at most 10000)"},
                        context},
                       "[WorkflowCell]: instances by key", cells));
  all.push_back(method(s, "workflow.show", "read an instance: its state, intents and waiting events", instance,
                       "WorkflowInstance: state, intents, mail", show));
  std::vector<Param> facts_of = instance;
  facts_of.push_back({"before", "count", "only facts before this height; absent: the latest"});
  facts_of.push_back({"limit", "count", "maximum number (default 300, at most 1000)"});
  all.push_back(method(s, "workflow.timeline", "read the latest facts of an instance", facts_of,
                       "[WorkflowFact]: facts, oldest first", timeline));
  std::vector<Param> log_params = instance;
  log_params.push_back({"after", "text", "the value `after` of the preceding page; absent: the first page"});
  log_params.push_back({"limit", "count", "maximum number (default 500, at most 1000)"});
  log_params.push_back({"wait_ms", "ms", "maximum wait for the first frame (default 0, at most 30000)"});
  all.push_back(method(s, "workflow.logs", "read the output of the jobs of an instance's effects", log_params,
                       "WorkflowLog: frames, after, more, ended", logs));
  all.push_back(method(s, "workflow.explain", "explain the state of an instance", instance,
                       "[WorkflowReason]: cause, reason, evidence, next", explain));
  all.push_back(method(s, "workflow.facts", "read the journal of a workflow's manifest",
                       {workflow,
                        {"after", "count", "only facts after this height"},
                        {"limit", "count", "maximum number (default 100, at most 1000)"},
                        context},
                       "WorkflowFacts: height, facts", facts));
  add_answers(s, instance, all);
}

}  // namespace mycojobs::api
