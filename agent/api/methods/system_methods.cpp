// The `queue.` and `system.` methods.
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
  MJ_TRY(letters, service::dead_letters(call.request_context(), call.store(), call.number("limit")));
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
  bind_methods(services,
               {{"queue.list", queue_list},
                {"queue.pause", queue_pause},
                {"queue.resume", queue_resume},
                {"queue.dead", queue_dead},
                {"queue.requeue", queue_requeue},
                {"queue.drop", queue_drop},
                {"system.info", info}},
               methods);
  // The next two methods do not use the store, so they work while it is unavailable.
  bind_method(
      "system.ping", [](const json&, const RpcCaller&) -> Result<json> { return json("pong"); }, methods);
  bind_method(
      "system.version",
      [](const json&, const RpcCaller&) -> Result<json> {
        return json{{"version", kVersion}};
      },
      methods);
}

}  // namespace mycojobs::api
