// mycojobs coordinator
#include <fmt/format.h>
#include <sysexits.h>

#include "base/log.h"
#include "base/notify.h"
#include "cli/api_server.h"
#include "cli/commands.h"
#include "cli/serve.h"
#include "cli/session.h"
#include "cli/terminal.h"

namespace mycojobs {
namespace {

std::string describe(const std::vector<Id>& contexts) {
  if (contexts.empty()) return "coordinator of every context that is found";
  return fmt::format("coordinator of context {}", fmt::join(contexts, " "));
}

}  // namespace

int coordinator_command(Invocation& call) {
  if (call.settings.redis.empty()) {
    return complain({Code::invalid,
                     "no Redis named: give --redis redis://host:6379, set MYCOJOBS_REDIS, or use `mycojobs dev`, which "
                     "has a coordinator"});
  }
  const std::vector<Id> contexts = call.settings.contexts_chosen ? call.settings.contexts : std::vector<Id>();
  auto stores = call.parts.stores(call.settings, call.settings.redis);
  auto coordinator = start_coordinator(call.parts, call.settings, *stores, contexts);
  if (!coordinator) return complain(coordinator.error());
  Vitals vitals;
  const Health health = health_of(**coordinator, vitals);
  auto api = start_coordinator_api(call.parts, call.settings, *stores, contexts, false, health);
  if (!api) return complain(api.error());
  auto health_server = start_health_server(call.settings, health);
  if (!health_server) return complain(health_server.error());
  log(LogLevel::info, "coordinator", "{}", describe(contexts));
  serve(**coordinator, describe(contexts), vitals);
  return EXIT_SUCCESS;
}

}  // namespace mycojobs
