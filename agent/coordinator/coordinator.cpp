#include "coordinator/coordinator.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/live_value.h"
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
#include "store/redis/redis_flows.h"
#include "store/store_health.h"
#include "store/waiter_loop.h"
#include "text/utf8.h"
#include "workflows/deployment/deployment_thread.h"
#include "workflows/engine/engine_pool.h"

namespace mycojobs {
namespace {

// Checks the prerequisites of the jobs of a context (jobs/prerequisite_checks.h). Several coordinators may do so
// at the same time: each job is assigned to one of them.

class PrerequisiteLoop final : public TimedLoop {
 public:
  PrerequisiteLoop(std::unique_ptr<Store> store, const Clock& clock, Id context, PrerequisiteCheckSettings settings)
      : context_(context),
        store_(std::move(store)),
        check_state_(*store_, clock, std::move(settings)),
        log_once_("prerequisites", context) {}

  const Result<void>& started() const { return thread_.started(); }
  std::uint64_t run_once() {
    const auto again_ms = check_state_.look(context_);
    log_once_(again_ms ? nullptr : &again_ms.error());
    return again_ms.value_or(kUnavailableMs);
  }
  void wait_until_due(std::uint64_t ms) {
    check_state_.wait(wakeup_fd(), static_cast<std::uint32_t>(ms),
                      [this](Id, const Error& error) { log_once_(&error); });
    clear_wakeup();
  }

 private:
  static constexpr std::uint32_t kUnavailableMs = 500;

  Id context_;
  std::unique_ptr<Store> store_;
  PrerequisiteEvaluator check_state_;
  LogOnce log_once_;
  LoopThread<PrerequisiteLoop> thread_{*this};  // Last member: the thread uses all members above.
};

// Deletes files of messages and jobs that no longer exist. The thread does nothing else, since the disk may hang.
class FileCleanupLoop final : public TimedLoop {
 public:
  FileCleanupLoop(std::unique_ptr<Store> store, std::shared_ptr<ArtifactStore> files, Id context)
      : context_(context), store_(std::move(store)), files_(std::move(files)), log_once_("artifacts", context) {}

  const Result<void>& started() const { return thread_.started(); }
  std::uint64_t run_once() {
    const auto next_ms = files_->sweep(*store_, context_);
    log_once_(next_ms ? nullptr : &next_ms.error());
    return next_ms.value_or(kAgainMs);
  }

 private:
  static constexpr std::uint64_t kAgainMs = 5000;

