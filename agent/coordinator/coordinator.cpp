#include "coordinator/coordinator.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

#include "artifacts/uploads/upload_cleanup.h"
#include "base/log.h"
#include "base/parse.h"
#include "base/random.h"
#include "base/thread.h"
#include "coordinator/context_loop.h"
#include "coordinator/notifier.h"
#include "jobs/prerequisite_checks.h"
#include "messaging/inbound_filter.h"
#include "messaging/message_receiver.h"
#include "messaging/router.h"
#include "messaging/supervisor.h"
#include "messaging/transport/mycelium_transport.h"
#include "messaging/transport/transports.h"
#include "net/json_rpc_client.h"
#include "store/hinted_loop.h"
#include "store/keys.h"
#include "store/redis/format_version.h"
#include "store/store_health.h"
#include "workflows/deployment/pooled_deployment_loop.h"
#include "workflows/engine/engine_pool.h"

namespace mycojobs {
namespace {

// Returns a function that answers requests of remote supervisors, or of contexts of this host. The function must be
// used by one thread. `filter` checks requests of remote hosts; it is null for requests of this host.
MyceliumListener::NodeRequestHandler make_request_handler(StoreFactory& stores, const std::string& own_key,
                                                          const MessageAttachments& files,
                                                          const std::shared_ptr<InboundMessageFilter>& filter) {
  struct Connection {
    std::unique_ptr<Store> store;
    PublicKeyCache known_keys;
  };
  auto connection = std::make_shared<Connection>();
  return [&stores, own_key, files, connection, filter](std::string_view request, const std::string& node) {
    if (!connection->store) {
      auto opened = stores.open();
      if (!opened)
        return answer_rpc(request, kMaxRequestBytes, [&](std::string_view, const nlohmann::json&) {
          return Result<nlohmann::json>(tl::unexpected<Error>(opened.error()));
        });
      connection->store = std::move(*opened);
    }
    MessageReceiver receiver(*connection->store, connection->known_keys, own_key, files);
    if (filter) receiver.set_filter(*filter);
    return receiver.handle_request(request, node);
  };
}

SupervisorSettings supervisor_settings(StoreFactory& stores, const ContextSettings& context,
                                       const CoordinatorSettings& coordinator_settings) {
  SupervisorSettings settings;
  settings.messages = {context.context,
                       coordinator_settings.key,
                       coordinator_settings.key != nullptr,
                       context.retention.succeeded_ms,
                       coordinator_settings.files,
                       context.limits};
  if (!settings.messages.key) settings.messages.key = std::make_shared<const SigningKey>(SigningKey::make());
  settings.concurrency = coordinator_settings.max_concurrent_deliveries;
  const std::string own_key = settings.messages.key->public_key();
  settings.transports = [&stores, own_key, networks = coordinator_settings.networks,
                         url = coordinator_settings.mycelium_url, files = coordinator_settings.files,
                         ca = coordinator_settings.https_ca] {
    const auto handler = make_request_handler(stores, own_key, files, nullptr);
    const RequestHandler local_handler = [handler](std::string_view request) { return handler(request, ""); };
    return std::make_unique<Transports>(local_handler, networks, url, ca);
  };
  return settings;
}

constexpr std::uint32_t kStoreRetryDelayMs = 250;
// Maximum number of threads for steps of all contexts, in addition to one thread for each context.
constexpr std::size_t kMaxStepThreads = 16;

}  // namespace

// Checks the prerequisites of the jobs of a context (jobs/prerequisite_checks.h). Several coordinators may do so at
// the same time: each job is assigned to one of them.
class Coordinator::PrerequisiteLoop final : public PooledLoop {
 public:
  PrerequisiteLoop(std::unique_ptr<Store> store, const Clock& clock, Id context, PrerequisiteCheckSettings settings)
      : context_(context),
        clock_(clock),
        store_(std::move(store)),
        evaluator_(*store_, clock, std::move(settings)),
        log_once_("prerequisites", context) {}
  ~PrerequisiteLoop() override { end_loop(); }
  Result<void> begin(LoopPool& pool) { return begin_loop(pool); }

