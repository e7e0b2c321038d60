#include "cli/store_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <future>
#include <nlohmann/json.hpp>

#include "api/http/http_server.h"
#include "artifacts/local_artifact_store.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/thread.h"
#include "cli/terminal.h"
#include "inspect/doctor.h"
#include "inspect/job_view.h"
#include "inspect/runner_view.h"
#include "model/codec.h"
#include "model/prerequisite.h"
#include "net/web_address.h"
#include "net/webhook.h"
#include "service/record_service.h"
#include "store/redis/redis_connection.h"
#include "text/json.h"
#include "text/utf8.h"

namespace mycojobs {

namespace {

// Returns the executors that work on this host.
Result<std::vector<std::unique_ptr<Executor>>> working_executors(const ProgramDependencies& parts,
                                                                 const Settings& settings) {
  if (settings.job_default_timeout_ms % 1000 != 0)
    return fail(Code::invalid, "job.default_timeout: is not a whole number of seconds: give 1s or more");
  std::vector<std::unique_ptr<Executor>> working;
  std::string why_not;
  for (auto& executor : parts.executors(settings)) {
    auto probed = executor->probe();
    if (probed) {
      log(LogLevel::info, "worker", "executor {}: {}", executor->name(), *probed);
      working.push_back(std::move(executor));
    } else {
      const LogLevel level = probed.error().code == Code::not_found ? LogLevel::info : LogLevel::warn;
      log(level, "worker", "executor {} does not work here: {}", executor->name(), probed.error().message);
      why_not += (why_not.empty() ? "" : "; ") + std::string(executor->name()) + ": " + probed.error().message;
    }
  }
  for (const std::string& type : settings.script_types) {
    const bool served = std::any_of(working.begin(), working.end(), [&](const auto& executor) {
      const auto types = executor->script_types();
      return std::find(types.begin(), types.end(), type) != types.end();
    });
    if (!served) return fail(Code::invalid, "script_types: no executor of this host runs \"" + type + "\"");
  }
  if (working.empty()) return fail(Code::unsupported, "no executor works on this host: " + why_not);
  return working;
}

WorkerSettings worker_settings(const Settings& settings, const ProgramDependencies& parts) {
  WorkerSettings worker;
  worker.runner.id = settings.runner;
  worker.runner.local = settings.local;
  worker.runner.topic = settings.topic;
  worker.runner.actor_id = settings.runner_actor;
  worker.claims_as_actor = !settings.redis.empty();  // an embedded Redis belongs to this operator
  worker.contexts = settings.contexts;
  for (const auto& [context, url] : settings.context_redis) worker.own_servers.push_back(context);
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
  worker.max_deliveries = settings.job_max_deliveries;
  worker.defaults = operator_defaults(settings);
  worker.ceilings = settings.ceilings;
  worker.retry = {settings.retry_min_ms, settings.retry_max_ms};
  worker.kill_on_lease_lost = settings.on_lease_lost == LeaseLostAction::kill;
  worker.retention_ms = settings.retention_ms;
  worker.retention_count = settings.retention_count;
  worker.allowed_prerequisites = settings.prerequisites_allow;
  worker.prerequisites_timeout_ms = settings.prerequisites_timeout_ms;
  worker.secrets = secret_states(settings);
  worker.state_dir = settings.state_dir;
  worker.metrics = parts.metrics;
  worker.traces = parts.traces;
  return worker;
}

// Logs server settings that can cause the loss of jobs. Each server is checked once, all in parallel, so that several
// servers that hang delay the start no longer than one.
void warn_of_server(const std::string& which, const Result<std::unique_ptr<Store>>& store) {
  if (!store) return;
  const auto facts = (*store)->facts();
  if (!facts) return;
  for (const Check& check : examine_server(*facts, 0, 0)) {
    const bool known = check.name == "maxmemory-policy" ? !facts->maxmemory_policy.empty()
                                                        : check.name == "appendonly" && !facts->appendonly.empty();
    if (known && check.verdict != Verdict::ok)
      log(LogLevel::warn, "store", "{}: {} is {}; remedy: {}", which, check.name, check.detail, check.remedy);
  }
}

void warn_of_servers(const ProgramDependencies& parts, const Settings& settings, StoreFactory& stores) {
  const auto& own = settings.context_redis;
  const bool any = settings.contexts.empty() || std::any_of(settings.contexts.begin(), settings.contexts.end(),
                                                            [&](Id context) { return !own.contains(context); });
  std::vector<std::future<void>> others;
  others.reserve(own.size());
  for (const auto& each : own) {
    others.push_back(run_in_parallel([&parts, &settings, &each] {
      // Configured as the server for keys without a context, so that facts() queries this server.
      Settings alone = settings;
      alone.context_redis = {{Id{0}, each.second}};
      warn_of_server("Redis of context " + std::to_string(each.first), parts.stores(alone, each.second)->open());
    }));
  }
  if (any) warn_of_server("Redis", stores.open());
  for (const auto& each : others) each.wait();
}

// Creates the records of contexts in a new store, so that the first scripts may use the objects of their context.
Result<void> own_contexts(const Settings& settings, StoreFactory& stores) {
  MJ_TRY(store, stores.open());
  for (Id id : settings.contexts) {
    Context context;
    context.id = id;
    MJ_TRY(now_ms, store->now_ms());
    context.admins = {kDefaultCaller};
    context.created_at = context.updated_at = static_cast<std::uint32_t>(now_ms / 1000);
    auto made = store->create_record(id, {"context:", "context", id, encode(context)});
    if (!made) return fail(made.error(), redis_key(context));
  }
  return {};
}

}  // namespace

SecretSources secret_states(const Settings& settings) {
  const char* credentials = std::getenv("CREDENTIALS_DIRECTORY");
  return {settings.secrets_dir, credentials == nullptr ? "" : credentials, settings.secrets_redacted};
}

Result<std::string> key_file(const Settings& settings, const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  if (!is_approval_name(name)) {
    return fail(
        Code::invalid,
        excerpt(name) +
            ": is not a valid name of a key: use 1 to 64 letters, digits, '.', '_' and '-', or a path with a '/'");
  }
  if (settings.keys_dir.empty()) return fail(Code::invalid, "keys_dir: names no folder: give --keys-dir");
  return settings.keys_dir + '/' + name + ".key";
}

Result<std::string> typed_public_key(const Invocation& call, const std::string& text) {
  if (is_public_key(text)) return text;
  const bool is_hex = text.size() == 64 && text.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (is_hex)
    return fail(
        Code::invalid,
        "--key: " + text + " is not a public key: 64 characters of lower-case hex, as `mycojobs key show` prints them");
  auto file = key_file(call.settings, text);
  if (!file) return fail(file.error(), "--key");
  auto key = SigningKey::load(*file);
  if (!key) return fail(key.error(), "--key");
  return key->public_key();
}

namespace {

// Returns the named key; null: the name is empty.
Result<std::shared_ptr<const SigningKey>> key_named(const Settings& settings, const std::string& name) {
  if (name.empty()) return nullptr;
  MJ_TRY(file, key_file(settings, name));
  MJ_TRY(key, SigningKey::load(file));
  return std::make_shared<const SigningKey>(std::move(key));
}
Result<std::shared_ptr<const SigningKey>> key_of(const Settings& settings, const char* setting,
                                                 const std::string& name) {
  auto key = key_named(settings, name);
  if (!key) return fail(key.error(), setting);
  return key;
}

}  // namespace

Result<std::shared_ptr<const SigningKey>> coordinator_key(const Settings& settings) {
  return key_of(settings, "coordinator.key", settings.coordinator_key);
}

Result<void> check_trace_endpoint(const std::string& url) {
  if (url.empty() || url.starts_with("http://") || url.starts_with("https://")) return {};
  return fail(Code::invalid,
              excerpt(url, 200) + " is not an address: give a URL such as http://127.0.0.1:4318/v1/traces");
}

std::vector<RejectedSetting> refused_settings(const Settings& settings) {
  std::vector<RejectedSetting> refused;
  const auto ask = [&refused](std::string name, auto answer) {
    if (!answer) refused.push_back({std::move(name), std::move(answer).error()});
  };
  if (!settings.redis.empty()) ask("redis", parse_shared_redis_url(settings.redis));
  for (const auto& [context, url] : settings.context_redis)
    ask(fmt::format("contexts.{}.redis", context), parse_redis_url(url));
  const std::pair<const char*, const std::string&> listens[] = {{"api.listen", settings.api_listen},
                                                                {"supervisor.listen", settings.supervisor_listen},
                                                                {"health.listen", settings.health_listen},
                                                                {"metrics.listen", settings.metrics_listen}};
  for (const auto& [name, address] : listens) {
    if (!address.empty()) ask(name, api::parse_listen(address));
  }
  ask("trace.endpoint", check_trace_endpoint(settings.trace_endpoint));
  ask("topic", service::check_topic(settings.topic));
  ask("runner_key", key_named(settings, settings.runner_key));
  ask("coordinator.key", key_named(settings, settings.coordinator_key));
  ask("coordinator.networks", Networks::parse(settings.coordinator_networks));
  ask("coordinator.webhooks", Webhooks::parse(settings.coordinator_webhooks));
  if (!settings.coordinator_webhook_secrets.empty())
    ask("coordinator.webhook_secrets", read_webhook_secrets(settings.coordinator_webhook_secrets));
  ask("prerequisites.allow", check_allow_list(settings.prerequisites_allow));
  ask("secrets_redacted", check_always_redacted(settings.secrets_redacted));
  return refused;
}

Result<std::unique_ptr<Agent>> start_agent(const ProgramDependencies& parts, const Settings& settings,
                                           StoreFactory& stores, std::function<bool(const Error&)> try_again) {
  MJ_CHECK(check_allow_list(settings.prerequisites_allow));
  MJ_CHECK(check_always_redacted(settings.secrets_redacted));
  MJ_CHECK(service::check_topic(settings.topic));
  WorkerSettings worker = worker_settings(settings, parts);
  auto [slots, why_fewer] = parts.fit_slots(settings.slots);
  if (!why_fewer.empty()) log(LogLevel::warn, "worker", "{}", why_fewer);
  worker.slots = slots;
  MJ_TRY(signing, key_of(settings, "runner_key", settings.runner_key));
  worker.key = signing;
  // The check of several servers runs in parallel, so that a server that hangs delays the registration only once.
  std::future<void> warning;
  if (settings.context_redis.empty()) {
    warn_of_servers(parts, settings, stores);
  } else {
    warning = run_in_parallel([&] { warn_of_servers(parts, settings, stores); });
  }
  const RunnerHolder self = current_instance();
  auto alive = InstanceLock::hold(settings.state_dir, settings.runner, self.instance);
  if (!alive) {
    log(LogLevel::warn, "worker",
        "{}; after a crash of this agent, its jobs wait until their leases expire, even if the agent restarts "
        "immediately",
        alive.error().message);
    alive = InstanceLock();
  }
  // The probes and the sandbox start programs and wait for them, so they run in parallel.
  auto probing = run_in_parallel([&] { return working_executors(parts, settings); });
  MJ_TRY(sandbox, parts.sandbox(settings, settings.contexts, alive->fd()));
  MJ_TRY(working, probing.get());
  return Agent::start(
      {stores, std::move(sandbox), std::move(working), parts.clock, self, std::move(*alive), std::move(try_again)},
      std::move(worker));
}

MessageAttachments carried_files(const Settings& settings, const Clock& clock) {
  constexpr std::uint64_t kSweepMs = 60000;
  return {make_artifact_store(settings.state_dir, clock, kSweepMs, settings.message_max_incoming_bytes),
          settings.message_max_artifact_bytes};
}

Result<std::unique_ptr<Coordinator>> make_coordinator(const ProgramDependencies& parts, const Settings& settings,
                                                      StoreFactory& stores, std::vector<Id> contexts) {
  warn_of_servers(parts, settings, stores);
  const RunnerHolder self = current_instance();
  CoordinatorSettings coordinator;
  coordinator.contexts = std::move(contexts);
  for (const auto& own : settings.context_redis) coordinator.own_servers.push_back(own.first);
  coordinator.lease_ms = settings.coordinator_lease_ms;
  coordinator.retention_ms = settings.retention_ms;
  auto networks = Networks::parse(settings.coordinator_networks);
  if (!networks) return fail(networks.error(), "coordinator.networks");
  coordinator.networks = std::move(*networks);
  auto webhooks = Webhooks::parse(settings.coordinator_webhooks);
  if (!webhooks) return fail(webhooks.error(), "coordinator.webhooks");
  coordinator.webhooks = std::move(*webhooks);
  coordinator.webhook_secrets = settings.coordinator_webhook_secrets;
  if (!coordinator.webhook_secrets.empty()) MJ_CHECK(read_webhook_secrets(coordinator.webhook_secrets));
  MJ_CHECK(check_allow_list(settings.prerequisites_allow));
  coordinator.allowed_prerequisites = settings.prerequisites_allow;
  coordinator.prerequisites_timeout_ms = settings.prerequisites_timeout_ms;
  MJ_TRY(key, coordinator_key(settings));
  coordinator.key = std::move(key);
  coordinator.mycelium_url = settings.mycelium_url;
  coordinator.deliveries = settings.coordinator_deliveries;
  coordinator.workflow_host = settings.libexec_dir + "/mycojobs-workflowhost";
  coordinator.files = carried_files(settings, parts.clock);
  coordinator.ceilings = settings.ceilings;
  coordinator.max_script_bytes = settings.job_max_script_bytes;
  coordinator.metrics = parts.metrics;
  coordinator.where = self.host + " pid " + std::to_string(self.pid);
  return Coordinator::make(stores, parts.clock, std::move(coordinator));
}

Result<Session> open_session(const ProgramDependencies& parts, const Settings& settings, bool with_agent) {
  Session session;
  if (!settings.redis.empty()) {
    session.stores = parts.stores(settings, settings.redis);
    return session;
  }
  const std::string url = parts.embedded_url(settings);
  auto embedded = parts.embedded(settings);
  if (!embedded && embedded.error().code != Code::conflict) return fail(embedded.error(), "embedded Redis");
  session.stores = parts.stores(settings, url);
  if (!embedded) return session;
  session.embedded = std::move(*embedded);
  if (auto made = own_contexts(settings, *session.stores); !made) {
    log(LogLevel::warn, "worker", "scripts may not use objects: {}", made.error().message);
  }
  if (with_agent) {
    MJ_TRY(agent, start_agent(parts, settings, *session.stores));
    session.agent = std::move(agent);
    MJ_TRY(coordinator, make_coordinator(parts, settings, *session.stores, settings.contexts));
    MJ_CHECK(coordinator->begin());
    session.coordinator = std::move(coordinator);
  }
  return session;
}

Result<OpenedStore> open_store(const Invocation& call, bool with_agent) {
  OpenedStore opened;
  MJ_TRY(session, open_session(call.parts, call.settings, with_agent));
  opened.session = std::move(session);
  MJ_TRY(store, opened.session.stores->open());
  opened.store = std::move(store);
  return opened;
}

void exit_on_stop_signals() {
  sigset_t stops;
  sigemptyset(&stops);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&stops, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &stops, nullptr);
}

