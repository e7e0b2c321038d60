#include <fmt/format.h>
#include <sysexits.h>

#include <memory>
#include <string>
#include <vector>

#include "api/server.h"
#include "base/log.h"
#include "base/service_manager.h"
#include "cli/commands/command_table.h"
#include "cli/manifest_files.h"
#include "cli/run_service.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "workflows/engine/code_check.h"

namespace mycojobs {
namespace {

// Shared by the API and by the reload of the configuration.
LiveValue<Ceilings> ceilings_of(const Settings& settings) {
  return {std::make_shared<const Ceilings>(settings.ceilings)};
}

// APIs of a coordinator, `dev` or an agent.

Result<Networks> networks_of(const Settings& settings) {
  auto networks = Networks::parse(settings.coordinator_networks);
  if (!networks) return fail(networks.error(), "coordinator.networks");
  return networks;
}

// anonymous: requests from loopback need no token. Returns null if `api.listen` is empty, or if its default address is
// in use, which is logged.
Result<std::unique_ptr<ApiServer>> start_coordinator_api(const ProgramDependencies& parts, const Settings& settings,
                                                         StoreFactory& stores, const std::vector<Id>& contexts,
                                                         bool anonymous, Health health,
                                                         const LiveValue<Ceilings>& ceilings) {
  if (settings.api_listen.empty()) return nullptr;
  ApiSettings api;
  api.listen = settings.api_listen;
  api.tokens_file = settings.api_tokens;
  api.names = settings.api_names;
  api.anonymous = anonymous;
  MJ_TRY(networks, networks_of(settings));
  api.networks = std::move(networks);
  api.contexts = contexts;
  for (const auto& own : settings.context_redis) api.own_servers.push_back(own.first);
  api.max_script_bytes = settings.job_max_script_bytes;
  api.ceilings = ceilings;
  api.wait_replicas = settings.redis_wait_replicas;
  api.health = std::move(health);
  api.metrics = parts.metrics;
  MJ_TRY(key, coordinator_key(settings));
  if (key) api.coordinator_key = key->public_key();
  api.files = carried_files(settings, parts.clock);
  api.check_code = [look = std::make_shared<workflow::CodeChecker>(engine_options(settings))](
                       const WorkflowManifest& of) { return look->check(of); };
  auto server = start_api(stores, parts.clock, std::move(api));
  if (server) return std::move(*server);
  // A second coordinator on a host may run without an API, because flows do not depend on it.
  if (server.error().code == Code::conflict && !settings.api_listen_chosen) {
    log(LogLevel::warn, "api", "no JSON-RPC here: {}; --api-listen gives another address", server.error().message);
    return nullptr;
  }
  return fail(server.error(), "api.listen");
}

// Returns null if `supervisor.listen` is empty.
Result<std::unique_ptr<ApiServer>> start_supervisor_api(const ProgramDependencies& parts, const Settings& settings,
                                                        StoreFactory& stores, Health health,
                                                        const LiveValue<Ceilings>& ceilings) {
  if (settings.supervisor_listen.empty()) return nullptr;
  ApiSettings api;
  api.role = ApiRole::supervisor;
  api.listen = settings.supervisor_listen;
  api.tokens_file = settings.api_tokens;
  api.contexts = settings.contexts;
  api.max_script_bytes = settings.job_max_script_bytes;
  api.ceilings = ceilings;
  api.health = std::move(health);
  api.metrics = parts.metrics;
  MJ_TRY(networks, networks_of(settings));
  api.networks = std::move(networks);
  auto server = start_api(stores, parts.clock, std::move(api));
  if (!server) return fail(server.error(), "supervisor.listen");
  return std::move(*server);
}

// Servers for health and metrics of a process.
struct StatusServers {
  std::unique_ptr<HealthServer> health, metrics;  // null: the setting is empty, or one server has both
};

// `measured`, which is updated before each reply, must outlive the servers.
template <class Measured>
Result<StatusServers> start_own_servers(const ProgramDependencies& parts, const Settings& settings,
                                        const Health& health, Measured& measured) {
  StatusServers own;
  const CountRefusal refused = [metrics = parts.metrics](const char* why) {
    metrics->add(Metric::http_refused, {why});
  };
  if (!settings.metrics_listen.empty()) {
    auto text = [&measured, metrics = parts.metrics] {
      measured.measure();
      return metrics->text();
    };
    auto server = start_health(settings.metrics_listen, health, std::move(text), refused);
    if (!server) return fail(server.error(), "metrics.listen");
    own.metrics = std::move(*server);
  }
  if (settings.health_listen.empty() || settings.health_listen == settings.metrics_listen) return own;
  auto server = start_health(settings.health_listen, health, nullptr, refused);
  if (!server) return fail(server.error(), "health.listen");
  own.health = std::move(*server);
  return own;
}

// Checks the address before anything is started, if possible. Error: the address was configured and is in use.
Result<void> check_api_address(const Settings& settings) {
  if (settings.api_listen.empty()) return {};
  auto free = may_listen(settings.api_listen);
  if (free || free.error().code != Code::conflict) return {};
  const std::string text = free.error().message + " with --api-listen ADDRESS:PORT";
  if (settings.api_listen_chosen) return fail(Code::conflict, "api.listen: " + text);
  print_message("no JSON-RPC and no page here: " + text);
  return {};
}

// Without a configured Redis, agents and coordinators use the default Redis of this host; only `dev` starts its own.
void name_redis(Settings& settings) {
  if (!settings.redis.empty()) return;
  settings.redis = "redis://127.0.0.1:6379";
  print_message("no Redis is named: it is " + settings.redis +
                "; --redis URL names another, `mycojobs dev` has its own");
}

std::string describe(const Invocation& call) {
  const Settings& settings = call.settings;
  std::string contexts;
  for (Id id : settings.contexts) contexts += " " + std::to_string(id);
  return fmt::format("runner {} serves context{} with {} slots", settings.runner, contexts,
                     call.parts.fit_slots(settings.slots).first);
}

}  // namespace

int agent_command(Invocation& call) {
  name_redis(call.settings);
  auto stores = call.parts.stores(call.settings, call.settings.redis);
  ProcessLiveness vitals;
  AgentStatus place(*call.parts.metrics, vitals);
  const Health health = health_of(place, vitals);
  auto own = start_own_servers(call.parts, call.settings, health, place);
  if (!own) return print_error(own.error());
  auto started =
      start_agent(call.parts, call.settings, *stores, [&place](const Error& why) { return place.wait(why); });
  if (!started && place.stopped()) return EXIT_SUCCESS;
  if (!started) return print_error(started.error());
  Agent& agent = place.attach_agent(std::move(*started));
  LiveValue<Ceilings> ceilings = ceilings_of(call.settings);
  auto api = start_supervisor_api(call.parts, call.settings, *stores, health, ceilings);
  if (!api) return print_error(api.error());
  log(LogLevel::info, "worker", "{}", describe(call));
  Reload reload(call);
  reload.on_reload([&](const Settings& settings) {
    ceilings.replace(std::make_shared<const Ceilings>(settings.ceilings));
    agent.reload(settings.ceilings);
  });
  if (place.is_reload_requested()) reload.reload();
  return serve(agent, describe(call), vitals, reload);
}

int dev_command(Invocation& call) {
  if (!call.settings.redis.empty()) {
    return print_error({Code::invalid, "`mycojobs dev` uses its own Redis: omit --redis, or use `mycojobs agent`"});
  }
  if (auto free = check_api_address(call.settings); !free) return print_error(free.error());
  auto session = open_session(call.parts, call.settings, true);
  if (!session) return print_error(session.error());
  if (!session->agent) {
    return print_error({Code::conflict, "another mycojobs has the state folder " + call.settings.state_dir +
                                            ": stop it, or give another --state-dir"});
  }
  log(LogLevel::info, "worker", "{}; Redis at {}", describe(call), call.parts.embedded_url(call.settings));
  ProcessLiveness vitals;
  const Health health = health_of(*session->agent, vitals);
  LiveValue<Ceilings> ceilings = ceilings_of(call.settings);
  auto api = start_coordinator_api(call.parts, call.settings, *session->stores, call.settings.contexts, true, health,
                                   ceilings);
  if (!api) return print_error(api.error());
  auto own = start_own_servers(call.parts, call.settings, health, *session->agent);
  if (!own) return print_error(own.error());
  if (*api && (*api)->has_page()) print(fmt::format("the page is at {}/\n", (*api)->url()));
  Reload reload(call);
  reload.on_reload([&](const Settings& settings) {
    ceilings.replace(std::make_shared<const Ceilings>(settings.ceilings));
    session->agent->reload(settings.ceilings);
    session->coordinator->replace_ceilings(settings.ceilings);
  });
  const int code = serve(*session->agent, describe(call), vitals, reload);
  *own = {};
  api->reset();
  session->coordinator.reset();  // must be destroyed before its server
  session->agent.reset();
  return code;
}

// mycojobs coordinator

namespace {

std::string describe(const std::vector<Id>& contexts) {
  if (contexts.empty()) return "coordinator of all contexts that are found";
  return fmt::format("coordinator of context {}", fmt::join(contexts, " "));
}

}  // namespace

int coordinator_command(Invocation& call) {
  name_redis(call.settings);
  const std::vector<Id> contexts = call.settings.contexts_chosen ? call.settings.contexts : std::vector<Id>();
  auto stores = call.parts.stores(call.settings, call.settings.redis);
  auto coordinator = make_coordinator(call.parts, call.settings, *stores, contexts);
  if (!coordinator) return print_error(coordinator.error());
  ProcessLiveness vitals;
  const Health health = health_of(**coordinator, vitals);
  LiveValue<Ceilings> ceilings = ceilings_of(call.settings);
  auto api = start_coordinator_api(call.parts, call.settings, *stores, contexts, false, health, ceilings);
  if (!api) return print_error(api.error());
  auto own = start_own_servers(call.parts, call.settings, health, **coordinator);
  if (!own) return print_error(own.error());
  if (auto begun = (*coordinator)->begin(); !begun) return print_error(begun.error());
  log(LogLevel::info, "coordinator", "{}", describe(contexts));
  Reload reload(call);
  reload.on_reload([&](const Settings& settings) {
    ceilings.replace(std::make_shared<const Ceilings>(settings.ceilings));
    (*coordinator)->replace_ceilings(settings.ceilings);
  });
  serve(**coordinator, describe(contexts), vitals, reload);
  return EXIT_SUCCESS;
}

}  // namespace mycojobs
