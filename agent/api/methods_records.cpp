// actor., context., runner. and message. methods: records, as clients write them.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/services.h"
#include "domain/codec.h"
#include "inspect/runners.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxListed = 1000, kMaxKeys = 100000;

Error not_operator(const Call& call, const std::string& what) {
  return {Code::denied, "actor " + std::to_string(call.actor()) + " may not " + what +
                            ": it takes an operator's token (mycojobs key token --operator)"};
}

// The parameters as a record; `context_id` is no field of most.
template <class R>
Result<R> read_record(const Call& call, std::initializer_list<const char*> not_fields = {}) {
  json object = call.params();
  for (const char* name : not_fields) object.erase(name);
  auto decoded = decode_json<R>(object);
  if (!decoded.ok()) return fail(Code::invalid, join(decoded.problems));
  return std::move(decoded.record);
}

template <class R>
Result<R> load_record(Call& call, Id context, const std::string& key) {
  MJ_TRY(fields, call.store().load(context, key));
  return decode<R>(fields).record;
}

bool is_bookkeeping(const std::string& name) { return name == "id" || name == "created_at" || name == "updated_at"; }

// Created, or there already with the same content. Fields that others have added since do not matter.
Result<Fields> create(Call& call, Id context, NewRecord record) {
  std::erase_if(record.fields, [](const auto& field) { return is_bookkeeping(field.first); });
  MJ_TRY(made, call.store().create_record(context, record));
  if (!made.existed) return std::move(made.record);
  for (const auto& field : record.fields) {
    if (std::find(made.record.begin(), made.record.end(), field) == made.record.end())
      return fail(Code::conflict, made.key + " exists with another " + field.first + "; use another id");
  }
  return std::move(made.record);
}

json shown(const Runner& runner) {
  json object = to_json(runner);
  object.erase("secret");
  return object;
}

Result<json> actor_create(Call& call) {
  if (!call.all_powerful() && call.id("id") != call.actor())
    return tl::unexpected(not_operator(call, "create an actor other than itself"));
  MJ_TRY(actor, read_record<Actor>(call));
  MJ_TRY(stored, create(call, 0, {"actor:", "actor", actor.id, encode(actor)}));
  return to_json(decode<Actor>(stored).record);
}

Result<json> actor_get(Call& call) {
  MJ_TRY(fields, call.store().load(0, "actor:" + std::to_string(call.id("id"))));
  return to_json(decode<Actor>(fields).record);
}

Result<Id> free_context(Call& call) {
  MJ_TRY(facts, call.store().facts());
  for (Id id = 1; id < facts.databases; ++id) {
    auto found = call.store().load(id, "context:" + std::to_string(id));
    if (!found && found.error().code == Code::not_found) return id;
    if (!found) return tl::unexpected<Error>(std::move(found).error());
  }
  return fail(Code::conflict, "id: all " + std::to_string(facts.databases) +
                                  " databases have a context: raise the server's setting `databases`");
}

Result<json> context_create(Call& call) {
  if (!call.all_powerful()) return tl::unexpected(not_operator(call, "create a context"));
  MJ_TRY(context, read_record<Context>(call));
  if (context.id == 0) {
    MJ_TRY(free, free_context(call));
    context.id = free;
  }
  if (context.admins.empty()) context.admins = {call.actor()};
  MJ_TRY(stored, create(call, context.id, {"context:", "context", context.id, encode(context)}));
  return to_json(decode<Context>(stored).record);
}

Result<json> context_get(Call& call) {
  if (call.has("id")) call.go_to(call.id("id"));
  MJ_CHECK(call.may(Deed::read));
  MJ_TRY(context, load_record<Context>(call, call.context(), "context:" + std::to_string(call.context())));
  return to_json(context);
}

Result<json> runner_create(Call& call) {
  MJ_CHECK(call.may(Deed::administer));
  MJ_TRY(runner, read_record<Runner>(call, {"context_id"}));
  MJ_TRY(stored, create(call, call.context(), {"runner:", "runner", runner.id, encode(runner)}));
  return shown(decode<Runner>(stored).record);
}

Result<json> runner_get(Call& call) {
  MJ_CHECK(call.may(Deed::read));
  MJ_TRY(runner, load_record<Runner>(call, call.context(), "runner:" + std::to_string(call.id("id"))));
  return shown(runner);
}

Result<json> runner_list(Call& call) {
  MJ_CHECK(call.may(Deed::read));
  MJ_TRY(infos, call.store().runners(call.context()));
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
  MJ_CHECK(call.may(Deed::create));
  MJ_TRY(owner, call.owner());
  MJ_TRY(message, read_record<Message>(call));
  message.caller_id = owner;
  message.context_id = call.context();
  message.status = MessageStatus::dispatched;
  const std::string caller = std::to_string(owner);
  NewRecord record{"message:" + caller + ':', "message:" + caller, message.id, encode(message)};
  MJ_TRY(stored, create(call, call.context(), std::move(record)));
  const Message made = decode<Message>(stored).record;
  if (!message.topic.empty()) MJ_CHECK(call.store().topic_send(call.context(), message.topic, redis_key(made), {}));
  return to_json(made);
}