  // Checks of the network make progress in short iterations, so that they occupy no thread.
  std::uint64_t run_once() override {
    evaluator_.wait(-1, 0, [this](Id, const Error& error) { log_once_(&error); });
    if (clock_.boot_ms() >= next_query_ms_) {
      const auto next_ms = evaluator_.check_due_jobs(context_);
      log_once_(next_ms ? nullptr : &next_ms.error());
      next_query_ms_ = clock_.boot_ms() + next_ms.value_or(kPrerequisiteRetryDelayMs);
    }
    const std::uint64_t now = clock_.boot_ms();
    const std::uint64_t pause_ms = next_query_ms_ > now ? next_query_ms_ - now : 0;
    return evaluator_.has_pending_checks() ? std::min(pause_ms, kPendingCheckDelayMs) : pause_ms;
  }

 private:
  static constexpr std::uint32_t kPrerequisiteRetryDelayMs = 500;
  static constexpr std::uint64_t kPendingCheckDelayMs = 20;

  Id context_;
  const Clock& clock_;
  std::unique_ptr<Store> store_;
  PrerequisiteEvaluator evaluator_;
  LogOnce log_once_;
  std::uint64_t next_query_ms_ = 0;  // time of the next query for due jobs, on Clock::boot_ms()
};

// Deletes files of messages and jobs that no longer exist. Its pool does nothing else, since the disk may hang.
class Coordinator::FileCleanupLoop final : public PooledLoop {
 public:
  FileCleanupLoop(std::unique_ptr<Store> store, std::shared_ptr<ArtifactStore> files, const Clock& clock,
                  const std::string& state_dir, Id context)
      : context_(context),
        store_(std::move(store)),
        files_(std::move(files)),
        uploads_(clock, state_dir),
        log_once_("artifacts", context) {}
  ~FileCleanupLoop() override { end_loop(); }
  Result<void> begin(LoopPool& pool) { return begin_loop(pool); }

  std::uint64_t run_once() override {
    const auto next_ms = clean_up();
    log_once_(next_ms ? nullptr : &next_ms.error());
    return next_ms.value_or(kErrorRetryDelayMs);
  }

 private:
  static constexpr std::uint64_t kErrorRetryDelayMs = 5000;

  Result<std::uint64_t> clean_up() {
    const auto uploads_ms = uploads_.run_step(*store_, context_);
    const auto files_ms = files_->clean_up(*store_, context_);
    MJ_CHECK(uploads_ms);
    MJ_CHECK(files_ms);
    return std::min(*uploads_ms, *files_ms);
  }

  Id context_;
  std::unique_ptr<Store> store_;
  std::shared_ptr<ArtifactStore> files_;
  UploadCleanup uploads_;
  LogOnce log_once_;
};

// The thread pools of a server. Flows, messages and workflows have separate pools: a round of workflows can be long,
// and messages can block on the disk of their files.
struct Coordinator::ServerPools {
  LoopPool flows{"flows"}, workflows{"workflows"};
  // The loops use disks. A disk that hangs can occupy two threads for each context.
  LoopPool messages{"messages", {.max_threads = 4, .max_replacements = 60}};
};

// Owns the loops of a context, and is itself the loop that executes the rounds of ContextLoop.
class Coordinator::ContextService final : public HintedLoop {
 public:
  static Result<std::unique_ptr<ContextService>> start(StoreFactory& stores, const Clock& clock,
                                                       const ContextSettings& settings,
                                                       const CoordinatorSettings& coordinator_settings,
                                                       const StepShares& shares, ServerPools& pools,
                                                       LoopPool& file_pool) {
    MJ_TRY(flows, stores.open_flows());
    MJ_TRY(store, stores.open());
    std::unique_ptr<ContextService> service(new ContextService(std::move(flows), std::move(store), clock, settings));
    MJ_CHECK(service->start_loops(stores, clock, settings, coordinator_settings, shares, pools, file_pool));
    MJ_CHECK(service->begin(stores, settings.context, {{kFlowDueChannel}, {}}, pools.flows));
    return service;
  }
  ~ContextService() override {
    request_stop();
    end();
  }
  void request_stop() {
    stop();
    if (notifier_) notifier_->stop();
    if (supervisor_) supervisor_->stop();
    if (router_) router_->stop();
    if (deployments_) deployments_->stop();
    if (engines_) engines_->stop();
    if (file_cleanup_) file_cleanup_->stop();
  }