Result<OpenedStore> open_to_answer(const Invocation& call) {
  exit_on_stop_signals();
  return open_store(call, false);
}

void reopen(const Invocation& call, OpenedStore& opened, bool with_agent) {
  if (!call.settings.redis.empty() || opened.session.embedded) return;
  auto again = open_session(call.parts, call.settings, with_agent);
  if (!again) return;
  auto store = again->stores->open();
  if (!store) return;
  opened.store = std::move(*store);
  opened.session = std::move(*again);
}

Id context_of(const Invocation& call) { return call.settings.contexts.at(0); }

Result<std::uint64_t> count_flag(const Invocation& call, std::string_view flag, std::uint64_t otherwise) {
  if (!call.has(flag)) return otherwise;
  std::uint64_t count = 0;
  if (!parse_u64(call.get(flag), count) || count == 0)
    return fail(Code::invalid, fmt::format("--{}: a whole number above 0", flag));
  return count;
}

Result<Id> id_flag(const Invocation& call, std::string_view flag, Id otherwise) {
  if (!call.has(flag)) return otherwise;
  std::uint64_t id = 0;
  if (!parse_u64(call.get(flag), id) || id == 0 || id > UINT32_MAX)
    return fail(Code::invalid, fmt::format("--{}: {} is not an id: use a whole number from 1 to 4294967295", flag,
                                           excerpt(call.get(flag))));
  return static_cast<Id>(id);
}

