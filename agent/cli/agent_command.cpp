// mycojobs agent, mycojobs dev
#include <fmt/format.h>

#include "base/log.h"
#include "cli/api_server.h"
#include "cli/commands.h"
#include "cli/serve.h"
#include "cli/session.h"
#include "cli/terminal.h"

namespace mycojobs {
namespace {

std::string describe(const Settings& settings) {
  std::string contexts;
  for (Id id : settings.contexts) contexts += " " + std::to_string(id);
  return fmt::format("runner {} serves context{} with {} slots", settings.runner, contexts, settings.slots);
}

}  // namespace

int agent_command(Invocation& call) {
  if (call.settings.redis.empty()) {
    return complain({Code::invalid,
                     "no Redis named: give --redis redis://host:6379, set MYCOJOBS_REDIS, or use `mycojobs dev` for a "
                     "private one"});
  }
  auto stores = call.parts.stores(call.settings, call.settings.redis);
  auto agent = start_agent(call.parts, call.settings, *stores);
  if (!agent) return complain(agent.error());
  Vitals vitals;
  const Health health = health_of(**agent, vitals);
  auto api = start_supervisor_api(call.parts, call.settings, *stores, health);
  if (!api) return complain(api.error());
  auto health_server = start_health_server(call.settings, health);
  if (!health_server) return complain(health_server.error());
  log(LogLevel::info, "worker", "{}", describe(call.settings));
  return serve(**agent, describe(call.settings), vitals);
}

int dev_command(Invocation& call) {
  if (!call.settings.redis.empty()) {
    return complain(
        {Code::invalid, "`mycojobs dev` has a Redis of its own: leave out --redis, or use `mycojobs agent`"});
  }
  auto session = open_session(call.parts, call.settings, true);
  if (!session) return complain(session.error());
  if (!session->agent) {
    return complain({Code::conflict, "another mycojobs has the state folder " + call.settings.state_dir +
                                         ": stop it, or give another --state-dir"});
  }
  log(LogLevel::info, "worker", "{}; Redis at {}", describe(call.settings), call.parts.embedded_url(call.settings));
  Vitals vitals;
  const Health health = health_of(*session->agent, vitals);
  auto api = start_coordinator_api(call.parts, call.settings, *session->stores, call.settings.contexts, true, health);
  if (!api) return complain(api.error());
  auto health_server = start_health_server(call.settings, health);
  if (!health_server) return complain(health_server.error());
  const int code = serve(*session->agent, describe(call.settings), vitals);
  health_server->reset();
  api->reset();
  session->coordinator.reset();  // before its server
  session->agent.reset();
  return code;
}

}  // namespace mycojobs
