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
  MJ_TRY(queues, service::list_queues(call.request_context_of(), call.store()));
  json all = json::array();
  for (const QueueInfo& info : queues) {
    all.push_back({{"queue", info.queue},
                   {"length", info.length},
                   {"prioritised", info.prioritised},
                   {"paused", info.paused},
                   {"facts", info.facts}});
    if (!info.wrong_type.empty()) all.back()["wrong_type"] = info.wrong_type;
  }
  return all;
}

Result<json> set_paused(MethodCall& call, bool paused) {
  MJ_TRY(done, service::pause_queue(call.request_context_of(), call.store(), call.text("queue"), paused));
  return json{{"queue", done.queue}, {"paused", paused}};
}
Result<json> queue_pause(MethodCall& call) { return set_paused(call, true); }
Result<json> queue_resume(MethodCall& call) { return set_paused(call, false); }

Result<json> queue_dead(MethodCall& call) {
  const auto limit = std::clamp<std::uint64_t>(call.number("limit", 100), 1, 1000);
  MJ_TRY(letters, service::dead_letters(call.request_context_of(), call.store(), limit));
  json all = json::array();
  for (const DeadLetter& letter : letters) {
    all.push_back({{"letter", letter.id},
                   {"job", to_utf8(letter.job_key)},
                   {"queue", to_utf8(letter.queue)},
                   {"reason", to_utf8(letter.reason)},
                   {"at_ms", letter.at_ms}});
  }
  return all;
}

Result<json> settle(MethodCall& call, bool requeue) {
  const std::string letter = call.text("letter");
  MJ_CHECK(service::settle_dead_letter(call.request_context_of(), call.store(), letter, requeue));
  return json{{"letter", letter}, {"requeued", requeue}};
}
Result<json> queue_requeue(MethodCall& call) { return settle(call, true); }
Result<json> queue_drop(MethodCall& call) { return settle(call, false); }

Result<json> info(MethodCall& call) {
  MJ_TRY(facts, call.store().facts());
  const Services& services = call.services();
  return json{{"version", kVersion},
              {"role", services.settings.role == ApiRole::supervisor ? "supervisor" : "coordinator"},
              {"contexts", services.settings.contexts},
              {"started_ms", services.started_ms},
              {"calls", services.calls.load()},
              {"refusals", services.refusals.load()},
              {"actor", call.actor()},
              {"store", {{"product", facts.product}, {"version", facts.version}, {"databases", facts.databases}}}};
}

}  // namespace system_methods

void add_system_methods(Services& s, std::vector<Method>& all) {
  using namespace system_methods;
  const Param context{"context_id", "id", "the context; absent: the server's first"};
  const Param queue{"queue", "text", "a script type, or a queue's key", true};
  all.push_back(method(s, "queue.list", "list the queues", {context},
                       "[Queue]: queue, length, prioritised, paused, facts, wrong_type", queue_list));
  all.push_back(method(s, "queue.pause", "pause a queue: no job is claimed", {queue, context},
                       "QueueState: queue, paused", queue_pause));
  all.push_back(
      method(s, "queue.resume", "resume a paused queue", {queue, context}, "QueueState: queue, paused", queue_resume));
  const Param letter{"letter", "text", "a dead letter, as queue.dead names it", true};
  all.push_back(method(s, "queue.dead",
                       "list dead letters: jobs and entries that cannot run, or not again; latest last",
                       {context, {"limit", "count", "maximum number (default 100, at most 1000)"}},
                       "[DeadLetter]: letter, job, queue, reason, at_ms", queue_dead));
  all.push_back(method(s, "queue.requeue", "run a dead letter again", {letter, context},
                       "SettledLetter: letter, requeued", queue_requeue));
  all.push_back(method(s, "queue.drop", "remove a dead letter from the list", {letter, context},
                       "SettledLetter: letter, requeued", queue_drop));
  // The next two methods do not use the store, so they work while it is unavailable.
  all.push_back({"system.ping",
                 "check that the server answers",
                 {},
                 "text: pong",
                 [](const json&, const RpcCaller&) -> Result<json> { return json("pong"); }});
  all.push_back({"system.version",
                 "read the version of the server",
                 {},
                 "Version: version",
                 [](const json&, const RpcCaller&) -> Result<json> {
                   return json{{"version", kVersion}};
                 }});
  all.push_back(method(s, "system.info", "read role, contexts and state of the server", {},
                       "ServerInfo: version, role, contexts, calls, refusals, actor, store", info));
}

}  // namespace mycojobs::api
