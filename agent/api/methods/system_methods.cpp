// The `queue.` and `system.` methods.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/services.h"
#include "base/version.h"
#include "service/queue_service.h"
#include "text/utf8.h"

namespace mycojobs::api {
namespace system_methods {

using nlohmann::json;

Result<json> queue_list(MethodCall& call) {
  MJ_TRY(queues, service::list_queues(call.request_context(), call.store()));
  json rows = json::array();
  for (const QueueInfo& info : queues) {
    rows.push_back({{"queue", info.queue},
                    {"length", info.length},
                    {"prioritised", info.prioritised},
                    {"paused", info.paused},
                    {"facts", info.facts}});
    if (!info.wrong_type.empty()) rows.back()["wrong_type"] = info.wrong_type;
  }
  return rows;
}

Result<json> set_paused(MethodCall& call, bool paused) {
  MJ_TRY(info, service::pause_queue(call.request_context(), call.store(), call.text("queue"), paused));
  return json{{"queue", info.queue}, {"paused", paused}};
}
Result<json> queue_pause(MethodCall& call) { return set_paused(call, true); }
Result<json> queue_resume(MethodCall& call) { return set_paused(call, false); }

Result<json> queue_dead(MethodCall& call) {
  const auto limit = std::clamp<std::uint64_t>(call.number("limit", 100), 1, 1000);
  MJ_TRY(letters, service::dead_letters(call.request_context(), call.store(), limit));
  json rows = json::array();
  for (const DeadLetter& letter : letters) {
    rows.push_back({{"letter", letter.id},
                    {"job", to_utf8(letter.job_key)},
                    {"queue", to_utf8(letter.queue)},
                    {"reason", to_utf8(letter.reason)},
                    {"at_ms", letter.at_ms}});
  }
  return rows;
}

Result<json> resolve_dead_letter(MethodCall& call, bool requeue) {
  const std::string letter = call.text("letter");
  MJ_CHECK(service::settle_dead_letter(call.request_context(), call.store(), letter, requeue));
  return json{{"letter", letter}, {"requeued", requeue}};
}
Result<json> queue_requeue(MethodCall& call) { return resolve_dead_letter(call, true); }
Result<json> queue_drop(MethodCall& call) { return resolve_dead_letter(call, false); }

Result<json> info(MethodCall& call) {
  MJ_TRY(server, call.store().server_info());
  const Services& services = call.services();
  return json{{"version", kVersion},
              {"role", services.settings.role == ApiRole::supervisor ? "supervisor" : "coordinator"},
              {"contexts", services.settings.contexts},
              {"started_ms", services.started_ms},
              {"calls", services.call_count.load()},
              {"refusals", services.refusal_count.load()},
              {"actor", call.actor()},
              {"store", {{"product", server.product}, {"version", server.version}, {"databases", server.databases}}}};
}

}  // namespace system_methods

void add_system_methods(Services& services, std::vector<Method>& methods) {
  using namespace system_methods;
  const Param context{"context_id", "id", "the context; absent: the server's first"};
  const Param queue{"queue", "text", "a script type, or a queue's key", true};
  methods.push_back(make_method(services, "queue.list", "list the queues", {context},
                                "[Queue]: queue, length, prioritised, paused, facts, wrong_type", queue_list));
  methods.push_back(make_method(services, "queue.pause", "pause a queue: no job is claimed", {queue, context},
                                "QueueState: queue, paused", queue_pause));
  methods.push_back(make_method(services, "queue.resume", "resume a paused queue", {queue, context},
                                "QueueState: queue, paused", queue_resume));
  const Param letter{"letter", "text", "a dead letter, as queue.dead names it", true};
  methods.push_back(make_method(services, "queue.dead",
                                "list dead letters: jobs and entries that cannot run, or not again; latest last",
                                {context, {"limit", "count", "maximum number (default 100, at most 1000)"}},
                                "[DeadLetter]: letter, job, queue, reason, at_ms", queue_dead));
  methods.push_back(make_method(services, "queue.requeue", "run a dead letter again", {letter, context},
                                "SettledLetter: letter, requeued", queue_requeue));
  methods.push_back(make_method(services, "queue.drop", "remove a dead letter from the list", {letter, context},
                                "SettledLetter: letter, requeued", queue_drop));
  // The next two methods do not use the store, so they work while it is unavailable.
  methods.push_back({"system.ping",
                     "check that the server answers",
                     {},
                     "text: pong",
                     [](const json&, const RpcCaller&) -> Result<json> { return json("pong"); }});
  methods.push_back({"system.version",
                     "read the version of the server",
                     {},
                     "Version: version",
                     [](const json&, const RpcCaller&) -> Result<json> {
                       return json{{"version", kVersion}};
                     }});
  methods.push_back(make_method(services, "system.info", "read role, contexts and state of the server", {},
                                "ServerInfo: version, role, contexts, calls, refusals, actor, store", info));
}

}  // namespace mycojobs::api
