// queue. and system. methods.
#include <nlohmann/json.hpp>

#include "api/services.h"
#include "base/version.h"
#include "service/queues.h"

namespace mycojobs::api {
namespace {

using nlohmann::json;

Result<json> queue_list(Call& call) {
  MJ_TRY(queues, service::list_queues(call.by(), call.store()));
  json all = json::array();
  for (const QueueInfo& info : queues) {
    all.push_back({{"queue", info.queue},
                   {"length", info.length},
                   {"prioritised", info.prioritised},
                   {"paused", info.paused},
                   {"facts", info.facts}});
  }
  return all;
}

Result<json> set_paused(Call& call, bool paused) {
  MJ_TRY(done, service::pause_queue(call.by(), call.store(), call.text("queue"), paused));
  return json{{"queue", done.queue}, {"paused", paused}};
}
Result<json> queue_pause(Call& call) { return set_paused(call, true); }
Result<json> queue_resume(Call& call) { return set_paused(call, false); }

Result<json> info(Call& call) {
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

}  // namespace

void add_system_methods(Services& s, std::vector<Method>& all) {
  const Param context{"context_id", "id", "the context; absent: the server's first"};
  const Param queue{"queue", "text", "a script type, or a queue's key", true};
  all.push_back(method(s, "queue.list", "list the queues", {context},
                       "[Queue]: queue, length, prioritised, paused, facts", queue_list));
  all.push_back(method(s, "queue.pause", "let nothing be taken from a queue", {queue, context},
                       "QueueState: queue, paused", queue_pause));
  all.push_back(
      method(s, "queue.resume", "open a paused queue", {queue, context}, "QueueState: queue, paused", queue_resume));
  // These two answer while the store is away.
  all.push_back(
      {"system.ping", "say that the server is there", {}, "text: pong", [](const json&, const Caller&) -> Result<json> {
         return json("pong");
       }});
  all.push_back({"system.version",
                 "say which version it is",
                 {},
                 "Version: version",
                 [](const json&, const Caller&) -> Result<json> {
                   return json{{"version", kVersion}};
                 }});
  all.push_back(method(s, "system.info", "say what the server serves and how it is", {},
                       "ServerInfo: version, role, contexts, calls, refusals, actor, store", info));
}

}  // namespace mycojobs::api
