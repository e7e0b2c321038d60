#include "cli/service_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <map>
#include <set>

#include "api/http/socket.h"
#include "api/server.h"
#include "artifacts/local_artifact_store.h"
#include "base/log.h"
#include "base/thread.h"
#include "cli/key_files.h"
#include "inspect/doctor.h"
#include "model/prerequisite.h"
#include "net/tls_files.h"
#include "net/tls_identity.h"
#include "net/web_address.h"
#include "net/webhook.h"
#include "service/record_service.h"
#include "store/redis/format_version.h"
#include "store/redis/redis_connection.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

// Returns the executors that work on this host.
Result<std::vector<std::unique_ptr<Executor>>> find_working_executors(const ProgramDependencies& dependencies,
                                                                      const Settings& settings) {
  if (settings.job_default_timeout_ms % 1000 != 0)
    return fail(Code::invalid, "job.default_timeout: is not a whole number of seconds: give 1s or more");
  std::vector<std::unique_ptr<Executor>> executors;
  std::string reasons;
  for (auto& executor : dependencies.make_executors(settings)) {
    auto probe = executor->probe();
    if (probe) {
      log(LogLevel::info, "worker", "executor {}: {}", executor->name(), *probe);
      executors.push_back(std::move(executor));
    } else {
      const LogLevel level = probe.error().code == Code::not_found ? LogLevel::info : LogLevel::warn;
      log(level, "worker", "executor {} does not work here: {}", executor->name(), probe.error().message);
      reasons += (reasons.empty() ? "" : "; ") + std::string(executor->name()) + ": " + probe.error().message;
    }
  }
  for (const std::string& type : settings.script_types) {
    const bool is_served = std::any_of(executors.begin(), executors.end(), [&](const auto& executor) {
      const auto types = executor->script_types();
      return std::find(types.begin(), types.end(), type) != types.end();
    });
    if (!is_served) return fail(Code::invalid, "script_types: no executor of this host runs \"" + type + "\"");
  }
  if (executors.empty()) return fail(Code::unsupported, "no executor works on this host: " + reasons);
  return executors;
}

// Returns the numbers of the servers of contexts with a URL of their own (WorkerSettings::servers). Contexts on the
// same server can have different users and databases.
std::map<Id, std::size_t> number_servers(const StoreFactory& stores, const Settings& settings) {
  std::map<std::string, std::size_t> numbers{{stores.server_name(0), 0}};
  std::map<Id, std::size_t> servers;
  for (const auto& [context, url] : settings.context_redis)
    servers[context] = numbers.try_emplace(stores.server_name(context), numbers.size()).first->second;
  return servers;
}

Retention make_retention(const Settings& settings) {
  return {settings.retention_ms, settings.retention_failed_ms, settings.retention_flows_ms};
}

WorkerSettings make_worker_settings(const Settings& settings, const ProgramDependencies& dependencies) {
  WorkerSettings worker;
  worker.runner.id = settings.runner;
  worker.runner.local = settings.local;
  worker.runner.topic = settings.topic;
  worker.runner.actor_id = settings.runner_actor;
  worker.claims_as_actor = !settings.redis.empty();  // an embedded Redis belongs to this operator
  worker.contexts = settings.contexts;
  for (const auto& [context, python] : settings.context_python) {
    if (!python.venv.empty()) worker.folder_contexts.insert(context);
  }
  worker.slots = settings.slots;
  worker.script_types = settings.script_types;
  worker.lease_ms = settings.lease_ms;
  worker.grace_ms = settings.grace_ms;
  worker.default_timeout_s = settings.job_default_timeout_ms / 1000;
  worker.max_script_bytes = settings.job_max_script_bytes;
  worker.max_result_bytes = settings.job_max_result_bytes;
  worker.max_artifact_bytes = settings.job_max_artifact_bytes;
  worker.output_rate = settings.job_output_rate_bytes;
  worker.frame_rate = settings.job_frame_rate;
  worker.caller_artifact_bytes = settings.quota_caller_artifact_bytes;
  worker.context_artifact_bytes = settings.quota_context_artifact_bytes;
  worker.holder_timeout_ms = settings.artifacts_holder_timeout_ms;
  worker.store_timeout_ms = settings.artifacts_store_timeout_ms;
  worker.transfer_rate = settings.artifacts_transfer_rate_bytes;
  worker.cache_bytes = settings.artifacts_cache_bytes;
  worker.cache_age_ms = settings.artifacts_cache_age_ms;
  worker.max_deliveries = settings.job_max_deliveries;
  worker.defaults = make_operator_defaults(settings);
  worker.ceilings = settings.ceilings;
  worker.files = settings.context_files;
  worker.retry = {settings.retry_min_ms, settings.retry_max_ms};
  worker.kill_on_lease_lost = settings.on_lease_lost == LeaseLostAction::kill;
  worker.retention = make_retention(settings);
  worker.retention_count = settings.retention_count;
  worker.allowed_prerequisites = settings.prerequisites_allow;
  worker.prerequisites_timeout_ms = settings.prerequisites_timeout_ms;
  worker.secrets = get_secret_sources(settings);
  worker.state_dir = settings.state_dir;
  worker.metrics = dependencies.metrics;
  worker.traces = dependencies.traces;
  return worker;
}

