#include <fmt/format.h>

#include <ctime>
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

// The certificates of the servers of a process; null: plain HTTP.
struct ServerCertificates {
  std::shared_ptr<TlsContext> api, metrics;
};

// Reads the certificates of servers that are started. api_listen: the address of the API, or empty. Errors: those of
// TlsContext::load().
Result<ServerCertificates> load_certificates(const Settings& settings, const std::string& api_listen) {
  ServerCertificates out;
  if (!api_listen.empty()) {
    MJ_TRY(api, load_server_tls(get_api_tls(settings)));
    out.api = std::move(api);
  }
  if (!settings.metrics_listen.empty()) {
    MJ_TRY(metrics, load_server_tls(get_metrics_tls(settings)));
    out.metrics = std::move(metrics);
  }
  return out;
}

// Starts the API of a coordinator or of `dev`. allows_anonymous: requests from loopback need no token. Returns null if
// `api.listen` is empty, or if its default address is in use, which is logged.
Result<std::unique_ptr<api::ApiServer>> start_coordinator_api(const ProgramDependencies& dependencies,
                                                              const Settings& settings, StoreFactory& stores,
                                                              const std::vector<Id>& contexts, bool allows_anonymous,
                                                              Health health, const LiveValue<Ceilings>& ceilings,
                                                              const std::shared_ptr<TlsContext>& tls,
                                                              MessageAttachments files) {
  if (settings.api_listen.empty()) return nullptr;
  ApiSettings api_settings;
  api_settings.listen = settings.api_listen;
  api_settings.allows_plain_http = settings.api_insecure;
  api_settings.tls = tls;
  api_settings.tokens_file = settings.api_tokens;
  api_settings.origins = settings.api_names;
  api_settings.allows_anonymous = allows_anonymous;
  MJ_TRY(networks, parse_coordinator_networks(settings));
  api_settings.networks = std::move(networks);
  MJ_TRY(link_networks, parse_artifact_networks(settings));
  api_settings.link_networks = std::move(link_networks);
  api_settings.contexts = contexts;
  api_settings.state_dir = settings.state_dir;
  MJ_TRY(bucket, make_artifact_bucket(settings));
  api_settings.bucket = std::move(bucket);
  api_settings.artifact_cache_limits = make_artifact_cache_limits(settings);
  api_settings.uploads = make_upload_limits(settings);
  for (const auto& [context, url] : settings.context_redis) api_settings.contexts_with_own_redis.push_back(context);
  api_settings.max_script_bytes = settings.job_max_script_bytes;
  api_settings.ceilings = ceilings;
  api_settings.wait_replicas = settings.redis_wait_replicas;
  api_settings.health = std::move(health);
  api_settings.metrics = dependencies.metrics;
  MJ_TRY(key, load_coordinator_key(settings));
  if (key) api_settings.coordinator_key = key->public_key();
  api_settings.attachments = std::move(files);
  api_settings.check_code = [checker = std::make_shared<workflow::CodeChecker>(make_engine_options(settings))](
                                const WorkflowManifest& manifest) { return checker->check(manifest); };
  auto server = api::ApiServer::start(stores, dependencies.clock, api_settings);
  if (server) return std::move(*server);
  // A second coordinator on a host may run without an API, because flows do not depend on it.
  if (server.error().code == Code::conflict && !settings.api_listen_chosen) {
    log(LogLevel::warn, "api", "no JSON-RPC here: {}; --api-listen gives another address", server.error().message);
    return nullptr;
  }
  return fail(server.error(), "api.listen");
}

// Starts the API through which an agent accepts jobs of other hosts. Returns null if `supervisor.listen` is empty.
Result<std::unique_ptr<api::ApiServer>> start_supervisor_api(const ProgramDependencies& dependencies,
                                                             const Settings& settings, StoreFactory& stores,
                                                             Health health, const LiveValue<Ceilings>& ceilings,
                                                             const std::shared_ptr<TlsContext>& tls) {
  if (settings.supervisor_listen.empty()) return nullptr;
  ApiSettings api_settings;
  api_settings.role = ApiRole::supervisor;
  api_settings.listen = settings.supervisor_listen;
  api_settings.allows_plain_http = settings.api_insecure;
  api_settings.tls = tls;
  api_settings.tokens_file = settings.api_tokens;
  api_settings.contexts = settings.contexts;
  api_settings.max_script_bytes = settings.job_max_script_bytes;
  api_settings.ceilings = ceilings;
  api_settings.health = std::move(health);
  api_settings.metrics = dependencies.metrics;
  MJ_TRY(networks, parse_coordinator_networks(settings));
  api_settings.networks = std::move(networks);
  auto server = api::ApiServer::start(stores, dependencies.clock, api_settings);
  if (!server) return fail(server.error(), "supervisor.listen");
  return std::move(*server);
}