Result<json> message_get(Call& call) {
  const Id caller = call.has("caller_id") ? call.id("caller_id") : call.actor();
  MJ_CHECK(call.may(Deed::read, caller));
  MJ_TRY(message, load_record<Message>(call, call.context(),
                                       "message:" + std::to_string(caller) + ':' + std::to_string(call.id("id"))));
  return to_json(message);
}

Result<json> message_list(Call& call) {
  MJ_CHECK(call.may(Deed::read));
  const std::size_t limit = std::min<std::size_t>(call.number("limit", 50), kMaxListed);
  MJ_TRY(keys, call.store().keys(call.context(), "message:", kMaxKeys));
  constexpr std::string_view kListed[] = {"id",    "caller_id",  "context_id", "message_type", "status",
                                          "error", "created_at", "updated_at", "topic"};
  std::vector<Message> found;
  for (const std::string& key : keys) {
    auto fields = call.store().load_fields(call.context(), key, kListed);
    if (!fields && fields.error().code != Code::not_found && fields.error().code != Code::invalid)
      return tl::unexpected<Error>(std::move(fields).error());
    if (fields && !fields->empty()) found.push_back(decode<Message>(*fields).record);
  }
  std::sort(found.begin(), found.end(), [](const Message& a, const Message& b) {
    return std::tie(b.created_at, b.caller_id, b.id) < std::tie(a.created_at, a.caller_id, a.id);
  });
  json all = json::array();
  for (std::size_t i = 0; i < found.size() && i < limit; ++i) all.push_back(to_json(found[i]));
  return all;
}

}  // namespace

void add_record_methods(Services& s, std::vector<Method>& all) {
  const Param id{"id", "id", "its id", true}, any_id{"id", "id", "its id; absent: the next free one"};
  const Param context{"context_id", "id", "the context; absent: the server's first"};
  const Param caller{"caller_id", "id", "whose it is; absent: the caller's"};
  all.push_back(method(s, "actor.create", "create an actor",
                       {any_id, {"pubkey", "text", "its key"}, {"address", "list", "where it is reached: texts"}},
                       "object: the actor", actor_create));
  all.push_back(method(s, "actor.get", "read an actor", {id}, "object: the actor", actor_get));
  all.push_back(method(s, "context.create", "create a context: its Redis database is the one of that number",
                       {any_id,
                        {"admins", "list", "ids of actors; absent: the caller"},
                        {"readers", "list", "ids of actors"},
                        {"executors", "list", "ids of actors"}},
                       "object: the context", context_create));
  all.push_back(method(s, "context.get", "read a context", {{"id", "id", "its id; absent: the server's first"}},
                       "object: the context", context_get));
  const std::vector<Param> runner{any_id,
                                  context,
                                  {"pubkey", "text", "its key"},
                                  {"address", "text", "where it is reached"},
                                  {"topic", "text", "its topic; absent: runner<id>"},
                                  {"local", "boolean", "takes from queues, too"},
                                  {"type", "text", "v, python, osis or rust"},
                                  {"secret", "text", "sent to its supervisor as bearer token; never shown"}};
  all.push_back(method(s, "runner.create", "register a runner or a remote supervisor", runner,
                       "object: the runner, without its secret", runner_create));
  all.push_back(
      method(s, "runner.get", "read a runner", {id, context}, "object: the runner, without its secret", runner_get));
  all.push_back(method(s, "runner.list", "list the runners, and whether they live", {context},
                       "list: runners with state (live, silent, left), host and claims", runner_list));
  all.push_back(method(s, "message.create", "write a message; with a topic, hand it to that topic",
                       {any_id,
                        context,
                        caller,
                        {"message", "text", "its text"},
                        {"message_type", "text", "job, chat or mail"},
                        {"message_format_type", "text", "html, text or md"},
                        {"timeout", "integer", "seconds until it must be delivered"},
                        {"timeout_ack", "integer", "seconds until it must be acknowledged"},
                        {"timeout_result", "integer", "seconds until its result must be there"},
                        {"job", "list", "jobs, whole"},
                        {"topic", "text", "of a runner: it takes the message's jobs"}},
                       "object: the message", message_create));
  all.push_back(method(s, "message.get", "read a message", {id, context, caller}, "object: the message", message_get));
  all.push_back(method(s, "message.list", "list messages, newest first",
                       {context, {"limit", "integer", "at most so many (50; 1000 at most)"}},
                       "list: messages without text and jobs", message_list));
}

}  // namespace mycojobs::api