// Opens the databases of the contexts, those of several servers in parallel. Returns an error for each database that
// belongs to another context or has another format. A server that does not answer is no error here.
Result<std::map<Id, Error>> find_rejected_databases(StoreFactory& stores, const std::vector<Id>& contexts) {
  std::map<std::string, std::vector<Id>> contexts_by_server;
  for (const Id context : contexts) contexts_by_server[stores.server_name(context)].push_back(context);
  std::vector<std::future<Result<std::map<Id, Error>>>> checks;
  checks.reserve(contexts_by_server.size());
  for (const auto& entry : contexts_by_server) {
    checks.push_back(run_in_parallel([&stores, &server_contexts = entry.second]() -> Result<std::map<Id, Error>> {
      MJ_TRY(store, stores.open_reader());
      std::map<Id, Error> rejected;
      for (const Id context : server_contexts) {
        const auto revision = store->context_revision(context);
        if (!revision && is_rejected_database_error(revision.error())) rejected[context] = revision.error();
        if (!revision && revision.error().code == Code::unavailable) break;
      }
      return rejected;
    }));
  }
  std::vector<Result<std::map<Id, Error>>> results;
  results.reserve(checks.size());
  for (auto& check : checks) results.push_back(check.get());
  std::map<Id, Error> all_rejected;
  for (Result<std::map<Id, Error>>& result : results) {
    if (!result) return result;
    all_rejected.merge(*result);
  }
  return all_rejected;
}

// Logs each database that cannot be used, since a tenant must not end the program for the others. Returns an error if
// no database can be used.
Result<std::map<Id, Error>> check_databases(StoreFactory& stores, const std::vector<Id>& contexts) {
  MJ_TRY(rejected, find_rejected_databases(stores, contexts));
  if (!contexts.empty() &&
      std::all_of(contexts.begin(), contexts.end(), [&](Id context) { return rejected.contains(context); }))
    return tl::unexpected<Error>(rejected.at(contexts.front()));
  for (const auto& [context, error] : rejected)
    log(LogLevel::error, "store", "{} (the other contexts are served; retrying)", error.message);
  return std::move(rejected);
}

// Gives each of these contexts a server number of its own, so that the agent retries it without delaying the contexts
// of the same server.
void separate_contexts(const std::map<Id, Error>& contexts, std::map<Id, std::size_t>& servers) {
  std::size_t next_number = 1;
  for (const auto& [context, number] : servers) next_number = std::max(next_number, number + 1);
  for (const auto& [context, error] : contexts) servers[context] = next_number++;
}

