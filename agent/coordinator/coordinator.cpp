#include "coordinator/coordinator.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>

#include "base/liveness_counter.h"
#include "base/log.h"
#include "base/mailbox.h"
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
#include "store/keys.h"
#include "store/store_health.h"
#include "store/waiter_loop.h"
#include "workflows/deployment/deployment_thread.h"
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
  settings.messages = {context.context,      coordinator_settings.key,   coordinator_settings.key != nullptr,
                       context.retention_ms, coordinator_settings.files, context.limits};
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

}  // namespace

// Checks the prerequisites of the jobs of a context (jobs/prerequisite_checks.h). Several coordinators may do so at
// the same time: each job is assigned to one of them.
class Coordinator::PrerequisiteLoop final : public TimedLoop {
 public:
  PrerequisiteLoop(std::unique_ptr<Store> store, const Clock& clock, Id context, PrerequisiteCheckSettings settings)
      : context_(context),
        store_(std::move(store)),
        evaluator_(*store_, clock, std::move(settings)),
        log_once_("prerequisites", context) {}

  const Result<void>& started() const { return thread_.started(); }
  std::uint64_t run_once() {
    const auto next_ms = evaluator_.check_due_jobs(context_);
    log_once_(next_ms ? nullptr : &next_ms.error());
    return next_ms.value_or(kPrerequisiteRetryDelayMs);
  }
  void wait_until_due(std::uint64_t ms) {
    evaluator_.wait(wakeup_fd(), static_cast<std::uint32_t>(ms), [this](Id, const Error& error) { log_once_(&error); });
    clear_wakeup();
  }

 private:
  static constexpr std::uint32_t kPrerequisiteRetryDelayMs = 500;

  Id context_;
  std::unique_ptr<Store> store_;
  PrerequisiteEvaluator evaluator_;
  LogOnce log_once_;
  LoopThread<PrerequisiteLoop> thread_{*this};  // Last member: the thread uses all members above.
};

// Deletes files of messages and jobs that no longer exist. The thread does nothing else, since the disk may hang.
class Coordinator::FileCleanupLoop final : public TimedLoop {
 public:
  FileCleanupLoop(std::unique_ptr<Store> store, std::shared_ptr<ArtifactStore> files, Id context)
      : context_(context), store_(std::move(store)), files_(std::move(files)), log_once_("artifacts", context) {}

  const Result<void>& started() const { return thread_.started(); }
  std::uint64_t run_once() {
    const auto next_ms = files_->clean_up(*store_, context_);
    log_once_(next_ms ? nullptr : &next_ms.error());
    return next_ms.value_or(kErrorRetryDelayMs);
  }

 private:
  static constexpr std::uint64_t kErrorRetryDelayMs = 5000;

  Id context_;
  std::unique_ptr<Store> store_;
  std::shared_ptr<ArtifactStore> files_;
  LogOnce log_once_;
  LoopThread<FileCleanupLoop> thread_{*this};  // Last member: the thread uses all members above.
};