// The servers for health and metrics of a process. A server is null if its setting is empty. If both settings have the
// same address, `metrics` serves both.
struct StatusServers {
  std::unique_ptr<api::HttpServer> health, metrics;
};

// tls: null if the listener has no TLS.
void set_certificate_gauge(Metrics& metrics, const char* listener, const std::shared_ptr<TlsContext>& tls) {
  constexpr double kDayS = 86400;
  const auto expiry_s = tls ? tls->load_own_expiry_s() : Result<std::int64_t>(0);
  if (!expiry_s || *expiry_s == 0) return;
  metrics.set(Metric::api_certificate_expiry, {listener}, static_cast<double>(*expiry_s - std::time(nullptr)) / kDayS);
}

// Starts the servers of the settings. refresh_metrics: called before each reply with metrics, by threads of the
// servers.
Result<StatusServers> start_status_servers(const ProgramDependencies& dependencies, const Settings& settings,
                                           const Health& health, const ServerCertificates& certificates,
                                           std::function<void()> refresh_metrics) {
  StatusServers servers;
  const CountRefusal count_refusal = [metrics = dependencies.metrics](const char* reason) {
    metrics->add(Metric::http_refusals, {reason});
  };
  if (!settings.metrics_listen.empty()) {
    auto render_metrics = [refresh = std::move(refresh_metrics), metrics = dependencies.metrics, certificates] {
      refresh();
      set_certificate_gauge(*metrics, "api", certificates.api);
      set_certificate_gauge(*metrics, "metrics", certificates.metrics);
      return metrics->render();
    };
    auto server = api::start_health_server(settings.metrics_listen, health, std::move(render_metrics), count_refusal,
                                           certificates.metrics);
    if (!server) return fail(server.error(), "metrics.listen");
    servers.metrics = std::move(*server);
  }
  if (settings.health_listen.empty() || settings.health_listen == settings.metrics_listen) return servers;
  auto server = api::start_health_server(settings.health_listen, health, nullptr, count_refusal);
  if (!server) return fail(server.error(), "health.listen");
  servers.health = std::move(*server);
  return servers;
}