// Logs the settings of a server that can cause the loss of jobs.
void log_server_warnings(const std::string& server, const Result<std::unique_ptr<Store>>& store) {
  if (!store) return;
  const auto server_info = (*store)->server_info();
  if (!server_info) return;
  for (const Check& check : diagnose_server(*server_info, 0, 0)) {
    const bool is_known = check.name == "maxmemory-policy"
                              ? !server_info->maxmemory_policy.empty()
                              : check.name == "appendonly" && !server_info->appendonly.empty();
    if (is_known && check.status != CheckStatus::ok)
      log(LogLevel::warn, "store", "{}: {} is {}; remedy: {}", server, check.name, check.detail, check.remedy);
  }
}

// Checks each server once. The checks run in parallel, so that several servers that do not answer delay the start no
// longer than one.
void log_warnings_of_all_servers(const ProgramDependencies& dependencies, const Settings& settings,
                                 StoreFactory& stores) {
  const auto& dedicated_servers = settings.context_redis;
  const bool uses_default_server =
      settings.contexts.empty() || std::any_of(settings.contexts.begin(), settings.contexts.end(),
                                               [&](Id context) { return !dedicated_servers.contains(context); });
  std::vector<std::future<void>> checks;
  checks.reserve(dedicated_servers.size());
  for (const auto& entry : dedicated_servers) {
    checks.push_back(run_in_parallel([&dependencies, &settings, &entry] {
      const Settings server_settings = select_context_server(settings, entry.first);
      log_server_warnings("Redis of context " + std::to_string(entry.first),
                          dependencies.make_stores(server_settings, entry.second)->open());
    }));
  }
  if (uses_default_server) log_server_warnings("Redis", stores.open());
  for (const auto& check : checks) check.wait();
}

}  // namespace

void log_insecure_redis(const Settings& settings) {
  const auto log_server = [&](const std::string& url, Id context) {
    const auto endpoint = parse_redis_url(url);
    const TlsSettings tls = get_redis_tls(settings, context);
    if (!endpoint || !endpoint->is_tls || !tls.insecure) return;
    log(LogLevel::warn, "store",
        "{}.insecure: the certificate of Redis at {} is not verified, so that an attacker in the network can read and "
        "change all data",
        tls.table, endpoint->redacted_url());
  };
  log_server(settings.redis, 0);
  for (const auto& [context, url] : settings.context_redis) log_server(url, context);
}

Settings select_context_server(const Settings& settings, Id context) {
  Settings out = settings;
  out.context_redis = {{Id{0}, settings.context_redis.at(context)}};
  out.context_redis_tls = {{Id{0}, get_redis_tls(settings, context)}};
  return out;
}

SentinelSettings get_sentinel_settings(const Settings& settings) {
  return {settings.redis_sentinel_user, settings.redis_sentinel_password_file};
}

SecretSources get_secret_sources(const Settings& settings) {
  const char* credentials = std::getenv("CREDENTIALS_DIRECTORY");
  return {settings.secrets_dir, credentials == nullptr ? "" : credentials, settings.secrets_redacted};
}

Result<std::shared_ptr<TlsContext>> load_server_tls(const TlsSettings& settings) {
  if (!has_certificate(settings)) return nullptr;
  auto tls = std::make_shared<TlsContext>(settings, TlsRole::server);
  MJ_CHECK(tls->load());
  return tls;
}

Result<Networks> parse_coordinator_networks(const Settings& settings) {
  auto networks = Networks::parse(settings.coordinator_networks);
  if (!networks) return fail(networks.error(), "coordinator.networks");
  return networks;
}

Result<std::shared_ptr<const Networks>> parse_artifact_networks(const Settings& settings) {
  auto networks = Networks::parse(settings.artifacts_networks);
  if (!networks) return fail(networks.error(), "artifacts.networks");
  return std::make_shared<const Networks>(std::move(*networks));
}