// Runs all work of one context. Its thread executes the rounds of ContextLoop; the router, the notifier, the
// supervisor, the prerequisite checks, the file cleanup and the deployments have threads of their own.
class Coordinator::ContextThread final : public ContextLoopBase {
 public:
  static Result<std::unique_ptr<ContextThread>> start(StoreFactory& stores, const Clock& clock,
                                                      ContextSettings settings,
                                                      const CoordinatorSettings& coordinator_settings) {
    MJ_TRY(flows, stores.open_flows());
    MJ_TRY(store, stores.open());
    MJ_TRY(waiter, stores.open_waiter({{settings.context, ""}}, kFlowDueChannel));
    RouterSettings router_settings;
    router_settings.context = settings.context;
    router_settings.networks = coordinator_settings.networks;
    router_settings.https_ca = coordinator_settings.https_ca;
    router_settings.key = coordinator_settings.key;
    router_settings.files = coordinator_settings.files;
    router_settings.concurrency = coordinator_settings.max_concurrent_deliveries;
    MJ_TRY(router, Router::start(stores, clock, router_settings));
    MJ_TRY(notifier,
           Notifier::start(stores, clock,
                           {settings.context, coordinator_settings.webhooks, coordinator_settings.webhook_secrets,
                            settings.limits, coordinator_settings.https_ca}));
    MJ_TRY(supervisor, Supervisor::start(stores, clock, supervisor_settings(stores, settings, coordinator_settings)));
    // Without an allow-list the prerequisites are left to agents, which may have one.
    std::unique_ptr<PrerequisiteLoop> prerequisites;
    if (!coordinator_settings.allowed_prerequisites.empty()) {
      MJ_TRY(prerequisite_store, stores.open());
      prerequisites = std::make_unique<PrerequisiteLoop>(
          std::move(prerequisite_store), clock, settings.context,
          PrerequisiteCheckSettings{CheckerRole::coordinator, coordinator_settings.allowed_prerequisites,
                                    coordinator_settings.prerequisites_timeout_ms});
      MJ_CHECK(prerequisites->started());
    }
    std::unique_ptr<FileCleanupLoop> file_cleanup;
    if (coordinator_settings.files.store) {
      MJ_TRY(cleanup_store, stores.open());
      file_cleanup = std::make_unique<FileCleanupLoop>(std::move(cleanup_store), coordinator_settings.files.store,
                                                       settings.context);
      MJ_CHECK(file_cleanup->started());
    }
    std::unique_ptr<DeploymentThread> deployments;
    std::shared_ptr<workflow::EnginePool> engines;
    if (!coordinator_settings.workflow_host.empty()) {
      workflow::EngineOptions options;
      options.program = coordinator_settings.workflow_host;
      options.processes = StepShares().max_threads;
      engines = std::make_shared<workflow::EnginePool>(std::move(options), settings.context);
      MJ_TRY(started, DeploymentThread::start(
                          stores, clock, settings.context,
                          [engines](const WorkflowSpec& spec, const WorkflowManifest& manifest,
                                    const StepRequest& request) { return engines->step(spec, manifest, request); },
                          settings.limits, coordinator_settings.metrics));
      deployments = std::move(started);
    }
    std::unique_ptr<ContextThread> context_thread(new ContextThread(
        std::move(flows), std::move(store), std::move(waiter), clock, std::move(settings), std::move(deployments)));
    context_thread->engines_ = std::move(engines);
    context_thread->router_ = std::move(router);
    context_thread->notifier_ = std::move(notifier);
    context_thread->prerequisites_ = std::move(prerequisites);
    context_thread->supervisor_ = std::move(supervisor);
    context_thread->file_cleanup_ = std::move(file_cleanup);
    MJ_CHECK(context_thread->thread_.started());
    return context_thread;
  }
  ~ContextThread() override {
    request_stop();
    thread_.stop();
  }
  void request_stop() {
    stop();
    notifier_->stop();
    supervisor_->stop();
    if (deployments_) deployments_->stop();
    if (engines_) engines_->stop();
    if (file_cleanup_) file_cleanup_->stop();
  }

  std::uint64_t run_once() {
    liveness_.mark_progress();
    const auto next = context_loop_.run_round();
    if (deployments_) deployments_->set_leader(context_loop_.is_leader());
    log_once(next ? nullptr : &next.error());
    return next ? *next : kStoreRetryDelayMs;
  }
  // Called by LoopThread after the last round. Gives up the leadership, so that another coordinator can acquire it.
  void ended() {
    if (deployments_) deployments_->set_leader(false);
    context_loop_.release();
  }
  const LivenessCounter& liveness() const { return liveness_; }
  bool is_store_unavailable() const { return unavailable_; }