  // Called after the last round. Gives up the leadership, so that another coordinator can acquire it.
  void ended() override {
    if (deployments_) deployments_->set_leader(false);
    context_loop_.release();
  }
  bool is_store_unavailable() const { return unavailable_; }

 private:
  ContextService(std::unique_ptr<FlowStore> flows, std::unique_ptr<Store> store, const Clock& clock,
                 ContextSettings settings)
      : HintedLoop(hint_prefix(settings.context)),
        context_(settings.context),
        context_loop_(std::move(flows), std::move(store), clock, std::move(settings)) {}

  Result<void> start_loops(StoreFactory& stores, const Clock& clock, const ContextSettings& settings,
                           const CoordinatorSettings& coordinator_settings, const StepShares& shares,
                           ServerPools& pools, LoopPool& file_pool) {
    RouterSettings router_settings;
    router_settings.context = context_;
    router_settings.networks = coordinator_settings.networks;
    router_settings.https_ca = coordinator_settings.https_ca;
    router_settings.key = coordinator_settings.key;
    router_settings.files = coordinator_settings.files;
    router_settings.concurrency = coordinator_settings.max_concurrent_deliveries;
    MJ_TRY(router, Router::start(stores, clock, pools.messages, router_settings));
    router_ = std::move(router);
    MJ_TRY(notifier, Notifier::start(stores, clock, pools.messages,
                                     {context_, coordinator_settings.webhooks, coordinator_settings.webhook_secrets,
                                      settings.limits, coordinator_settings.https_ca}));
    notifier_ = std::move(notifier);
    MJ_TRY(supervisor, Supervisor::start(stores, clock, pools.messages,
                                         supervisor_settings(stores, settings, coordinator_settings)));
    supervisor_ = std::move(supervisor);
    // Without an allow-list the prerequisites are left to agents, which may have one.
    if (!coordinator_settings.allowed_prerequisites.empty()) {
      MJ_TRY(store, stores.open());
      prerequisites_ = std::make_unique<PrerequisiteLoop>(
          std::move(store), clock, context_,
          PrerequisiteCheckSettings{CheckerRole::coordinator, coordinator_settings.allowed_prerequisites,
                                    coordinator_settings.prerequisites_timeout_ms});
      MJ_CHECK(prerequisites_->begin(pools.messages));
    }
    if (coordinator_settings.files.store) {
      MJ_TRY(store, stores.open());
      file_cleanup_ = std::make_unique<FileCleanupLoop>(std::move(store), coordinator_settings.files.store, clock,
                                                        coordinator_settings.state_dir, context_);
      MJ_CHECK(file_cleanup_->begin(file_pool));
    }
    if (coordinator_settings.workflow_host.empty()) return {};
    workflow::EngineOptions options;
    options.program = coordinator_settings.workflow_host;
    options.processes = shares.max_threads;
    engines_ = std::make_shared<workflow::EnginePool>(std::move(options), context_);
    MJ_TRY(deployments,
           PooledDeploymentLoop::start(
               stores, clock, pools.workflows, context_,
               [engines = engines_](const WorkflowSpec& spec, const WorkflowManifest& manifest,
                                    const StepRequest& request) { return engines->step(spec, manifest, request); },
               settings.limits, coordinator_settings.metrics,
               {.shares = shares, .cell_cache = coordinator_settings.cell_cache}));
    deployments_ = std::move(deployments);
    return {};
  }

  std::uint64_t run_iteration() override {
    const auto next = context_loop_.run_round(max_idle_ms());
    if (deployments_) deployments_->set_leader(context_loop_.is_leader());
    log_once(next ? nullptr : &next.error());
    return next ? *next : kStoreRetryDelayMs;
  }
  void on_hint(std::string_view hint) override {
    std::uint64_t flow = 0;
    // A hint names a flow that is due.
    if (parse_u64(hint, flow) && flow <= UINT32_MAX) context_loop_.add_hint(static_cast<Id>(flow));
  }
  void reconnected() override { context_loop_.clear_cache(); }
  // Logs when the store becomes unavailable and when it answers again.
  void log_once(const Error* error) {
    if ((error != nullptr) == unavailable_) return;
    unavailable_ = error != nullptr;
    if (error != nullptr) {
      log(LogLevel::error, "coordinator", "context {}: {} (flows wait; retrying)", context_, error->message);
    } else {
      log(LogLevel::info, "coordinator", "context {}: the store is available again", context_);
    }
  }