Result<FileServer> start_file_server(const ProgramDependencies& dependencies, const Settings& settings) {
  if (settings.artifacts_listen.empty()) return FileServer();
  const TlsSettings tls = get_artifacts_tls(settings);
  if (settings.artifacts_tls_cert.empty() && settings.artifacts_tls_key.empty()) {
    if (settings.state_dir.empty())
      return fail(Code::invalid, "artifacts.listen: needs a state_dir, or artifacts.tls.cert and artifacts.tls.key");
    std::error_code error;  // reported by create_tls_identity()
    std::filesystem::create_directories(settings.state_dir, error);
    if (auto created = create_tls_identity(tls.certificate); !created)
      return fail(std::move(created).error(), "artifacts.listen");
  }
  FileServer server{std::make_shared<HeldFileLinks>(dependencies.clock), nullptr};
  auto listener = api::FileListener::start(
      {settings.artifacts_listen, settings.artifacts_advertise, tls, settings.artifacts_transfer_rate_bytes},
      server.links, dependencies.clock, dependencies.metrics);
  if (!listener) {
    const bool names_setting = listener.error().message.starts_with("artifacts.");
    return names_setting ? tl::unexpected<Error>(std::move(listener).error())
                         : fail(std::move(listener).error(), "artifacts.listen");
  }
  server.listener = std::move(*listener);
  return server;
}

Result<void> check_trace_endpoint(const std::string& url) {
  if (url.empty() || url.starts_with("http://") || url.starts_with("https://")) return {};
  return fail(Code::invalid,
              excerpt(url, 200) + " is not an address: give a URL such as http://127.0.0.1:4318/v1/traces");
}

namespace {

// Adds the error of a table of TLS settings under the name of the setting, with which its message begins.
void add_tls_error(std::vector<RejectedSetting>& rejected, Error error) {
  const auto name_end = error.message.find(": ");
  if (name_end == std::string::npos) return rejected.push_back({"https", std::move(error)});
  std::string name = error.message.substr(0, name_end);
  error.message.erase(0, name_end + 2);
  rejected.push_back({std::move(name), std::move(error)});
}

std::vector<RejectedSetting> find_rejected_https_settings(const Settings& settings) {
  std::vector<RejectedSetting> rejected;
  std::vector<TlsSettings> servers{get_api_tls(settings), get_metrics_tls(settings)};
  if (!settings.artifacts_tls_cert.empty() || !settings.artifacts_tls_key.empty())
    servers.push_back(get_artifacts_tls(settings));
  for (const TlsSettings& tls : servers) {
    if (auto loaded = load_server_tls(tls); !loaded) add_tls_error(rejected, std::move(loaded).error());
  }
  if (is_folder(settings.https_ca)) {  // libcurl reads a file only
    rejected.push_back({"https.ca", Error{Code::invalid, settings.https_ca + " is a folder: give a file"}});
  } else if (!settings.https_ca.empty()) {
    TlsSettings client_settings;
    client_settings.table = "https";
    client_settings.ca = settings.https_ca;
    if (auto loaded = TlsContext(client_settings).load(); !loaded) add_tls_error(rejected, std::move(loaded).error());
  }
  if (has_certificate(get_api_tls(settings)) || settings.api_insecure) return rejected;
  const std::pair<const char*, const std::string&> addresses[] = {{"api.listen", settings.api_listen},
                                                                  {"supervisor.listen", settings.supervisor_listen}};
  for (const auto& [name, text] : addresses) {
    const auto address = api::parse_listen(text);
    if (text.empty() || !address) continue;
    if (auto allowed = api::check_plain_http(*address, text); !allowed)
      rejected.push_back({name, std::move(allowed).error()});
  }
  return rejected;
}

// Returns the server and database of a context, without user and password. No value: the address is invalid.
std::optional<RedisEndpoint> find_database(const Settings& settings, Id context) {
  const auto endpoint = find_context_endpoint(settings.redis, settings.context_redis, context);
  if (!endpoint) return std::nullopt;
  RedisEndpoint database = endpoint->server();
  database.database = endpoint->database;
  return database;
}

// Returns an error if another configured context has the same address and database, or the context has database 0 of a
// server with other contexts. Addresses that only look different are detected by the id in the database, when the
// second context opens it.
Result<void> check_own_database(const Settings& settings, Id context) {
  const auto own_database = find_database(settings, context);
  if (!own_database) return {};
  std::set<Id> others;
  if (settings.contexts_chosen || own_database->database != 0U)
    others.insert(settings.contexts.begin(), settings.contexts.end());
  for (const auto& entry : settings.context_redis) others.insert(entry.first);
  others.erase(context);
  for (const Id other : others) {
    auto database = find_database(settings, other);
    if (database == own_database) {
      return fail(
          Code::invalid,
          fmt::format("names database {} of Redis at {}, which is that of context {}: a database holds one context",
                      *own_database->database, own_database->redacted_url(), other));
    }
    if (!database || own_database->database != 0U) continue;
    database->database = 0;
    if (database == own_database) {
      return fail(Code::invalid,
                  fmt::format("names database 0 of Redis at {}, on which context {} has another database: each Redis "
                              "user begins in database 0, so give one of them another server",
                              own_database->redacted_url(), other));
    }
  }
  return {};
}

Result<void> check_own_databases(const Settings& settings) {
  for (const auto& [context, url] : settings.context_redis) {
    if (auto checked = check_own_database(settings, context); !checked)
      return fail(std::move(checked).error(), fmt::format("contexts.{}.redis", context));
  }
  return {};
}

}  // namespace

