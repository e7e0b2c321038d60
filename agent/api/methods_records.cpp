// actor., context., runner. and message. methods: records, as clients write them.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/job_parts.h"
#include "api/services.h"
#include "domain/codec.h"
#include "domain/notify.h"
#include "inspect/runners.h"
#include "transport/supervisor_address.h"

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

// It is a channel of the Redis server, which hints of other kinds go through too.
Result<void> check_topic(const std::string& topic) {
  constexpr std::size_t kLongest = 64;
  const bool fits =
      topic.size() <= kLongest &&
      topic.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos;
  if (fits) return {};
  return fail(Code::invalid, "topic: give 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', or leave it out: runner<id>");
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
  const Id id = call.id("id");
  if (id != call.actor()) MJ_CHECK(call.may(Action::read, {.name = "actor " + std::to_string(id)}));
  MJ_TRY(fields, call.store().load(0, "actor:" + std::to_string(id)));
  return to_json(decode<Actor>(fields).record);
}

Result<Id> free_context(Call& call) {
  MJ_TRY(facts, call.store().facts());
  for (Id id = 1; id < facts.databases; ++id) {
    if (!call.go_to(id)) continue;
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
  MJ_CHECK(call.go_to(context.id));
  if (const auto wrong = read_notify(context.notify, "notify").problems; !wrong.empty())
    return fail(Code::invalid, join(wrong));
  if (context.admins.empty()) context.admins = {call.actor()};
  MJ_TRY(stored, create(call, context.id, {"context:", "context", context.id, encode(context)}));
  return to_json(decode<Context>(stored).record);
}

Result<json> context_get(Call& call) {
  if (call.has("id")) MJ_CHECK(call.go_to(call.id("id")));
  MJ_CHECK(call.may(Action::read));
  MJ_TRY(context, load_record<Context>(call, call.context(), "context:" + std::to_string(call.context())));
  return to_json(context);
}

Result<json> runner_create(Call& call) {
  MJ_CHECK(call.may(Action::administer, {.name = "runners"}));
  MJ_TRY(runner, read_record<Runner>(call, {"context_id"}));
  MJ_CHECK(check_topic(runner.topic));
  MJ_CHECK(check_supervisor_address(runner.address, call.services().settings.networks));
  MJ_TRY(stored, create(call, call.context(), {"runner:", "runner", runner.id, encode(runner)}));
  return shown(decode<Runner>(stored).record);
}

Result<json> runner_get(Call& call) {
  MJ_CHECK(call.may(Action::read, {.name = "runners"}));
  MJ_TRY(runner, load_record<Runner>(call, call.context(), "runner:" + std::to_string(call.id("id"))));
  return shown(runner);
}

Result<json> runner_list(Call& call) {
  MJ_CHECK(call.may(Action::read, {.name = "runners"}));
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

// A message goes to a runner of this context, and its hint to no other channel of the server.
Result<void> check_is_runners(Call& call, const std::string& topic) {
  if (topic.empty()) return {};
  MJ_TRY(infos, call.store().runners(call.context()));
  for (const RunnerInfo& info : infos) {
    const std::string own = "runner" + std::to_string(info.runner.id);
    if (topic == (info.runner.topic.empty() ? own : info.runner.topic)) return {};
  }
  return fail(Code::not_found, "topic: no runner of context " + std::to_string(call.context()) + " has this topic; " +
                                   "runner.list names those there are");
}

Result<Message> read_message(Call& call, const Sender& sender) {
  MJ_TRY(message, read_record<Message>(call, {"job"}));
  message.status = MessageStatus::dispatched;
  const json jobs = call.has("job") ? call.params().at("job") : json::array();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    auto job = read_job(jobs[i], sender);
    if (!job) return fail(job.error(), "job[" + std::to_string(i) + "]");
    message.job.push_back(std::move(*job));
  }
  MJ_CHECK(settle(message, sender));
  return std::move(message);
}

Result<json> message_create(Call& call) {
  MJ_CHECK(call.may(Action::create, {.name = "messages"}));
  MJ_TRY(owner, call.owner());
  MJ_TRY(message, read_message(call, {owner, call.context()}));
  MJ_CHECK(check_is_runners(call, message.topic));
  const std::string caller = std::to_string(owner);
  NewRecord record{"message:" + caller + ':', "message:" + caller, message.id, encode(message)};
  MJ_TRY(stored, create(call, call.context(), std::move(record)));
  const Message made = decode<Message>(stored).record;
  if (!message.topic.empty()) MJ_CHECK(call.store().topic_send(call.context(), message.topic, redis_key(made), {}));
  return to_json(made);
}

Result<json> message_get(Call& call) {
  const Id caller = call.has("caller_id") ? call.id("caller_id") : call.actor();
  const std::string name = std::to_string(caller) + ':' + std::to_string(call.id("id"));
  MJ_CHECK(call.may(Action::read, {.name = "message " + name, .maker = caller}));
  MJ_TRY(message, load_record<Message>(call, call.context(), "message:" + name));
  return to_json(message);
}

Result<json> message_list(Call& call) {
  MJ_TRY(only, call.sight());
  const std::size_t limit = std::min<std::size_t>(call.number("limit", 50), kMaxListed);
  const std::string prefix = only ? "message:" + std::to_string(*only) + ':' : "message:";
  MJ_TRY(keys, call.store().keys(call.context(), prefix, kMaxKeys));
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