  Id context_;
  ContextLoop context_loop_;
  std::atomic<bool> unavailable_{false};
  // The destructor may block on the disk, so it runs after those of the members below.
  std::unique_ptr<FileCleanupLoop> file_cleanup_;
  std::unique_ptr<PooledDeploymentLoop> deployments_;  // null if this coordinator runs no workflows
  std::shared_ptr<workflow::EnginePool> engines_;      // the engines of deployments_
  std::unique_ptr<Router> router_;
  std::unique_ptr<Notifier> notifier_;
  std::unique_ptr<PrerequisiteLoop> prerequisites_;
  std::unique_ptr<Supervisor> supervisor_;
};

Coordinator::Coordinator(StoreFactory& stores, const Clock& clock, CoordinatorSettings settings)
    : stores_(stores),
      clock_(clock),
      settings_(std::move(settings)),
      instance_(random_hex(16)),
      file_sender_(stores, clock,
                   {[this](Id context) {
                      const std::lock_guard lock(mutex_);
                      return services_.contains(context);
                    },
                    settings_.state_dir, settings_.transfer_rate, settings_.file_links},
                   settings_.metrics) {
  step_shares_.shared_limit = std::make_shared<SharedThreadLimit>(kMaxStepThreads);
}

Coordinator::~Coordinator() { stop(); }

Result<void> Coordinator::start_threads() {
  if (settings_.contexts.empty()) {
    MJ_TRY(store, stores_.open());
    discovery_store_ = std::move(store);
  }
  if (auto scan_result = serve_all_contexts(); !scan_result) {
    if (scan_result.error().code != Code::unavailable) return scan_result;
    log(LogLevel::error, "coordinator", "scanning for contexts failed: {} (retrying)", scan_result.error().message);
    discovery_failed_ = true;
  }
  has_started_ = true;
  start_discovery();
  const std::lock_guard lock(mutex_);
  start_file_sender();
  return {};
}

void Coordinator::start_file_sender() {
  if (!has_started_ || stopping_ || settings_.state_dir.empty()) return;
  if (file_sender_thread_ && file_sender_thread_->started()) return;
  const bool is_first_attempt = !file_sender_thread_;
  file_sender_thread_.emplace(file_sender_, "file holder");
  if (const auto& started = file_sender_thread_->started(); !started && is_first_attempt)
    log(LogLevel::error, "coordinator", "files of this host are not sent: {} (retrying)", started.error().message);
}

void Coordinator::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& [context, service] : services_) service->request_stop();
  }
  wake_.notify_all();
  if (discovery_thread_.joinable()) discovery_thread_.join();
  file_sender_thread_.reset();
  listener_.reset();
  std::lock_guard lock(mutex_);
  services_.clear();
}

void Coordinator::replace_ceilings(const Ceilings& ceilings) {
  ceilings_.replace(std::make_shared<const Ceilings>(ceilings));
}

bool Coordinator::is_healthy() {
  start_discovery();
  start_missing_threads();
  std::lock_guard lock(mutex_);
  bool has_progressed = true;
  for (const auto& [server, pools] : server_pools_) has_progressed = pools->flows.has_progressed() && has_progressed;
  std::map<Id, std::uint64_t> current_counts;
  for (const auto& [context, service] : services_) {
    const std::uint64_t count = service->progress();
    const auto before = checked_counts_.find(context);
    const bool is_running = count % 2 == 1;
    if (is_running && before != checked_counts_.end() && before->second == count) has_progressed = false;
    current_counts[context] = count;
  }
  if (has_progressed) checked_counts_ = std::move(current_counts);
  return has_progressed;
}

void Coordinator::start_missing_threads() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // a context is being started
  for (const auto& [server, pools] : server_pools_) {
    for (LoopPool* pool : {&pools->flows, &pools->messages, &pools->workflows}) pool->start_missing_thread();
  }
  file_pool_.start_missing_thread();
  start_file_sender();
}