std::vector<RejectedSetting> find_rejected_settings(Settings& settings) {
  std::vector<RejectedSetting> rejected;
  const auto check_setting = [&rejected](std::string name, auto result) {
    if (!result) rejected.push_back({std::move(name), std::move(result).error()});
  };
  const auto check_redis_address = [&](const std::string& name, const std::string& url, Id context) {
    const auto endpoint = context == 0 ? parse_shared_redis_url(url) : parse_redis_url(url);
    check_setting(name, endpoint);
    if (endpoint && endpoint->is_tls) check_setting(name, TlsContext(get_redis_tls(settings, context)).load());
    if (endpoint && endpoint->uses_sentinels())
      check_setting(name, check_sentinel_settings(get_sentinel_settings(settings)));
  };
  if (!settings.redis.empty()) check_redis_address("redis", settings.redis, 0);
  for (const auto& [context, url] : settings.context_redis) {
    check_redis_address(fmt::format("contexts.{}.redis", context), url, context);
    check_setting(fmt::format("contexts.{}.redis", context), check_own_database(settings, context));
  }
  const std::pair<const char*, const std::string&> addresses[] = {{"api.listen", settings.api_listen},
                                                                  {"supervisor.listen", settings.supervisor_listen},
                                                                  {"health.listen", settings.health_listen},
                                                                  {"artifacts.listen", settings.artifacts_listen},
                                                                  {"metrics.listen", settings.metrics_listen}};
  for (const auto& [name, address] : addresses) {
    if (!address.empty()) check_setting(name, api::parse_listen(address));
  }
  for (RejectedSetting& setting : find_rejected_https_settings(settings)) rejected.push_back(std::move(setting));
  check_setting("trace.endpoint", check_trace_endpoint(settings.trace_endpoint));
  check_setting("topic", service::check_topic(settings.topic));
  check_setting("runner_key", load_named_key(settings, settings.runner_key));
  check_setting("coordinator.key", load_named_key(settings, settings.coordinator_key));
  check_setting("coordinator.networks", Networks::parse(settings.coordinator_networks));
  check_setting("artifacts.networks", Networks::parse(settings.artifacts_networks));
  if (!settings.artifacts_listen.empty())
    check_setting("artifacts.advertise",
                  api::make_link_address(settings.artifacts_listen, settings.artifacts_advertise, 0));
  check_setting("coordinator.webhooks", WebhookAllowList::parse(settings.coordinator_webhooks));
  if (!settings.coordinator_webhook_secrets.empty())
    check_setting("coordinator.webhook_secrets", read_webhook_secrets(settings.coordinator_webhook_secrets));
  if (auto bucket = make_artifact_bucket(settings); !bucket) add_tls_error(rejected, std::move(bucket).error());
  check_setting("prerequisites.allow", check_allow_list(settings.prerequisites_allow));
  for (RejectedSetting& setting : resolve_owners(settings, settings.contexts)) rejected.push_back(std::move(setting));
  check_setting("secrets_redacted", check_always_redacted(settings.secrets_redacted));
  return rejected;
}