// Checks whether the address of the API is free, before other parts are started. If the default address is in use,
// prints a message. Error `conflict`: the address was configured and is in use.
Result<void> check_api_address(const Settings& settings) {
  if (settings.api_listen.empty()) return {};
  auto availability = api::check_listen_address(settings.api_listen);
  if (availability || availability.error().code != Code::conflict) return {};
  const std::string advice = availability.error().message + " with --api-listen ADDRESS:PORT";
  if (settings.api_listen_chosen) return fail(Code::conflict, "api.listen: " + advice);
  print_message("no JSON-RPC and no page here: " + advice);
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

Result<int> agent_command(Invocation& call) {
  use_default_redis(call.settings);
  auto stores = call.dependencies.make_stores(call.settings, call.settings.redis);
  ProcessLiveness liveness;
  AgentStatus status(*call.dependencies.metrics, liveness);
  const Health health = make_health_queries(status, liveness);
  MJ_TRY(certificates, load_certificates(call.settings, call.settings.supervisor_listen));
  auto status_servers = start_status_servers(call.dependencies, call.settings, health, certificates,
                                             [&status] { status.refresh_metrics(); });
  if (!status_servers) return tl::unexpected<Error>(std::move(status_servers).error());
  MJ_TRY(file_server, start_file_server(call.dependencies, call.settings));
  auto started_agent = start_agent(
      call.dependencies, call.settings, *stores, [&status](const Error& error) { return status.wait(error); },
      file_server.links);
  if (!started_agent && status.is_stopped()) return EXIT_SUCCESS;
  if (!started_agent) return tl::unexpected<Error>(std::move(started_agent).error());
  Agent& agent = status.attach_agent(std::move(*started_agent));
  LiveValue<Ceilings> ceilings = share_ceilings(call.settings);
  auto api = start_supervisor_api(call.dependencies, call.settings, *stores, health, ceilings, certificates.api);
  if (!api) return tl::unexpected<Error>(std::move(api).error());
  log(LogLevel::info, "worker", "{}", describe_runner(call));
  Reload reload(call);
  reload.on_reload([&](const Settings& settings) {
    ceilings.replace(std::make_shared<const Ceilings>(settings.ceilings));
    agent.reload(settings.ceilings);
  });
  if (status.is_reload_requested()) reload.reload();
  return serve(agent, describe_runner(call), liveness, reload);
}

Result<int> dev_command(Invocation& call) {
  if (!call.settings.redis.empty()) {
    return fail(Code::invalid, "`mycojobs dev` uses its own Redis: omit --redis, or use `mycojobs agent`");
  }
  MJ_CHECK(check_api_address(call.settings));
  MJ_TRY(certificates, load_certificates(call.settings, call.settings.api_listen));
  MJ_TRY(services, open_services(call.dependencies, call.settings, true));
  if (!services.agent) {
    return fail(Code::conflict, "another mycojobs has the state folder " + call.settings.state_dir +
                                    ": stop it, or give another --state-dir");
  }
  log(LogLevel::info, "worker", "{}; Redis at {}", describe_runner(call), EmbeddedRedis::url(call.settings.state_dir));
  ProcessLiveness liveness;
  const Health health = make_health_queries(*services.agent, liveness);
  LiveValue<Ceilings> ceilings = share_ceilings(call.settings);
  MJ_TRY(api, start_coordinator_api(call.dependencies, call.settings, *services.stores, call.settings.contexts, true,
                                    health, ceilings, certificates.api, services.files));
  auto status_servers = start_status_servers(call.dependencies, call.settings, health, certificates,
                                             [&services] { services.agent->refresh_metrics(); });
  if (!status_servers) return tl::unexpected<Error>(std::move(status_servers).error());
  if (api && api->has_page()) print(fmt::format("the page is at {}/\n", api->url()));
  Reload reload(call);
  reload.on_reload([&](const Settings& settings) {
    ceilings.replace(std::make_shared<const Ceilings>(settings.ceilings));
    services.agent->reload(settings.ceilings);
    services.coordinator->replace_ceilings(settings.ceilings);
  });
  const int code = serve(*services.agent, describe_runner(call), liveness, reload);
  *status_servers = {};
  api.reset();
  services.coordinator.reset();  // must be destroyed before its server
  services.agent.reset();
  return code;
}

// mycojobs coordinator

namespace {

std::string describe_coordinator(const std::vector<Id>& contexts) {
  if (contexts.empty()) return "coordinator of all contexts that are found";
  return fmt::format("coordinator of context {}", fmt::join(contexts, " "));
}

}  // namespace

Result<int> coordinator_command(Invocation& call) {
  use_default_redis(call.settings);
  const std::vector<Id> contexts = call.settings.contexts_chosen ? call.settings.contexts : std::vector<Id>();
  MJ_TRY(certificates, load_certificates(call.settings, call.settings.api_listen));
  auto stores = call.dependencies.make_stores(call.settings, call.settings.redis);
  MJ_TRY(bucket, make_artifact_bucket(call.settings));
  MJ_TRY(files,
         make_message_attachments(call.settings, call.dependencies.clock, *stores, call.dependencies.metrics, bucket));
  MJ_TRY(file_server, start_file_server(call.dependencies, call.settings));
  MJ_TRY(coordinator, make_coordinator(call.dependencies, call.settings, *stores, contexts, files, file_server.links));
  ProcessLiveness liveness;
  const Health health = make_health_queries(*coordinator, liveness);
  LiveValue<Ceilings> ceilings = share_ceilings(call.settings);
  auto api = start_coordinator_api(call.dependencies, call.settings, *stores, contexts, false, health, ceilings,
                                   certificates.api, files);
  if (!api) return tl::unexpected<Error>(std::move(api).error());
  auto status_servers = start_status_servers(call.dependencies, call.settings, health, certificates,
                                             [&coordinator] { coordinator->measure(); });
  if (!status_servers) return tl::unexpected<Error>(std::move(status_servers).error());
  MJ_CHECK(coordinator->start_threads());
  log(LogLevel::info, "coordinator", "{}", describe_coordinator(contexts));
  Reload reload(call);
  reload.on_reload([&](const Settings& settings) {
    ceilings.replace(std::make_shared<const Ceilings>(settings.ceilings));
    coordinator->replace_ceilings(settings.ceilings);
  });
  serve(*coordinator, describe_coordinator(contexts), liveness, reload);
  return EXIT_SUCCESS;
}

}  // namespace mycojobs
