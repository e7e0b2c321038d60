// The `actor.`, `context.`, `runner.` and `message.` methods.
#include <nlohmann/json.hpp>

#include "api/methods/job_methods.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "service/actor_service.h"
#include "service/message_service.h"
#include "service/record_service.h"

namespace mycojobs::api {
namespace record_methods {

using nlohmann::json;

// Decodes the parameters as a record. excluded_params: parameters that are not fields of the record.
template <class R>
Result<R> read_record(const MethodCall& call, std::initializer_list<const char*> excluded_params = {}) {
  json object = call.params();
  for (const char* name : excluded_params) object.erase(name);
  auto decoded = decode_json<R>(object);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  return std::move(decoded.record);
}

Result<json> actor_create(MethodCall& call) {
  MJ_TRY(actor, read_record<Actor>(call));
  MJ_TRY(stored, service::create_actor(call.request_context(), call.store(), actor));
  return to_json(stored);
}

Result<json> actor_get(MethodCall& call) {
  MJ_TRY(actor, service::read_actor(call.request_context(), call.store(), call.id("id")));
  return to_json(actor);
}

json make_deletion_result(const std::string& key) { return {{"key", key}, {"deleted", true}}; }

Result<json> actor_list(MethodCall& call) {
  MJ_TRY(actors, service::list_actors(call.request_context(), call.store()));
  json rows = json::array();
  for (const Actor& actor : actors) rows.push_back(to_json(actor));
  return rows;
}

Result<json> actor_update(MethodCall& call) {
  MJ_TRY(values, read_record<Actor>(call));
  MJ_TRY(stored, service::update_actor(call.request_context(), call.store(), values,
                                       service::list_changed_fields(call.params())));
  return to_json(stored);
}

Result<json> actor_delete(MethodCall& call) {
  const Id id = call.id("id");
  MJ_TRY(contexts, service::list_known_contexts(call.store(), call.services().settings.contexts));
  MJ_CHECK(service::delete_actor(call.request_context(), call.store(), id, contexts));
  return make_deletion_result("actor:" + std::to_string(id));
}

Result<json> context_create(MethodCall& call) {
  MJ_TRY(context, read_record<Context>(call));
  MJ_TRY(stored,
         service::create_context(call.request_context(), call.store(), context, call.services().settings.contexts));
  return to_json(stored);
}

// Selects the context of the parameter `id`, if the request has it.
Result<void> switch_to_id_param(MethodCall& call) {
  return call.has_param("id") ? call.switch_context(call.id("id")) : Result<void>();
}

Result<json> context_get(MethodCall& call) {
  MJ_CHECK(switch_to_id_param(call));
  MJ_TRY(context, service::read_context(call.request_context(), call.store()));
  return to_json(context);
}

Result<json> context_list(MethodCall& call) {
  const std::vector<Id>& served_ids = call.services().settings.contexts;
  std::vector<Id> ids = served_ids;
  if (served_ids.empty()) {
    MJ_TRY(known_ids, service::list_known_contexts(call.store(), {}));
    ids = std::move(known_ids);
  }
  MJ_TRY(result, service::list_contexts(call.request_context(), call.store(), ids));
  json rows = json::array();
  for (const Context& context : result.contexts) rows.push_back(to_json(context));
  return rows;
}

Result<json> context_update(MethodCall& call) {
  MJ_CHECK(switch_to_id_param(call));
  MJ_TRY(values, read_record<Context>(call));
  MJ_TRY(stored, service::update_context(call.request_context(), call.store(), values,
                                         service::list_changed_fields(call.params())));
  return to_json(stored);
}

Result<json> context_delete(MethodCall& call) {
  MJ_CHECK(call.switch_context(call.id("id")));
  MJ_TRY(flows, call.open_flow_store());
  MJ_CHECK(service::delete_context(call.request_context(), call.make_flow_stores(*flows)));
  return make_deletion_result("context:" + std::to_string(call.context()));
}

Result<json> context_refusals(MethodCall& call) {
  MJ_CHECK(switch_to_id_param(call));
  MJ_TRY(refusals, service::list_refusals(call.request_context(), call.store(), call.number("limit")));
  json rows = json::array();
  for (const RefusalNote& refusal : refusals) {
    rows.push_back({{"number", refusal.number},
                    {"at_ms", refusal.at_ms},
                    {"actor", refusal.actor},
                    {"action", refusal.action},
                    {"thing", refusal.resource},
                    {"list", refusal.access_list}});
  }
  return rows;
}

Result<json> runner_create(MethodCall& call) {
  MJ_TRY(runner, read_record<Runner>(call, {"context_id"}));
  MJ_TRY(stored, service::create_runner(call.request_context(), call.store(), runner, call.services().settings.networks,
                                        service::list_changed_fields(call.params())));
  return service::runner_to_json(stored);
}

Result<json> runner_get(MethodCall& call) {
  MJ_TRY(runner, service::read_runner(call.request_context(), call.store(), call.id("id")));
  return service::runner_to_json(runner);
}

Result<json> runner_list(MethodCall& call) {
  MJ_TRY(infos, service::list_runners(call.request_context(), call.store()));
  json rows = json::array();
  for (const RunnerInfo& info : infos) {
    json object = service::runner_to_json(info.runner);
    object["state"] = to_string(get_presence(info));
    object["host"] = info.holder.host;
    object["claims"] = info.live_claim_count;
    rows.push_back(std::move(object));
  }
  return rows;
}

Result<json> runner_update(MethodCall& call) {
  MJ_TRY(values, read_record<Runner>(call, {"context_id"}));
  const Networks& networks = call.services().settings.networks;
  MJ_TRY(stored, service::update_runner(call.request_context(), call.store(), values,
                                        service::list_changed_fields(call.params()), networks));
  return service::runner_to_json(stored);
}

Result<json> runner_delete(MethodCall& call) {
  const Id id = call.id("id");
  MJ_CHECK(service::delete_runner(call.request_context(), call.store(), id));
  return make_deletion_result("runner:" + std::to_string(id));
}

Result<json> message_create(MethodCall& call) {
  MJ_TRY(message, read_record<Message>(call, {"job"}));
  const json jobs = call.has_param("job") ? call.params().at("job") : json::array();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    auto job = parse_job(jobs[i]);
    if (!job) return fail(job.error(), "job[" + std::to_string(i) + "]");
    message.job.push_back(std::move(*job));
  }
  MJ_TRY(stored, service::send_message(call.request_context(), call.store(), call.optional_id("caller_id"),
                                       std::move(message)));
  return to_json(stored);
}

Result<json> message_send(MethodCall& call) {
  const Id owner = call.optional_id("caller_id").value_or(call.actor());
  Message signature;
  signature.signature = call.text("signature");
  signature.signer = call.text("signer");
  signature.algorithm = call.text("algorithm");
  signature.created_at = static_cast<std::uint32_t>(call.number("created_at"));
  MJ_TRY(stored, service::post_message(call.request_context(), call.store(), owner, call.id("id"), signature));
  return to_json(stored);
}

Result<json> message_get(MethodCall& call) {
  const Id owner = call.optional_id("caller_id").value_or(call.actor());
  MJ_TRY(message, service::read_message(call.request_context(), call.store(), owner, call.id("id")));
  return service::message_to_json(message);
}

Result<json> message_cancel(MethodCall& call) {
  const Id owner = call.optional_id("caller_id").value_or(call.actor());
  MJ_TRY(message, service::cancel_message(call.request_context(), call.store(), owner, call.id("id")));
  return service::message_to_json(message);
}

Result<json> message_delete(MethodCall& call) {
  const Id owner = call.optional_id("caller_id").value_or(call.actor()), id = call.id("id");
  MJ_CHECK(service::delete_message(call.request_context(), call.store(), owner, id));
  return make_deletion_result("message:" + std::to_string(owner) + ':' + std::to_string(id));
}

Result<json> message_list(MethodCall& call) {
  MJ_TRY(messages, service::list_messages(call.request_context(), call.store(), call.number("limit")));
  json rows = json::array();
  for (const Message& message : messages) rows.push_back(to_json(message));
  return rows;
}

}  // namespace record_methods

void add_record_methods(Services& services, std::vector<Method>& methods) {
  using namespace record_methods;
  bind_methods(services,
               {{"actor.create", actor_create},
                {"actor.get", actor_get},
                {"actor.list", actor_list},
                {"actor.update", actor_update},
                {"actor.delete", actor_delete},
                {"context.create", context_create},
                {"context.get", context_get},
                {"context.list", context_list},
                {"context.update", context_update},
                {"context.delete", context_delete},
                {"context.refusals", context_refusals},
                {"runner.create", runner_create},
                {"runner.get", runner_get},
                {"runner.list", runner_list},
                {"runner.update", runner_update},
                {"runner.delete", runner_delete},
                {"message.create", message_create},
                {"message.send", message_send},
                {"message.get", message_get},
                {"message.list", message_list},
                {"message.cancel", message_cancel},
                {"message.delete", message_delete}},
               methods);
}

}  // namespace mycojobs::api