  Id context_;
  std::unique_ptr<Store> store_;
  std::shared_ptr<ArtifactStore> files_;
  LogOnce log_once_;
  LoopThread<FileCleanupLoop> thread_{*this};  // Last member: the thread uses all members above.
};

// Returns a function that answers requests of remote supervisors, or of contexts of this host. The function must be
// used by one thread. gate: checks requests of remote hosts; null for requests of this host.
MyceliumListener::NodeRequestHandler answerer(StoreFactory& stores, const std::string& own_key,
                                              const MessageAttachments& files,
                                              const std::shared_ptr<InboundMessageFilter>& gate) {
  struct End {
    std::unique_ptr<Store> store;
    PublicKeyCache known;
  };
  auto end = std::make_shared<End>();
  return [&stores, own_key, files, end, gate](std::string_view request, const std::string& node) {
    if (!end->store) {
      auto opened = stores.open();
      if (!opened)
        return answer_rpc(request, kMaxRequestBytes, [&](std::string_view, const nlohmann::json&) {
          return Result<nlohmann::json>(tl::unexpected<Error>(opened.error()));
        });
      end->store = std::move(*opened);
    }
    MessageReceiver receiver(*end->store, end->known, own_key, files);
    if (gate) receiver.set_filter(*gate);
    return receiver.answer(request, node);
  };
}

SupervisorSettings supervisor_settings(StoreFactory& stores, const ContextSettings& context,
                                       const CoordinatorSettings& all) {
  SupervisorSettings made;
  made.messages = {context.context, all.key, all.key != nullptr, context.retention_ms, all.files, context.limits};
  if (!made.messages.key) made.messages.key = std::make_shared<const SigningKey>(SigningKey::make());
  made.concurrency = all.deliveries;
  const std::string own_key = made.messages.key->public_key();
  made.transports = [&stores, own_key, networks = all.networks, url = all.mycelium_url, files = all.files] {
    const auto answers = answerer(stores, own_key, files, nullptr);
    const RequestHandler here = [answers](std::string_view request) { return answers(request, ""); };
    return std::make_unique<Transports>(here, networks, url);
  };
  return made;
}

constexpr std::uint32_t kUnavailableMs = 250;  // pause between attempts to reach an unavailable store

class ContextThread final : public ContextLoopBase {
 public:
  static Result<std::unique_ptr<ContextThread>> start(StoreFactory& stores, const Clock& clock,
                                                      ContextSettings settings, const CoordinatorSettings& all) {
    MJ_TRY(flows, stores.open_flows());
    MJ_TRY(store, stores.open());
    MJ_TRY(waiter, stores.open_waiter({{settings.context, ""}}, kFlowDueTopic));
    RouterSettings routes;
    routes.context = settings.context;
    routes.networks = all.networks;
    routes.key = all.key;
    routes.files = all.files;
    routes.concurrency = all.deliveries;
    MJ_TRY(router, Router::start(stores, clock, routes));
    MJ_TRY(notifier,
           Notifier::start(stores, clock, {settings.context, all.webhooks, all.webhook_secrets, settings.limits}));
    MJ_TRY(supervisor, Supervisor::start(stores, clock, supervisor_settings(stores, settings, all)));
    // Without an allow-list the prerequisites are left to agents, which may have one.
    std::unique_ptr<PrerequisiteLoop> prerequisites;
    if (!all.allowed_prerequisites.empty()) {
      MJ_TRY(looking, stores.open());
      prerequisites = std::make_unique<PrerequisiteLoop>(
          std::move(looking), clock, settings.context,
          PrerequisiteCheckSettings{CheckerRole::coordinator, all.allowed_prerequisites, all.prerequisites_timeout_ms});
      MJ_CHECK(prerequisites->started());
    }
    std::unique_ptr<FileCleanupLoop> tidy;
    if (all.files.store) {
      MJ_TRY(tidied, stores.open());
      tidy = std::make_unique<FileCleanupLoop>(std::move(tidied), all.files.store, settings.context);
      MJ_CHECK(tidy->started());
    }
    std::unique_ptr<DeploymentThread> deployments;
    std::shared_ptr<workflow::Engines> engines;
    if (!all.workflow_host.empty()) {
      workflow::EngineOptions options;
      options.program = all.workflow_host;
      options.processes = StepShares().threads;
      engines = std::make_shared<workflow::Engines>(std::move(options), settings.context);
      MJ_TRY(started, DeploymentThread::start(
                          stores, clock, settings.context,
                          [engines](const WorkflowSpec& spec, const WorkflowManifest& manifest,
                                    const StepRequest& request) { return engines->step(spec, manifest, request); },
                          settings.limits, all.metrics));
      deployments = std::move(started);
    }
    std::unique_ptr<ContextThread> made(new ContextThread(std::move(flows), std::move(store), std::move(waiter), clock,
                                                          std::move(settings), std::move(deployments)));
    made->engines_ = std::move(engines);
    made->router_ = std::move(router);
    made->notifier_ = std::move(notifier);
    made->prerequisites_ = std::move(prerequisites);
    made->supervisor_ = std::move(supervisor);
    made->tidy_ = std::move(tidy);
    MJ_CHECK(made->thread_.started());
    return made;
  }
  ~ContextThread() override {
    ask_to_stop();
    thread_.stop();
  }
  void ask_to_stop() {
    stop();
    notifier_->ask_to_stop();
    supervisor_->ask_to_stop();
    if (deployments_) deployments_->stop();
    if (engines_) engines_->stop();
    if (tidy_) tidy_->stop();
  }

  std::uint64_t run_once() {
    liveness_.mark_progress();
    const auto next = rounds_.round();
    if (deployments_) deployments_->set_leads(rounds_.is_leader());
    log_once(next ? nullptr : &next.error());
    return next ? *next : kUnavailableMs;
  }
  void ended() {
    if (deployments_) deployments_->set_leads(false);
    rounds_.release();
  }
  const LivenessCounter& pulse() const { return liveness_; }
  bool away() const { return unavailable_; }

