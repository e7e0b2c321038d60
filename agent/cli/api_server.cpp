#include "cli/api_server.h"

#include "base/log.h"

namespace mycojobs {
namespace {

Result<Networks> networks_of(const Settings& settings) {
  auto networks = Networks::parse(settings.coordinator_networks);
  if (!networks) return fail(networks.error(), "coordinator.networks");
  return networks;
}

}  // namespace

Result<std::unique_ptr<ApiServer>> start_coordinator_api(const Parts& parts, const Settings& settings,
                                                         StoreFactory& stores, const std::vector<Id>& contexts,
                                                         bool anonymous, Health health) {
  if (settings.api_listen.empty()) return nullptr;
  ApiSettings api;
  api.listen = settings.api_listen;
  api.tokens_file = settings.api_tokens;
  api.anonymous = anonymous;
  MJ_TRY(networks, networks_of(settings));
  api.networks = std::move(networks);
  api.contexts = contexts;
  api.health = std::move(health);
  auto server = start_api(stores, parts.clock, std::move(api));
  if (server) return std::move(*server);
  // A second one on this host is fine without it: flows move on all the same.
  if (server.error().code == Code::conflict && !settings.api_listen_chosen) {
    log(LogLevel::warn, "api", "no JSON-RPC here: {}; --api-listen gives another address", server.error().message);
    return nullptr;
  }
  return fail(server.error(), "api.listen");
}

Result<std::unique_ptr<ApiServer>> start_supervisor_api(const Parts& parts, const Settings& settings,
                                                        StoreFactory& stores, Health health) {
  if (settings.supervisor_listen.empty()) return nullptr;
  ApiSettings api;
  api.role = ApiRole::supervisor;
  api.listen = settings.supervisor_listen;
  api.tokens_file = settings.api_tokens;
  api.contexts = settings.contexts;
  api.health = std::move(health);
  MJ_TRY(networks, networks_of(settings));
  api.networks = std::move(networks);
  auto server = start_api(stores, parts.clock, std::move(api));
  if (!server) return fail(server.error(), "supervisor.listen");
  return std::move(*server);
}

Result<std::unique_ptr<HealthServer>> start_health_server(const Settings& settings, Health health) {
  if (settings.health_listen.empty()) return nullptr;
  auto server = start_health(settings.health_listen, std::move(health));
  if (!server) return fail(server.error(), "health.listen");
  return std::move(*server);
}

}  // namespace mycojobs