Result<Id> typed_id(std::string_view what, std::string_view text) {
  std::uint64_t id = 0;
  if (parse_u64(text, id) && id >= 1 && id <= UINT32_MAX) return static_cast<Id>(id);
  return fail(Code::invalid,
              fmt::format("{}: \"{}\" is not an id: use a whole number from 1 to {}", what, text, UINT32_MAX));
}

Result<std::vector<Id>> contexts_of_store(const Invocation& call, Store& store) {
  std::vector<Id> named = call.settings.contexts;
  for (const auto& own : call.settings.context_redis) named.push_back(own.first);
  return service::known_contexts(store, named);
}

void print_deleted(const Invocation& call, const std::string& key) {
  print(call.json ? dump_json({{"key", key}, {"deleted", true}}) + "\n" : key + " is deleted\n");
}

bool has_own_ceiling(const Invocation& call) {
  const Ceilings& ceilings = call.settings.ceilings;
  const auto standard = ceilings.written.find(0);
  return ceilings.contexts.contains(context_of(call)) || (standard != ceilings.written.end() && standard->second.any());
}

service::RequestContext requested_owner(const Invocation& call, Id actor) {
  return {context_of(call),
          actor,
          EntryPoint::command,
          true,
          call.settings.job_max_script_bytes,
          {},
          std::make_shared<const Ceilings>(call.settings.ceilings),
          !has_own_ceiling(call)};
}