 private:
  ContextThread(std::unique_ptr<FlowStore> flows, std::unique_ptr<Store> store, std::unique_ptr<Waiter> waiter,
                const Clock& clock, ContextSettings settings, std::unique_ptr<DeploymentThread> deployments)
      : ContextLoopBase(std::move(waiter), clock, hints_of(settings.context)),
        context_(settings.context),
        rounds_(std::move(flows), std::move(store), clock, std::move(settings)),
        deployments_(std::move(deployments)) {}

  void on_hint(std::string_view hint) override {
    std::uint64_t flow = 0;
    if (parse_u64(hint, flow) && flow <= UINT32_MAX) rounds_.hint(static_cast<Id>(flow));
  }
  void reconnected() override { rounds_.reconnected(); }
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
  ContextLoop rounds_;
  std::unique_ptr<FileCleanupLoop> tidy_;          // destroyed after the threads below, since it may wait for a disk
  std::unique_ptr<DeploymentThread> deployments_;  // null: this coordinator runs no workflows
  std::shared_ptr<workflow::Engines> engines_;     // the engines of deployments_
  LivenessCounter liveness_;
  std::atomic<bool> unavailable_{false};
  std::unique_ptr<Router> router_;
  std::unique_ptr<Notifier> notifier_;
  std::unique_ptr<PrerequisiteLoop> prerequisites_;
  std::unique_ptr<Supervisor> supervisor_;
  LoopThread<ContextThread> thread_{*this};  // Last member: the thread uses all members above.
};

class CoordinatorImpl final : public Coordinator {
 public:
  CoordinatorImpl(StoreFactory& stores, const Clock& clock, CoordinatorSettings settings)
      : stores_(stores), clock_(clock), settings_(std::move(settings)), instance_(random_hex(16)) {}
  ~CoordinatorImpl() override { stop(); }

  Result<void> begin() override {
    if (settings_.contexts.empty()) {
      MJ_TRY(store, stores_.open());
      finder_store_ = std::move(store);
    }
    if (auto found = find(); !found) {
      if (found.error().code != Code::unavailable) return found;
      log(LogLevel::error, "coordinator", "scanning for contexts failed: {} (retrying)", found.error().message);
      blind_ = true;
    }
    pending_report_ = true;
    start_finder();
    return {};
  }
  void stop() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      for (auto& [context, thread] : threads_) thread->ask_to_stop();
    }
    wake_.notify_all();
    if (finder_.joinable()) finder_.join();
    listener_.reset();
    std::lock_guard lock(mutex_);
    threads_.clear();
  }
  void replace_ceilings(const Ceilings& ceilings) override {
    ceilings_.replace(std::make_shared<const Ceilings>(ceilings));
  }
  bool is_healthy() override {
    start_finder();
    std::lock_guard lock(mutex_);
    std::map<Id, std::uint64_t> now;
    for (const auto& [context, thread] : threads_) now[context] = thread->pulse().count();
    const bool all = std::all_of(now.begin(), now.end(), [&](const auto& each) {
      const auto before = seen_.find(each.first);
      return before == seen_.end() || before->second != each.second;
    });
    if (all) seen_ = std::move(now);
    return all;
  }
  std::string unready_reason() const override {
    std::lock_guard lock(mutex_);
    if (!pending_report_) return "it is starting";
    if (blind_) return "the store is away";
    if (!unserved_.empty())
      return fmt::format("context {} cannot be served: {}", unserved_.begin()->first, unserved_.begin()->second);
    std::string away;
    for (const auto& [context, thread] : threads_) {
      if (thread->away()) away += ' ' + std::to_string(context);
    }
    return away.empty() ? "" : "the store is away, of context" + away;
  }

  void measure() const override { settings_.metrics->set(Metric::ready, {}, unready_reason().empty() ? 1 : 0); }