 private:
  ContextThread(std::unique_ptr<FlowStore> flows, std::unique_ptr<Store> store, std::unique_ptr<Waiter> waiter,
                const Clock& clock, ContextSettings settings, std::unique_ptr<DeploymentThread> deployments)
      : ContextLoopBase(std::move(waiter), clock, hint_prefix(settings.context)),
        context_(settings.context),
        context_loop_(std::move(flows), std::move(store), clock, std::move(settings)),
        deployments_(std::move(deployments)) {}

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
  std::unique_ptr<FileCleanupLoop>
      file_cleanup_;  // the destructor may block on the disk, so it runs after those of the members below
  std::unique_ptr<DeploymentThread> deployments_;  // null if this coordinator runs no workflows
  std::shared_ptr<workflow::EnginePool> engines_;  // the engines of deployments_
  LivenessCounter liveness_;
  std::atomic<bool> unavailable_{false};
  std::unique_ptr<Router> router_;
  std::unique_ptr<Notifier> notifier_;
  std::unique_ptr<PrerequisiteLoop> prerequisites_;
  std::unique_ptr<Supervisor> supervisor_;
  LoopThread<ContextThread> thread_{*this};  // Last member: the thread uses all members above.
};

Coordinator::Coordinator(StoreFactory& stores, const Clock& clock, CoordinatorSettings settings)
    : stores_(stores), clock_(clock), settings_(std::move(settings)), instance_(random_hex(16)) {}

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
  return {};
}

void Coordinator::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& [context, thread] : threads_) thread->request_stop();
  }
  wake_.notify_all();
  if (discovery_thread_.joinable()) discovery_thread_.join();
  listener_.reset();
  std::lock_guard lock(mutex_);
  threads_.clear();
}

void Coordinator::replace_ceilings(const Ceilings& ceilings) {
  ceilings_.replace(std::make_shared<const Ceilings>(ceilings));
}

bool Coordinator::is_healthy() {
  start_discovery();
  std::lock_guard lock(mutex_);
  std::map<Id, std::uint64_t> current_counts;
  for (const auto& [context, thread] : threads_) current_counts[context] = thread->liveness().count();
  const bool has_progressed = std::all_of(current_counts.begin(), current_counts.end(), [&](const auto& entry) {
    const auto before = checked_counts_.find(entry.first);
    return before == checked_counts_.end() || before->second != entry.second;
  });
  if (has_progressed) checked_counts_ = std::move(current_counts);
  return has_progressed;
}

std::string Coordinator::unready_reason() const {
  std::lock_guard lock(mutex_);
  if (!has_started_) return "it is starting";
  if (discovery_failed_) return "Redis is unavailable";
  if (!unserved_contexts_.empty())
    return fmt::format("context {} cannot be served: {}", unserved_contexts_.begin()->first,
                       unserved_contexts_.begin()->second);
  std::vector<Id> unavailable_contexts;
  for (const auto& [context, thread] : threads_) {
    if (thread->is_store_unavailable()) unavailable_contexts.push_back(context);
  }
  return describe_unavailable_contexts(unavailable_contexts);
}

Result<void> Coordinator::try_to_serve(Id context) {
  auto result = serve(context);
  if (!result && result.error().code != Code::unavailable) return result;
  const std::lock_guard lock(mutex_);
  std::string reason = result ? "" : std::move(result).error().message;
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
  if (stopping_ || threads_.contains(context)) return {};
  ContextSettings settings;
  settings.context = context;
  settings.instance = instance_;
  settings.location = settings_.location;
  settings.lease_ms = settings_.lease_ms;
  settings.retention_ms = settings_.retention_ms;
  settings.limits = {settings_.ceilings.get(context), settings_.max_script_bytes};
  settings.limits.read_ceiling = [ceilings = ceilings_, context] { return ceilings.now()->get(context); };
  settings.metrics = settings_.metrics;
  MJ_TRY(thread, ContextThread::start(stores_, clock_, std::move(settings), settings_));
  threads_[context] = std::move(thread);
  log(LogLevel::info, "coordinator", "context {}: served", context);
  return {};
}

Result<void> Coordinator::serve_all_contexts() {
  start_listener();
  for (const Id context : settings_.contexts) MJ_CHECK(try_to_serve(context));
  if (!settings_.contexts.empty()) return {};
  for (const Id context : settings_.contexts_with_own_redis) MJ_CHECK(try_to_serve(context));
  MJ_TRY(server_info, discovery_store_->server_info());
  for (const Id context : server_info.used_databases) MJ_CHECK(try_to_serve(context));
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
