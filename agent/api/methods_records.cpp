// actor., context., runner. and message. methods: records, as clients write them.
#include <nlohmann/json.hpp>

#include "api/job_parts.h"
#include "domain/codec.h"
#include "inspect/runners.h"
#include "service/records.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

// The parameters as a record; `context_id` is no field of most.
template <class R>
Result<R> read_record(const Call& call, std::initializer_list<const char*> not_fields = {}) {
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

Result<json> actor_create(Call& call) {
  MJ_TRY(actor, read_record<Actor>(call));
  MJ_TRY(stored, service::create_actor(call.by(), call.store(), actor));
  return to_json(stored);
}

Result<json> actor_get(Call& call) {
  MJ_TRY(actor, service::read_actor(call.by(), call.store(), call.id("id")));
  return to_json(actor);
}

Result<json> context_create(Call& call) {
  MJ_TRY(context, read_record<Context>(call));
  MJ_TRY(stored, service::create_context(call.by(), call.store(), context, [&](Id id) { return call.go_to(id); }));
  return to_json(stored);
}

Result<json> context_get(Call& call) {
  if (call.has("id")) MJ_CHECK(call.go_to(call.id("id")));
  MJ_TRY(context, service::read_context(call.by(), call.store()));
  return to_json(context);
}

Result<json> runner_create(Call& call) {
  MJ_TRY(runner, read_record<Runner>(call, {"context_id"}));
  MJ_TRY(stored, service::create_runner(call.by(), call.store(), runner, call.services().settings.networks));
  return shown(stored);
}

Result<json> runner_get(Call& call) {
  MJ_TRY(runner, service::read_runner(call.by(), call.store(), call.id("id")));
  return shown(runner);
}

Result<json> runner_list(Call& call) {
  MJ_TRY(infos, service::list_runners(call.by(), call.store()));
  json all = json::array();
  for (const RunnerInfo& info : infos) {
    json object = shown(info.runner);
    object["state"] = word(presence(info));
    object["host"] = info.hold.host;
    object["claims"] = info.claims;
    all.push_back(std::move(object));
  }
  return all;
}

Result<json> message_create(Call& call) {
  MJ_TRY(message, read_record<Message>(call, {"job"}));
  const json jobs = call.has("job") ? call.params().at("job") : json::array();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    auto job = read_job(jobs[i]);
    if (!job) return fail(job.error(), "job[" + std::to_string(i) + "]");
    message.job.push_back(std::move(*job));
  }
  MJ_TRY(made, service::send_message(call.by(), call.store(), call.named("caller_id"), std::move(message)));
  return to_json(made);
}

Result<json> message_get(Call& call) {
  const Id maker = call.named("caller_id").value_or(call.actor());
  MJ_TRY(message, service::read_message(call.by(), call.store(), maker, call.id("id")));
  return to_json(message);
}

Result<json> message_list(Call& call) {
  MJ_TRY(found, service::list_messages(call.by(), call.store(), call.number("limit", 50)));
  json all = json::array();
  for (const Message& message : found) all.push_back(to_json(message));
  return all;
}

}  // namespace

void add_record_methods(Services& s, std::vector<Method>& all) {
  const Param id{"id", "id", "its id", true}, any_id{"id", "id", "its id; absent: the next free one"};
  const Param context{"context_id", "id", "the context; absent: the server's first"};
  const Param caller{"caller_id", "id", "whose it is; absent: the caller's"};
  all.push_back(method(s, "actor.create", "create an actor",
                       {any_id, {"pubkey", "text", "its key"}, {"address", "texts", "where it is reached"}},
                       "Actor: the actor", actor_create));
  all.push_back(method(s, "actor.get", "read an actor", {id}, "Actor: the actor", actor_get));
  all.push_back(method(s, "context.create", "create a context: its Redis database is the one of that number",
                       {any_id,
                        {"admins", "ids", "actors who may do everything; absent: the caller"},
                        {"readers", "ids", "actors who read everything"},
                        {"executors", "ids", "actors whose agents run its jobs"},
                        {"submitters", "ids", "actors who make jobs, flows and messages, and steer and read their own"},
                        {"notify", "any", "who hears of ends in it: a list of addresses and targets (docs/notify.md)"}},
                       "Context: the context", context_create));
  all.push_back(method(s, "context.get", "read a context", {{"id", "id", "its id; absent: the server's first"}},
                       "Context: the context", context_get));
  const std::vector<Param> runner{
      any_id,
      context,
      {"pubkey", "text", "its key"},
      {"address", "text", "where it is reached: http://HOST:PORT of a supervisor, in coordinator.networks"},
      {"topic", "text", "its topic; absent: runner<id>"},
      {"local", "boolean", "takes from queues, too"},
      {"type", "text", "v, python, osis or rust"},
      {"secret", "text", "sent to its supervisor as bearer token; never shown"}};
  all.push_back(method(s, "runner.create", "register a runner or a remote supervisor", runner,
                       "Runner: the runner, without its secret", runner_create));
  all.push_back(
      method(s, "runner.get", "read a runner", {id, context}, "Runner: the runner, without its secret", runner_get));
  all.push_back(method(s, "runner.list", "list the runners, and whether they live", {context},
                       "[RunnerState]: runners with state (live, silent, left), host and claims", runner_list));
  all.push_back(method(s, "message.create", "write a message; with a topic, hand it to that topic",
                       {any_id,
                        context,
                        caller,
                        {"message", "text", "its text"},
                        {"message_type", "text", "job, chat or mail"},
                        {"message_format_type", "text", "html, text or md"},
                        {"timeout", "seconds", "until it must be delivered"},
                        {"timeout_ack", "seconds", "until it must be acknowledged"},
                        {"timeout_result", "seconds", "until its result must be there"},
                        {"job", "jobs", "jobs, whole, with their ids"},
                        {"topic", "text", "of a runner: it takes the message's jobs"}},
                       "Message: the message", message_create));
  all.push_back(method(s, "message.get", "read a message", {id, context, caller}, "Message: the message", message_get));
  all.push_back(method(s, "message.list", "list messages, newest first",
                       {context, {"limit", "integer", "at most so many (50; 1000 at most)"}},
                       "[MessageRow]: messages without text and jobs", message_list));
}

}  // namespace mycojobs::api