Result<void> warn_without_agents(const Invocation& call, Store& store, const std::set<std::string>& types) {
  if (types.empty() || has_own_ceiling(call)) return {};
  MJ_TRY(runners, store.runners(context_of(call)));
  for (const std::string& type : types) {
    const bool served = std::any_of(runners.begin(), runners.end(), [&](const RunnerInfo& each) {
      return presence(each) == RunnerPresence::live && serves(each, queue_key(type));
    });
    if (served) continue;
    print_message(paint(OutputStyle::warn, "warning: ", true) + "no live agent runs " + type +
                  ": the agent that takes the job decides whether its policy is allowed");
  }
  return {};
}

Result<service::RequestContext> request_context(const Invocation& call) {
  const service::RequestContext self = requested_owner(call, kDefaultCaller);
  if (!call.has("actor")) return self;
  MJ_TRY(actor, id_flag(call, "actor", kDefaultCaller));
  return service::as_named(self, actor, "actor");
}

Error with_original_arguments(const Invocation& call, Error error) {
  if (error.code == Code::conflict) error.code = Code::invalid;
  const std::size_t end = error.message.find(':');
  if (end == std::string::npos) return error;
  std::string flag = error.message.substr(0, end);
  std::replace(flag.begin(), flag.end(), '_', '-');
  if (flag == "idempotency-key" && !call.has(flag)) flag = "key";
  if (call.has(flag)) error.message.replace(0, end, "--" + flag);
  return error;
}

Result<std::string> job_argument(const Invocation& call) { return parse_job_key(call.arguments.at(0), kDefaultCaller); }

}  // namespace mycojobs
