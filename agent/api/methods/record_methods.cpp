// The `actor.`, `context.`, `runner.` and `message.` methods.
#include <nlohmann/json.hpp>

#include "api/methods/job_methods.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "service/actor_service.h"
#include "service/message_service.h"
#include "service/record_service.h"

namespace mycojobs::api {
namespace records_methods {

using nlohmann::json;

// Decodes the parameters as a record. not_fields: parameters that are not fields of the record.
template <class R>
Result<R> read_record(const MethodCall& call, std::initializer_list<const char*> not_fields = {}) {
  json object = call.params();
  for (const char* name : not_fields) object.erase(name);
  auto decoded = decode_json<R>(object);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  return std::move(decoded.record);
}

json shown(const Runner& runner) {
  json object = to_json(runner);
  object.erase("secret");
  return object;
}

Result<json> actor_create(MethodCall& call) {
  MJ_TRY(actor, read_record<Actor>(call));
  MJ_TRY(stored, service::create_actor(call.request_context_of(), call.store(), actor));
  return to_json(stored);
}

Result<json> actor_get(MethodCall& call) {
  MJ_TRY(actor, service::read_actor(call.request_context_of(), call.store(), call.id("id")));
  return to_json(actor);
}

// Returns the names of the fields to change: all parameters except those that identify the record.
std::vector<std::string> named_fields(const MethodCall& call) {
  std::vector<std::string> names;
  for (const auto& item : call.params().items()) {
    if (item.key() != "id" && item.key() != "context_id" && !item.value().is_null()) names.push_back(item.key());
  }
  return names;
}

json deleted(const std::string& key) { return {{"key", key}, {"deleted", true}}; }

Result<json> actor_list(MethodCall& call) {
  MJ_TRY(found, service::list_actors(call.request_context_of(), call.store()));
  json all = json::array();
  for (const Actor& actor : found) all.push_back(to_json(actor));
  return all;
}

Result<json> actor_update(MethodCall& call) {
  MJ_TRY(wanted, read_record<Actor>(call));
  MJ_TRY(after, service::update_actor(call.request_context_of(), call.store(), wanted, named_fields(call)));
  return to_json(after);
}

Result<json> actor_delete(MethodCall& call) {
  const Id id = call.id("id");
  MJ_TRY(contexts, service::known_contexts(call.store(), call.services().settings.contexts));
  MJ_CHECK(service::delete_actor(call.request_context_of(), call.store(), id, contexts));
  return deleted("actor:" + std::to_string(id));
}

Result<json> context_create(MethodCall& call) {
  MJ_TRY(context, read_record<Context>(call));
  MJ_TRY(stored,
         service::create_context(call.request_context_of(), call.store(), context, call.services().settings.contexts));
  return to_json(stored);
}

Result<json> context_get(MethodCall& call) {
  if (call.has("id")) MJ_CHECK(call.switch_context(call.id("id")));
  MJ_TRY(context, service::read_context(call.request_context_of(), call.store()));
  return to_json(context);
}

Result<void> go_to_named(MethodCall& call) {
  return call.has("id") ? call.switch_context(call.id("id")) : Result<void>();
}

Result<json> context_list(MethodCall& call) {
  const std::vector<Id>& served = call.services().settings.contexts;
  std::vector<Id> among = served;
  if (served.empty()) {
    MJ_TRY(known, service::known_contexts(call.store(), {}));
    among = std::move(known);
  }
  MJ_TRY(found, service::list_contexts(call.request_context_of(), call.store(), among));
  json all = json::array();
  for (const Context& context : found.contexts) all.push_back(to_json(context));
  return all;
}

Result<json> context_update(MethodCall& call) {
  MJ_CHECK(go_to_named(call));
  MJ_TRY(wanted, read_record<Context>(call));
  MJ_TRY(after, service::update_context(call.request_context_of(), call.store(), wanted, named_fields(call)));
  return to_json(after);
}

Result<json> context_delete(MethodCall& call) {
  MJ_CHECK(call.switch_context(call.id("id")));
  MJ_TRY(flows, call.flows());
  MJ_CHECK(service::delete_context(call.request_context_of(), call.stores(*flows)));
  return deleted("context:" + std::to_string(call.context()));
}

Result<json> context_refusals(MethodCall& call) {
  MJ_CHECK(go_to_named(call));
  MJ_TRY(notes, service::list_refusals(call.request_context_of(), call.store(), call.number("limit", 50)));
  json all = json::array();
  for (const RefusalNote& note : notes) {
    all.push_back({{"number", note.number},
                   {"at_ms", note.at_ms},
                   {"actor", note.actor},
                   {"action", note.action},
                   {"thing", note.thing},
                   {"list", note.list}});
  }
  return all;
}

Result<json> runner_create(MethodCall& call) {
  MJ_TRY(runner, read_record<Runner>(call, {"context_id"}));
  MJ_TRY(stored, service::create_runner(call.request_context_of(), call.store(), runner,
                                        call.services().settings.networks, named_fields(call)));
  return shown(stored);
}

Result<json> runner_get(MethodCall& call) {
  MJ_TRY(runner, service::read_runner(call.request_context_of(), call.store(), call.id("id")));
  return shown(runner);
}

Result<json> runner_list(MethodCall& call) {
  MJ_TRY(infos, service::list_runners(call.request_context_of(), call.store()));
  json all = json::array();
  for (const RunnerInfo& info : infos) {
    json object = shown(info.runner);
    object["state"] = to_string(presence(info));
    object["host"] = info.hold.host;
    object["claims"] = info.claims;
    all.push_back(std::move(object));
  }
  return all;
}

Result<json> runner_update(MethodCall& call) {
  MJ_TRY(wanted, read_record<Runner>(call, {"context_id"}));
  const Networks& networks = call.services().settings.networks;
  MJ_TRY(after, service::update_runner(call.request_context_of(), call.store(), wanted, named_fields(call), networks));
  return shown(after);
}

Result<json> runner_delete(MethodCall& call) {
  const Id id = call.id("id");
  MJ_CHECK(service::delete_runner(call.request_context_of(), call.store(), id));
  return deleted("runner:" + std::to_string(id));
}

Result<json> message_create(MethodCall& call) {
  MJ_TRY(message, read_record<Message>(call, {"job"}));
  const json jobs = call.has("job") ? call.params().at("job") : json::array();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    auto job = read_job(jobs[i]);
    if (!job) return fail(job.error(), "job[" + std::to_string(i) + "]");
    message.job.push_back(std::move(*job));
  }
  MJ_TRY(made,
         service::send_message(call.request_context_of(), call.store(), call.named("caller_id"), std::move(message)));
  return to_json(made);
}

Result<json> message_send(MethodCall& call) {
  const Id maker = call.named("caller_id").value_or(call.actor());
  Message signature;
  signature.signature = call.text("signature");
  signature.signer = call.text("signer");
  signature.algorithm = call.text("algorithm");
  signature.created_at = static_cast<std::uint32_t>(call.number("created_at", 0));
  MJ_TRY(posted, service::post_message(call.request_context_of(), call.store(), maker, call.id("id"), signature));
  return to_json(posted);
}

Result<json> message_get(MethodCall& call) {
  const Id maker = call.named("caller_id").value_or(call.actor());
  MJ_TRY(message, service::read_message(call.request_context_of(), call.store(), maker, call.id("id")));
  return service::message_json(message);
}

Result<json> message_cancel(MethodCall& call) {
  const Id maker = call.named("caller_id").value_or(call.actor());
  MJ_TRY(message, service::cancel_message(call.request_context_of(), call.store(), maker, call.id("id")));
  return service::message_json(message);
}

Result<json> message_delete(MethodCall& call) {
  const Id maker = call.named("caller_id").value_or(call.actor()), id = call.id("id");
  MJ_CHECK(service::delete_message(call.request_context_of(), call.store(), maker, id));
  return deleted("message:" + std::to_string(maker) + ':' + std::to_string(id));
}

Result<json> message_list(MethodCall& call) {
  MJ_TRY(found, service::list_messages(call.request_context_of(), call.store(), call.number("limit", 50)));
  json all = json::array();
  for (const Message& message : found) all.push_back(to_json(message));
  return all;
}

}  // namespace records_methods