 private:
  // Records the reason if the context cannot be served. `unavailable` is not returned, so that other contexts are
  // served.
  Result<void> try_to_serve(Id context) {
    auto served = serve(context);
    if (!served && served.error().code != Code::unavailable) return served;
    const std::lock_guard lock(mutex_);
    std::string why = served ? "" : std::move(served).error().message;
    const auto before = unserved_.find(context);
    if (!why.empty() && (before == unserved_.end() || before->second != why))
      log(LogLevel::error, "coordinator", "context {}: cannot be served: {} (retrying)", context, why);
    if (why.empty()) {
      unserved_.erase(context);
    } else {
      unserved_[context] = std::move(why);
    }
    return {};
  }
  Result<void> serve(Id context) {
    std::lock_guard lock(mutex_);
    if (stopping_ || threads_.contains(context)) return {};
    ContextSettings settings;
    settings.context = context;
    settings.instance = instance_;
    settings.where = settings_.where;
    settings.lease_ms = settings_.lease_ms;
    settings.retention_ms = settings_.retention_ms;
    settings.limits = {settings_.ceilings.of(context), settings_.max_script_bytes};
    settings.limits.read_ceiling = [ceilings = ceilings_, context] { return ceilings.now()->of(context); };
    settings.metrics = settings_.metrics;
    MJ_TRY(thread, ContextThread::start(stores_, clock_, std::move(settings), settings_));
    threads_[context] = std::move(thread);
    log(LogLevel::info, "coordinator", "context {}: served", context);
    return {};
  }
  Result<void> find() {
    start_listener();
    for (const Id context : settings_.contexts) MJ_CHECK(try_to_serve(context));
    if (!settings_.contexts.empty()) return {};
    for (const Id context : settings_.own_servers) MJ_CHECK(try_to_serve(context));
    MJ_TRY(facts, finder_store_->facts());
    for (const Id context : facts.used) MJ_CHECK(try_to_serve(context));
    return {};
  }
  void start_listener() {
    if (!settings_.key || settings_.mycelium_url.empty() || (listener_ && listener_->started())) return;
    listener_ = std::make_unique<MyceliumListener>(
        settings_.mycelium_url, answerer(stores_, settings_.key->public_key(), settings_.files,
                                         std::make_shared<InboundMessageFilter>(
                                             clock_, settings_.contexts, settings_.own_servers, settings_.metrics)));
  }
  // Starts the search thread, unless all contexts are configured and served.
  void start_finder() {
    const std::lock_guard lock(mutex_);
    if (!pending_report_ || stopping_ || finder_.joinable()) return;  // the finder may be changing listener_
    const bool all_served = unserved_.empty() && (!listener_ || listener_->started());
    if (!settings_.contexts.empty() && all_served) return;
    auto thread = start_thread([this] { find_contexts(); });
    if (thread) {
      finder_ = std::move(*thread);
      return;
    }
    if (!std::exchange(no_finder_, true))
      log(LogLevel::error, "coordinator", "the thread that scans for contexts did not start: {} (retrying)",
          thread.error().message);
  }
  void find_contexts() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(settings_.discover_ms), [this] { return stopping_; })) {
      lock.unlock();
      const auto found = find();
      if (!found) log(LogLevel::warn, "coordinator", "scanning for contexts failed: {}", found.error().message);
      lock.lock();
      blind_ = !found;
    }
  }

  StoreFactory& stores_;
  const Clock& clock_;
  const CoordinatorSettings settings_;
  LiveValue<Ceilings> ceilings_{std::make_shared<const Ceilings>(settings_.ceilings)};
  const std::string instance_;
  std::unique_ptr<Store> finder_store_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false, pending_report_ = false;
  bool blind_ = false;      // the last search for contexts failed
  bool no_finder_ = false;  // the search thread could not be created, and this was logged
  std::map<Id, std::unique_ptr<ContextThread>> threads_;
  std::map<Id, std::string> unserved_;  // contexts that are not served, with the reason
  // Round counts at the latest check in which all contexts had made progress.
  mutable std::map<Id, std::uint64_t> seen_;
  std::thread finder_;
  std::unique_ptr<MyceliumListener> listener_;  // null: no Mycelium node is configured
};

}  // namespace

std::unique_ptr<Coordinator> Coordinator::make(StoreFactory& stores, const Clock& clock, CoordinatorSettings settings) {
  return std::make_unique<CoordinatorImpl>(stores, clock, std::move(settings));
}

Result<std::unique_ptr<Coordinator>> Coordinator::start(StoreFactory& stores, const Clock& clock,
                                                        CoordinatorSettings settings) {
  auto coordinator = make(stores, clock, std::move(settings));
  MJ_CHECK(coordinator->begin());
  return coordinator;
}

}  // namespace mycojobs
