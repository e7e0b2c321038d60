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

json runner_to_json(const Runner& runner) {
  json object = to_json(runner);
  object.erase("secret");
  return object;
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

// Returns the names of the fields to change: all parameters except those that identify the record.
std::vector<std::string> changed_fields(const MethodCall& call) {
  std::vector<std::string> names;
  for (const auto& item : call.params().items()) {
    if (item.key() != "id" && item.key() != "context_id" && !item.value().is_null()) names.push_back(item.key());
  }
  return names;
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
  MJ_TRY(stored, service::update_actor(call.request_context(), call.store(), values, changed_fields(call)));
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
  MJ_TRY(stored, service::update_context(call.request_context(), call.store(), values, changed_fields(call)));
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
  MJ_TRY(refusals, service::list_refusals(call.request_context(), call.store(), call.number("limit", 50)));
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
                                        changed_fields(call)));
  return runner_to_json(stored);
}

Result<json> runner_get(MethodCall& call) {
  MJ_TRY(runner, service::read_runner(call.request_context(), call.store(), call.id("id")));
  return runner_to_json(runner);
}

Result<json> runner_list(MethodCall& call) {
  MJ_TRY(infos, service::list_runners(call.request_context(), call.store()));
  json rows = json::array();
  for (const RunnerInfo& info : infos) {
    json object = runner_to_json(info.runner);
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
  MJ_TRY(stored, service::update_runner(call.request_context(), call.store(), values, changed_fields(call), networks));
  return runner_to_json(stored);
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
  signature.created_at = static_cast<std::uint32_t>(call.number("created_at", 0));
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
  MJ_TRY(messages, service::list_messages(call.request_context(), call.store(), call.number("limit", 50)));
  json rows = json::array();
  for (const Message& message : messages) rows.push_back(to_json(message));
  return rows;
}

constexpr std::string_view kDeletionResult = "Deleted: its key";

void add_actor_methods(Services& services, std::vector<Method>& methods) {
  const Param id{"id", "id", "its id", true}, any_id{"id", "id", "its id; absent: the next free one"};
  const Param pubkey{"pubkey", "text", "public key, ed25519; empty: remove the key"};
  const Param address{"address", "texts", "addresses of the actor"};
  methods.push_back(make_method(services, "actor.create", "create an actor", {any_id, pubkey, address},
                                "Actor: the actor", actor_create));
  methods.push_back(make_method(services, "actor.get", "read an actor", {id}, "Actor: the actor", actor_get));
  methods.push_back(
      make_method(services, "actor.list", "list the actors", {}, "[Actor]: the actors, by id", actor_list));
  methods.push_back(make_method(services, "actor.update", "change an actor's key or addresses", {id, pubkey, address},
                                "Actor: the actor", actor_update));
  methods.push_back(make_method(services, "actor.delete", "delete an actor that no context names", {id},
                                kDeletionResult, actor_delete));
}

void add_context_methods(Services& services, std::vector<Method>& methods) {
  const Param context_id{"id", "id", "its id; absent: the server's first"};
  const Param submitters{"submitters", "ids",
                         "actors that create jobs, flows and messages, and control and read their own"};
  const Param readers{"readers", "ids", "actors that read everything"};
  const Param executors{"executors", "ids", "actors whose agents run jobs of the context"};
  const Param notify{"notify", "any",
                     "receivers of notifications about ends: a list of addresses and targets (docs/notify.md)"};
  methods.push_back(make_method(services, "context.create", "create a context; its Redis database has the same number",
                                {{"id", "id", "its id; absent: the next free one"},
                                 {"admins", "ids", "actors with all rights; default: the caller"},
                                 readers,
                                 executors,
                                 submitters,
                                 notify},
                                "Context: the context", context_create));
  methods.push_back(
      make_method(services, "context.get", "read a context", {context_id}, "Context: the context", context_get));
  methods.push_back(make_method(services, "context.list",
                                "list the contexts that name the caller, or all for an operator", {},
                                "[Context]: the contexts, by id", context_list));
  methods.push_back(
      make_method(services, "context.update", "change a context's lists of roles",
                  {context_id, {"admins", "ids", "actors with all rights"}, readers, executors, submitters, notify},
                  "Context: the context", context_update));
  methods.push_back(make_method(services, "context.delete", "delete the record of a context without unfinished work",
                                {{"id", "id", "its id", true}}, kDeletionResult, context_delete));
  methods.push_back(make_method(services, "context.refusals", "list denied requests, newest first",
                                {context_id, {"limit", "count", "maximum number (default 50, at most 1000)"}},
                                "[Refusal]: number, at_ms, actor, action, thing, list", context_refusals));
}

void add_runner_methods(Services& services, std::vector<Method>& methods) {
  const Param id{"id", "id", "its id", true}, context{"context_id", "id", "the context; absent: the server's first"};
  const std::vector<Param> fields{
      context,
      {"pubkey", "text", "its key"},
      {"address", "text", "where it is reached: http://HOST:PORT of a supervisor, in coordinator.networks"},
      {"topic", "text", "its topic; absent: runner<id>"},
      {"target_context", "id",
       "context of a supervisor on another host that runs jobs of this context; default: the same number"},
      {"local", "boolean", "also claims jobs from queues"},
      {"type", "text", "v, python, osis or rust"},
      {"secret", "text", "sent to its supervisor as bearer token; never shown"}};
  const auto make_params = [&fields](const Param& id_param) {
    std::vector<Param> params{id_param};
    params.insert(params.end(), fields.begin(), fields.end());
    return params;
  };
  methods.push_back(make_method(services, "runner.create", "register a runner or a remote supervisor",
                                make_params({"id", "id", "its id; absent: the next free one"}),
                                "Runner: the runner, without its secret", runner_create));
  methods.push_back(make_method(services, "runner.get", "read a runner", {id, context},
                                "Runner: the runner, without its secret", runner_get));
  methods.push_back(make_method(services, "runner.list", "list the runners with their states", {context},
                                "[RunnerState]: runners with state (live, silent, left), host and claims",
                                runner_list));
  methods.push_back(make_method(services, "runner.update", "change a runner's record", make_params(id),
                                "Runner: the runner, without its secret", runner_update));
  methods.push_back(make_method(services, "runner.delete", "delete a runner without an agent and without waiting work",
                                {id, context}, kDeletionResult, runner_delete));
}

void add_message_methods(Services& services, std::vector<Method>& methods) {
  const Param id{"id", "id", "its id", true}, context{"context_id", "id", "the context; absent: the server's first"};
  const Param caller{"caller_id", "id", "owner; default: the caller"};
  methods.push_back(make_method(
      services, "message.create", "write a message; with a topic, hand it to that topic",
      {{"id", "id", "its id; absent: the next free one"},
       context,
       caller,
       {"message", "text", "its text"},
       {"message_type", "text", "job, chat or mail"},
       {"message_format_type", "text", "html, text or md"},
       {"timeout", "seconds", "time limit of the delivery"},
       {"timeout_ack", "seconds", "time limit of the acknowledgement"},
       {"timeout_result", "seconds", "time limit of the result"},
       {"job", "jobs", "complete jobs with their ids"},
       {"flow", "object", "a flow: name, definition (a flow's JSON as text), env_vars"},
       {"topic", "text", "topic of the runner that receives the message's jobs"},
       {"target_context", "id", "the target context; absent: its own"},
       {"target_address", "text",
        "of the supervisor of that context, on another host; the answer has its target_key, to be signed with it"},
       {"stream_logs", "boolean", "receive log lines of its jobs while they run"}},
      "Message: the message", message_create));
  methods.push_back(make_method(services, "message.send", "send a signed message to another context",
                                {id,
                                 context,
                                 caller,
                                 {"signature", "text", "by its caller's key; absent: the record has it"},
                                 {"signer", "text", "the public key"},
                                 {"algorithm", "text", "ed25519"},
                                 {"created_at", "unix_s", "the signed time, in Unix seconds"}},
                                "Message: the message", message_send));
  methods.push_back(make_method(services, "message.get", "read a message", {id, context, caller},
                                "Message: the message", message_get));
  methods.push_back(make_method(services, "message.list", "list messages, newest first",
                                {context, {"limit", "count", "maximum number (default 50, at most 1000)"}},
                                "[MessageRow]: messages without text and jobs", message_list));
  methods.push_back(make_method(services, "message.cancel", "cancel a message with its jobs and flow, permanently",
                                {id, context, caller}, "Message: the message", message_cancel));
  methods.push_back(make_method(services, "message.delete", "delete a message that no queue or caller waits for",
                                {id, context, caller}, kDeletionResult, message_delete));
}

}  // namespace record_methods

void add_record_methods(Services& services, std::vector<Method>& methods) {
  using namespace record_methods;
  add_actor_methods(services, methods);
  add_context_methods(services, methods);
  add_runner_methods(services, methods);
  add_message_methods(services, methods);
}

}  // namespace mycojobs::api