namespace records_methods {

constexpr std::string_view kIsDeleted = "Deleted: its key";

void add_actor_methods(Services& s, std::vector<Method>& all) {
  using namespace records_methods;
  const Param id{"id", "id", "its id", true}, any_id{"id", "id", "its id; absent: the next free one"};
  const Param pubkey{"pubkey", "text", "public key, ed25519; empty: remove the key"};
  const Param address{"address", "texts", "where it is reached"};
  all.push_back(
      method(s, "actor.create", "create an actor", {any_id, pubkey, address}, "Actor: the actor", actor_create));
  all.push_back(method(s, "actor.get", "read an actor", {id}, "Actor: the actor", actor_get));
  all.push_back(method(s, "actor.list", "list the actors", {}, "[Actor]: the actors, by id", actor_list));
  all.push_back(method(s, "actor.update", "change an actor's key or addresses", {id, pubkey, address},
                       "Actor: the actor", actor_update));
  all.push_back(method(s, "actor.delete", "delete an actor that no context names", {id}, kIsDeleted, actor_delete));
}

void add_context_methods(Services& s, std::vector<Method>& all) {
  using namespace records_methods;
  const Param first{"id", "id", "its id; absent: the server's first"};
  const Param submitters{"submitters", "ids",
                         "actors that create jobs, flows and messages, and control and read their own"};
  const Param readers{"readers", "ids", "actors that read everything"};
  const Param executors{"executors", "ids", "actors whose agents run jobs of the context"};
  const Param notify{"notify", "any",
                     "receivers of notifications about ends: a list of addresses and targets (docs/notify.md)"};
  all.push_back(method(s, "context.create", "create a context; its Redis database has the same number",
                       {{"id", "id", "its id; absent: the next free one"},
                        {"admins", "ids", "actors with all rights; default: the caller"},
                        readers,
                        executors,
                        submitters,
                        notify},
                       "Context: the context", context_create));
  all.push_back(method(s, "context.get", "read a context", {first}, "Context: the context", context_get));
  all.push_back(method(s, "context.list", "list the contexts that name the caller, or all for an operator", {},
                       "[Context]: the contexts, by id", context_list));
  all.push_back(
      method(s, "context.update", "change a context's lists of roles",
             {first, {"admins", "ids", "actors who may do everything"}, readers, executors, submitters, notify},
             "Context: the context", context_update));
  all.push_back(method(s, "context.delete", "delete the record of a context without unfinished work",
                       {{"id", "id", "its id", true}}, kIsDeleted, context_delete));
  all.push_back(method(s, "context.refusals", "list denied requests, newest first",
                       {first, {"limit", "count", "maximum number (default 50, at most 1000)"}},
                       "[Refusal]: number, at_ms, actor, action, thing, list", context_refusals));
}

void add_runner_methods(Services& s, std::vector<Method>& all) {
  using namespace records_methods;
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
  const auto with = [&fields](const Param& first) {
    std::vector<Param> params{first};
    params.insert(params.end(), fields.begin(), fields.end());
    return params;
  };
  all.push_back(method(s, "runner.create", "register a runner or a remote supervisor",
                       with({"id", "id", "its id; absent: the next free one"}),
                       "Runner: the runner, without its secret", runner_create));
  all.push_back(
      method(s, "runner.get", "read a runner", {id, context}, "Runner: the runner, without its secret", runner_get));
  all.push_back(method(s, "runner.list", "list the runners with their states", {context},
                       "[RunnerState]: runners with state (live, silent, left), host and claims", runner_list));
  all.push_back(method(s, "runner.update", "change a runner's record", with(id),
                       "Runner: the runner, without its secret", runner_update));
  all.push_back(method(s, "runner.delete", "delete a runner without an agent and without waiting work", {id, context},
                       kIsDeleted, runner_delete));
}

void add_message_methods(Services& s, std::vector<Method>& all) {
  using namespace records_methods;
  const Param id{"id", "id", "its id", true}, context{"context_id", "id", "the context; absent: the server's first"};
  const Param caller{"caller_id", "id", "owner; default: the caller"};
  all.push_back(method(
      s, "message.create", "write a message; with a topic, hand it to that topic",
      {{"id", "id", "its id; absent: the next free one"},
       context,
       caller,
       {"message", "text", "its text"},
       {"message_type", "text", "job, chat or mail"},
       {"message_format_type", "text", "html, text or md"},
       {"timeout", "seconds", "until it must be delivered"},
       {"timeout_ack", "seconds", "until it must be acknowledged"},
       {"timeout_result", "seconds", "until its result must be there"},
       {"job", "jobs", "jobs, whole, with their ids"},
       {"flow", "object", "a flow: name, definition (a flow's JSON as text), env_vars"},
       {"topic", "text", "topic of the runner that receives the message's jobs"},
       {"target_context", "id", "the target context; absent: its own"},
       {"target_address", "text",
        "of the supervisor of that context, on another host; the answer has its target_key, to be signed with it"},
       {"stream_logs", "boolean", "receive log lines of its jobs while they run"}},
      "Message: the message", message_create));
  all.push_back(method(s, "message.send", "send a signed message to another context",
                       {id,
                        context,
                        caller,
                        {"signature", "text", "by its caller's key; absent: the record has it"},
                        {"signer", "text", "the public key"},
                        {"algorithm", "text", "ed25519"},
                        {"created_at", "unix_s", "the signed time, in Unix seconds"}},
                       "Message: the message", message_send));
  all.push_back(method(s, "message.get", "read a message", {id, context, caller}, "Message: the message", message_get));
  all.push_back(method(s, "message.list", "list messages, newest first",
                       {context, {"limit", "count", "maximum number (default 50, at most 1000)"}},
                       "[MessageRow]: messages without text and jobs", message_list));
  all.push_back(method(s, "message.cancel", "cancel a message with its jobs and flow, permanently",
                       {id, context, caller}, "Message: the message", message_cancel));
  all.push_back(method(s, "message.delete", "delete a message that no queue or caller waits for", {id, context, caller},
                       kIsDeleted, message_delete));
}

}  // namespace records_methods

void add_record_methods(Services& s, std::vector<Method>& all) {
  using namespace records_methods;
  add_actor_methods(s, all);
  add_context_methods(s, all);
  add_runner_methods(s, all);
  add_message_methods(s, all);
}

}  // namespace mycojobs::api