Result<std::unique_ptr<Agent>> start_agent(const ProgramDependencies& dependencies, Settings settings,
                                           StoreFactory& stores, std::function<bool(const Error&)> should_retry,
                                           std::shared_ptr<HeldFileLinks> file_links) {
  MJ_CHECK(check_allow_list(settings.prerequisites_allow));
  MJ_CHECK(check_always_redacted(settings.secrets_redacted));
  MJ_CHECK(service::check_topic(settings.topic));
  MJ_CHECK(check_own_databases(settings));
  if (auto rejected = resolve_owners(settings, settings.contexts); !rejected.empty())
    return fail(std::move(rejected.front().error), rejected.front().name);
  MJ_TRY(bucket, make_artifact_bucket(settings));
  WorkerSettings worker = make_worker_settings(settings, dependencies);
  worker.bucket = std::move(bucket);
  worker.file_links = std::move(file_links);
  MJ_TRY(link_networks, parse_artifact_networks(settings));
  worker.link_networks = std::move(link_networks);
  auto [slots, slot_reason] = dependencies.fit_slots(settings.slots);
  if (!slot_reason.empty()) log(LogLevel::warn, "worker", "{}", slot_reason);
  worker.slots = slots;
  worker.servers = number_servers(stores, settings);
  MJ_TRY(signing_key, load_configured_key(settings, "runner_key", settings.runner_key));
  worker.key = signing_key;
  // The check of several servers runs in parallel, so that a server that hangs delays the registration only once.
  std::future<void> server_checks;
  if (settings.context_redis.empty()) {
    log_warnings_of_all_servers(dependencies, settings, stores);
  } else {
    server_checks = run_in_parallel([&] { log_warnings_of_all_servers(dependencies, settings, stores); });
  }
  if (!settings.job_log_export.empty()) {
    MJ_TRY(log_export, LogExport::start(settings.job_log_export));
    worker.log_export = std::move(log_export);
  }
  const RunnerHolder holder = current_instance();
  auto instance_lock = InstanceLock::acquire(settings.state_dir, settings.runner, holder.instance);
  if (!instance_lock) {
    log(LogLevel::warn, "worker",
        "{}; after a crash of this agent, its jobs wait until their leases expire, even if the agent restarts "
        "immediately",
        instance_lock.error().message);
    instance_lock = InstanceLock();
  }
  // The probes and the sandbox start programs and wait for them, so they run in parallel.
  auto executor_probes = run_in_parallel([&] { return find_working_executors(dependencies, settings); });
  // The registration of the runner checks the database of a single context.
  auto database_checks = run_in_parallel([&] {
    return settings.contexts.size() > 1 ? check_databases(stores, settings.contexts) : std::map<Id, Error>();
  });
  MJ_TRY(sandbox, dependencies.start_sandbox(settings, settings.contexts, instance_lock->fd()));
  MJ_TRY(executors, executor_probes.get());
  MJ_TRY(rejected_databases, database_checks.get());
  separate_contexts(rejected_databases, worker.servers);
  return Agent::start({stores, std::move(sandbox), std::move(executors), dependencies.clock, holder,
                       std::move(*instance_lock), std::move(should_retry)},
                      std::move(worker));
}

ArtifactCache::Limits make_artifact_cache_limits(const Settings& settings) {
  return {settings.artifacts_cache_bytes, settings.artifacts_cache_age_ms};
}

service::UploadLimits make_upload_limits(const Settings& settings) {
  return {settings.job_max_artifact_bytes, settings.uploads_caller_bytes, settings.uploads_expiry_ms};
}

Result<std::shared_ptr<const ArtifactBucket>> make_artifact_bucket(const Settings& settings) {
  if (settings.artifacts_store.empty()) return std::shared_ptr<const ArtifactBucket>();
  ArtifactBucket::Settings bucket;
  bucket.url = settings.artifacts_store;
  bucket.endpoint = settings.artifacts_store_endpoint;
  bucket.region = settings.artifacts_store_region;
  bucket.uses_path_style = settings.artifacts_store_path_style;
  bucket.credentials = settings.artifacts_store_credentials;
  bucket.ca = settings.https_ca;
  MJ_TRY(created, ArtifactBucket::create(bucket));
  return std::shared_ptr<const ArtifactBucket>(std::move(created));
}

