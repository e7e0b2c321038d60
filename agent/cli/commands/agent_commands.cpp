#include <fmt/format.h>
#include <sysexits.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/server.h"
#include "base/log.h"
#include "base/service_manager.h"
#include "cli/commands/commands.h"
#include "cli/key_files.h"
#include "cli/manifest_files.h"
#include "cli/run_service.h"
#include "cli/service_setup.h"
#include "cli/store_session.h"
#include "cli/terminal.h"
#include "workflows/engine/code_check.h"

namespace mycojobs {
namespace {

// Returns the ceilings in the form that the API and the reload of the configuration share.
LiveValue<Ceilings> share_ceilings(const Settings& settings) {
  return {std::make_shared<const Ceilings>(settings.ceilings)};
}

// Starts the API of a coordinator or of `dev`. anonymous: requests from loopback need no token. Returns null if
// `api.listen` is empty, or if its default address is in use, which is logged.
Result<std::unique_ptr<ApiServer>> start_coordinator_api(const ProgramDependencies& dependencies,
                                                         const Settings& settings, StoreFactory& stores,
                                                         const std::vector<Id>& contexts, bool anonymous, Health health,
                                                         const LiveValue<Ceilings>& ceilings) {
  if (settings.api_listen.empty()) return nullptr;
  ApiSettings api;
  api.listen = settings.api_listen;
  api.tokens_file = settings.api_tokens;
  api.origins = settings.api_names;
  api.anonymous = anonymous;
  MJ_TRY(networks, parse_coordinator_networks(settings));
  api.networks = std::move(networks);
  api.contexts = contexts;
  for (const auto& [context, url] : settings.context_redis) api.own_servers.push_back(context);
  api.max_script_bytes = settings.job_max_script_bytes;
  api.ceilings = ceilings;
  api.wait_replicas = settings.redis_wait_replicas;
  api.health = std::move(health);
  api.metrics = dependencies.metrics;
  MJ_TRY(key, load_coordinator_key(settings));
  if (key) api.coordinator_key = key->public_key();
  api.files = make_message_attachments(settings, dependencies.clock);
  api.check_code = [checker = std::make_shared<workflow::CodeChecker>(make_engine_options(settings))](
                       const WorkflowManifest& manifest) { return checker->check(manifest); };
  auto server = start_api(stores, dependencies.clock, std::move(api));
  if (server) return std::move(*server);
  // A second coordinator on a host may run without an API, because flows do not depend on it.
  if (server.error().code == Code::conflict && !settings.api_listen_chosen) {
    log(LogLevel::warn, "api", "no JSON-RPC here: {}; --api-listen gives another address", server.error().message);
    return nullptr;
  }
  return fail(server.error(), "api.listen");
}

// Starts the API through which an agent accepts jobs of other hosts. Returns null if `supervisor.listen` is empty.
Result<std::unique_ptr<ApiServer>> start_supervisor_api(const ProgramDependencies& dependencies,
                                                        const Settings& settings, StoreFactory& stores, Health health,
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
  api.metrics = dependencies.metrics;
  MJ_TRY(networks, parse_coordinator_networks(settings));
  api.networks = std::move(networks);
  auto server = start_api(stores, dependencies.clock, std::move(api));
  if (!server) return fail(server.error(), "supervisor.listen");
  return std::move(*server);
}

// Servers for health and metrics of a process.
struct StatusServers {
  std::unique_ptr<HealthServer> health, metrics;  // null: the setting is empty, or one server has both
};

// Starts the servers of the settings. refresh_metrics: called before each reply with metrics, by threads of the
// servers.
Result<StatusServers> start_status_servers(const ProgramDependencies& dependencies, const Settings& settings,
                                           const Health& health, std::function<void()> refresh_metrics) {
  StatusServers servers;
  const CountRefusal count_refusal = [metrics = dependencies.metrics](const char* reason) {
    metrics->add(Metric::http_refusals, {reason});
  };
  if (!settings.metrics_listen.empty()) {
    auto text = [refresh = std::move(refresh_metrics), metrics = dependencies.metrics] {
      refresh();
      return metrics->render();
    };
    auto server = start_health(settings.metrics_listen, health, std::move(text), count_refusal);
    if (!server) return fail(server.error(), "metrics.listen");
    servers.metrics = std::move(*server);
  }
  if (settings.health_listen.empty() || settings.health_listen == settings.metrics_listen) return servers;
  auto server = start_health(settings.health_listen, health, nullptr, count_refusal);
  if (!server) return fail(server.error(), "health.listen");
  servers.health = std::move(*server);
  return servers;
}

// Checks the address before anything is started, if possible. Error: the address was configured and is in use.
Result<void> check_api_address(const Settings& settings) {
  if (settings.api_listen.empty()) return {};
  auto availability = check_listen_address(settings.api_listen);
  if (availability || availability.error().code != Code::conflict) return {};
  const std::string text = availability.error().message + " with --api-listen ADDRESS:PORT";
  if (settings.api_listen_chosen) return fail(Code::conflict, "api.listen: " + text);
  print_message("no JSON-RPC and no page here: " + text);
  return {};
}

// Without a configured Redis, agents and coordinators use the default Redis of this host; only `dev` starts its own.
void use_default_redis(Settings& settings) {
  if (!settings.redis.empty()) return;
  settings.redis = "redis://127.0.0.1:6379";
  print_message("no Redis is named: it is " + settings.redis +
                "; --redis URL names another, `mycojobs dev` has its own");
}

std::string describe_runner(const Invocation& call) {
  const Settings& settings = call.settings;
  std::string contexts;
  for (Id id : settings.contexts) contexts += " " + std::to_string(id);
  return fmt::format("runner {} serves context{} with {} slots", settings.runner, contexts,
                     call.dependencies.fit_slots(settings.slots).first);
}

}  // namespace

int agent_command(Invocation& call) {
  use_default_redis(call.settings);
  auto stores = call.dependencies.stores(call.settings, call.settings.redis);
  ProcessLiveness liveness;
  AgentStatus status(*call.dependencies.metrics, liveness);
  const Health health = make_health_queries(status, liveness);
  auto status_servers =
      start_status_servers(call.dependencies, call.settings, health, [&status] { status.refresh_metrics(); });
  if (!status_servers) return print_error(status_servers.error());
  auto agent_result = start_agent(call.dependencies, call.settings, *stores,
                                  [&status](const Error& error) { return status.wait(error); });
  if (!agent_result && status.is_stopped()) return EXIT_SUCCESS;
  if (!agent_result) return print_error(agent_result.error());
  Agent& agent = status.attach_agent(std::move(*agent_result));
  LiveValue<Ceilings> ceilings = share_ceilings(call.settings);
  auto api = start_supervisor_api(call.dependencies, call.settings, *stores, health, ceilings);
  if (!api) return print_error(api.error());
  log(LogLevel::info, "worker", "{}", describe_runner(call));
  Reload reload(call);
  reload.on_reload([&](const Settings& settings) {
    ceilings.replace(std::make_shared<const Ceilings>(settings.ceilings));
    agent.reload(settings.ceilings);
  });
  if (status.is_reload_requested()) reload.reload();
  return serve(agent, describe_runner(call), liveness, reload);
}

int dev_command(Invocation& call) {
  if (!call.settings.redis.empty()) {
    return print_error({Code::invalid, "`mycojobs dev` uses its own Redis: omit --redis, or use `mycojobs agent`"});
  }
  if (auto availability = check_api_address(call.settings); !availability) return print_error(availability.error());
  auto services = open_services(call.dependencies, call.settings, true);
  if (!services) return print_error(services.error());
  if (!services->agent) {
    return print_error({Code::conflict, "another mycojobs has the state folder " + call.settings.state_dir +
                                            ": stop it, or give another --state-dir"});
  }
  log(LogLevel::info, "worker", "{}; Redis at {}", describe_runner(call),
      call.dependencies.embedded_url(call.settings));
  ProcessLiveness liveness;
  const Health health = make_health_queries(*services->agent, liveness);
  LiveValue<Ceilings> ceilings = share_ceilings(call.settings);
  auto api = start_coordinator_api(call.dependencies, call.settings, *services->stores, call.settings.contexts, true,
                                   health, ceilings);
  if (!api) return print_error(api.error());
  auto status_servers = start_status_servers(call.dependencies, call.settings, health,
                                             [&services] { services->agent->refresh_metrics(); });
  if (!status_servers) return print_error(status_servers.error());
  if (*api && (*api)->has_page()) print(fmt::format("the page is at {}/\n", (*api)->url()));
  Reload reload(call);
  reload.on_reload([&](const Settings& settings) {
    ceilings.replace(std::make_shared<const Ceilings>(settings.ceilings));
    services->agent->reload(settings.ceilings);
    services->coordinator->replace_ceilings(settings.ceilings);
  });
  const int code = serve(*services->agent, describe_runner(call), liveness, reload);
  *status_servers = {};
  api->reset();
  services->coordinator.reset();  // must be destroyed before its server
  services->agent.reset();
  return code;
}

// mycojobs coordinator

namespace {

std::string describe_coordinator(const std::vector<Id>& contexts) {
  if (contexts.empty()) return "coordinator of all contexts that are found";
  return fmt::format("coordinator of context {}", fmt::join(contexts, " "));
}

}  // namespace

int coordinator_command(Invocation& call) {
  use_default_redis(call.settings);
  const std::vector<Id> contexts = call.settings.contexts_chosen ? call.settings.contexts : std::vector<Id>();
  auto stores = call.dependencies.stores(call.settings, call.settings.redis);
  auto coordinator = make_coordinator(call.dependencies, call.settings, *stores, contexts);
  if (!coordinator) return print_error(coordinator.error());
  ProcessLiveness liveness;
  const Health health = make_health_queries(**coordinator, liveness);
  LiveValue<Ceilings> ceilings = share_ceilings(call.settings);
  auto api = start_coordinator_api(call.dependencies, call.settings, *stores, contexts, false, health, ceilings);
  if (!api) return print_error(api.error());
  auto status_servers =
      start_status_servers(call.dependencies, call.settings, health, [&coordinator] { (*coordinator)->measure(); });
  if (!status_servers) return print_error(status_servers.error());
  if (auto result = (*coordinator)->start_threads(); !result) return print_error(result.error());
  log(LogLevel::info, "coordinator", "{}", describe_coordinator(contexts));
  Reload reload(call);
  reload.on_reload([&](const Settings& settings) {
    ceilings.replace(std::make_shared<const Ceilings>(settings.ceilings));
    (*coordinator)->replace_ceilings(settings.ceilings);
  });
  serve(**coordinator, describe_coordinator(contexts), liveness, reload);
  return EXIT_SUCCESS;
}

}  // namespace mycojobs