std::string Coordinator::unready_reason() const {
  std::lock_guard lock(mutex_);
  if (!has_started_) return "it is starting";
  if (discovery_failed_) return "Redis is unavailable";
  if (!unserved_contexts_.empty())
    return fmt::format("context {} cannot be served: {}", unserved_contexts_.begin()->first,
                       unserved_contexts_.begin()->second);
  std::vector<Id> unavailable_contexts;
  for (const auto& [context, service] : services_) {
    if (service->is_store_unavailable()) unavailable_contexts.push_back(context);
  }
  return describe_unavailable_contexts(unavailable_contexts);
}

Result<void> Coordinator::try_to_serve(Id context) {
  auto result = serve(context);
  if (!result && result.error().code != Code::unavailable && result.error().code != Code::denied) return result;
  const std::lock_guard lock(mutex_);
  std::string reason = result ? "" : describe_to_client(result.error());
  const auto before = unserved_contexts_.find(context);
  if (!reason.empty() && (before == unserved_contexts_.end() || before->second != reason))
    log(LogLevel::error, "coordinator", "context {}: cannot be served: {} (retrying)", context, reason);
  if (reason.empty()) {
    unserved_contexts_.erase(context);
  } else {
    unserved_contexts_[context] = std::move(reason);
  }
  return {};
}

Result<void> Coordinator::serve(Id context) {
  std::lock_guard lock(mutex_);
  if (stopping_ || services_.contains(context)) return {};
  ContextSettings settings;
  settings.context = context;
  settings.instance = instance_;
  settings.location = settings_.location;
  settings.lease_ms = settings_.lease_ms;
  settings.retention = settings_.retention;
  settings.limits = {settings_.ceilings.get(context), settings_.max_script_bytes};
  settings.limits.read_ceiling = [ceilings = ceilings_, context] { return ceilings.now()->get(context); };
  settings.metrics = settings_.metrics;
  std::unique_ptr<ServerPools>& pools = server_pools_[stores_.server_name(context)];
  if (!pools) pools = std::make_unique<ServerPools>();
  MJ_TRY(service, ContextService::start(stores_, clock_, settings, settings_, step_shares_, *pools, file_pool_));
  services_[context] = std::move(service);
  log(LogLevel::info, "coordinator", "context {}: served", context);
  return {};
}

Result<void> Coordinator::serve_all_contexts() {
  start_listener();
  for (const Id context : settings_.contexts) MJ_CHECK(try_to_serve(context));
  if (!settings_.contexts.empty()) return {};
  for (const Id context : settings_.contexts_with_own_redis) MJ_CHECK(try_to_serve(context));
  MJ_TRY(found_contexts, discovery_store_->find_contexts());
  for (const Id context : found_contexts) MJ_CHECK(try_to_serve(context));
  return {};
}

void Coordinator::start_listener() {
  if (!settings_.key || settings_.mycelium_url.empty() || (listener_ && listener_->started())) return;
  listener_ = std::make_unique<MyceliumListener>(
      settings_.mycelium_url,
      make_request_handler(stores_, settings_.key->public_key(), settings_.files,
                           std::make_shared<InboundMessageFilter>(
                               clock_, settings_.contexts, settings_.contexts_with_own_redis, settings_.metrics)));
}

void Coordinator::start_discovery() {
  const std::lock_guard lock(mutex_);
  if (!has_started_ || stopping_ || discovery_thread_.joinable())
    return;  // the discovery thread may be changing listener_
  const bool are_all_served = unserved_contexts_.empty() && (!listener_ || listener_->started());
  if (!settings_.contexts.empty() && are_all_served) return;
  auto thread = start_thread([this] { run_discovery(); });
  if (thread) {
    discovery_thread_ = std::move(*thread);
    return;
  }
  if (!std::exchange(is_discovery_error_logged_, true))
    log(LogLevel::error, "coordinator", "the thread that scans for contexts did not start: {} (retrying)",
        thread.error().message);
}

void Coordinator::run_discovery() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::milliseconds(settings_.discover_ms), [this] { return stopping_; })) {
    lock.unlock();
    const auto scan_result = serve_all_contexts();
    if (!scan_result)
      log(LogLevel::warn, "coordinator", "scanning for contexts failed: {}", scan_result.error().message);
    lock.lock();
    discovery_failed_ = !scan_result;
  }
}

void Coordinator::measure() const { settings_.metrics->set(Metric::ready, {}, unready_reason().empty() ? 1 : 0); }

}  // namespace mycojobs