Result<MessageAttachments> make_message_attachments(const Settings& settings, const Clock& clock, StoreFactory& stores,
                                                    const std::shared_ptr<Metrics>& metrics,
                                                    std::shared_ptr<const ArtifactBucket> bucket) {
  constexpr std::uint64_t kSweepIntervalMs = 60000;
  MJ_TRY(networks, parse_artifact_networks(settings));
  if (settings.state_dir.empty()) return MessageAttachments{nullptr, settings.message_max_artifact_bytes};
  const ArtifactCache::Limits cache_limits = make_artifact_cache_limits(settings);
  auto fetcher = std::make_shared<ArtifactFetcher>(
      stores, clock,
      ArtifactFetcher::Settings{settings.state_dir, cache_limits, 2, std::move(bucket), std::move(networks)}, metrics);
  return MessageAttachments{make_artifact_store(settings.state_dir, clock, kSweepIntervalMs,
                                                settings.message_max_incoming_bytes, cache_limits, std::move(fetcher)),
                            settings.message_max_artifact_bytes};
}

Result<std::unique_ptr<Coordinator>> make_coordinator(const ProgramDependencies& dependencies, const Settings& settings,
                                                      StoreFactory& stores, std::vector<Id> contexts,
                                                      MessageAttachments files,
                                                      std::shared_ptr<HeldFileLinks> file_links) {
  MJ_CHECK(check_own_databases(settings));
  log_warnings_of_all_servers(dependencies, settings, stores);
  const RunnerHolder holder = current_instance();
  CoordinatorSettings coordinator;
  coordinator.contexts = std::move(contexts);
  for (const auto& [context, url] : settings.context_redis) coordinator.contexts_with_own_redis.push_back(context);
  // Without a list of contexts, others may be found: each context reports its own error.
  MJ_CHECK(check_databases(stores, coordinator.contexts));
  coordinator.lease_ms = settings.coordinator_lease_ms;
  coordinator.retention = make_retention(settings);
  MJ_TRY(networks, parse_coordinator_networks(settings));
  coordinator.networks = std::move(networks);
  coordinator.https_ca = settings.https_ca;
  auto webhooks = WebhookAllowList::parse(settings.coordinator_webhooks);
  if (!webhooks) return fail(webhooks.error(), "coordinator.webhooks");
  coordinator.webhooks = std::move(*webhooks);
  coordinator.webhook_secrets = settings.coordinator_webhook_secrets;
  if (!coordinator.webhook_secrets.empty()) MJ_CHECK(read_webhook_secrets(coordinator.webhook_secrets));
  MJ_CHECK(check_allow_list(settings.prerequisites_allow));
  coordinator.allowed_prerequisites = settings.prerequisites_allow;
  coordinator.prerequisites_timeout_ms = settings.prerequisites_timeout_ms;
  MJ_TRY(key, load_coordinator_key(settings));
  coordinator.key = std::move(key);
  coordinator.mycelium_url = settings.mycelium_url;
  coordinator.max_concurrent_deliveries = settings.coordinator_deliveries;
  coordinator.cell_cache = {settings.coordinator_cell_cache, settings.coordinator_cell_cache_bytes};
  coordinator.workflow_host = settings.libexec_dir + "/mycojobs-workflowhost";
  coordinator.files = std::move(files);
  coordinator.state_dir = settings.state_dir;
  coordinator.file_links = std::move(file_links);
  coordinator.transfer_rate = settings.artifacts_transfer_rate_bytes;
  coordinator.ceilings = settings.ceilings;
  coordinator.max_script_bytes = settings.job_max_script_bytes;
  coordinator.metrics = dependencies.metrics;
  coordinator.location = holder.host + " pid " + std::to_string(holder.pid);
  return std::make_unique<Coordinator>(stores, dependencies.clock, std::move(coordinator));
}

}  // namespace mycojobs
