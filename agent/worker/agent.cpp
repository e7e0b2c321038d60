#include "worker/agent.h"

#include <algorithm>
#include <future>

#include "base/log.h"
#include "base/version.h"
#include "net/tls_errors.h"
#include "store/redis/format_version.h"
#include "worker/intake/store_lock_file_registry.h"

namespace mycojobs {
namespace {

template <class T>
Result<void> start_loop_thread(std::optional<LoopThread<T>>& thread, T& loop) {
  if (thread && thread->started()) return {};
  thread.emplace(loop);
  return thread->started();
}

}  // namespace

Agent::Agent(Dependencies& dependencies, WorkerSettings settings)
    : settings_(std::move(settings)),
      clock_(dependencies.clock),
      own_holder_(std::move(dependencies.own_holder)),
      instance_lock_(std::move(dependencies.instance_lock)),
      executors_(std::move(dependencies.executors)),
      previous_instances_(std::make_unique<InstanceFiles>(settings_.state_dir, settings_.runner.id), settings_,
                          own_holder_) {
  Runner& runner = settings_.runner;
  if (runner.topic.empty()) runner.topic = "runner" + std::to_string(runner.id);
  runner.version = kVersion;
  if (settings_.key) runner.pubkey = settings_.key->public_key();
  runner.slots = settings_.slots;
  runner.detail = kRunnerRunning;
  std::vector<const Executor*> executors;
  for (const auto& executor : executors_) executors.push_back(executor.get());
  // The queues of the script types name the types that the runner executes.
  for (const std::string& queue : list_runner_queues(settings_, executors, true)) {
    if (queue.starts_with("queue:")) runner.executors.push_back(queue.substr(6));
  }
}

Result<std::unique_ptr<Agent>> Agent::start(Dependencies dependencies, WorkerSettings settings) {
  std::unique_ptr<Agent> agent(new Agent(dependencies, std::move(settings)));
  MJ_CHECK(agent->initialize(dependencies));
  return agent;
}

Result<Store*> Agent::open_connection(StoreFactory& stores) {
  MJ_TRY(store, stores.open());
  return connections_.emplace_back(std::move(store)).get();
}

Result<void> Agent::initialize(Dependencies& dependencies) {
  const auto lock_file_registry = std::make_shared<StoreLockFileRegistry>(dependencies.stores);
  for (const auto& executor : executors_) executor->set_lock_file_registry(lock_file_registry);
  MJ_CHECK(create_shards(dependencies.stores));
  MJ_CHECK(register_runner_everywhere(dependencies));
  secrets_ = std::make_unique<SecretWatcher>(settings_.secrets, settings_.contexts, clock_);
  MJ_CHECK(secrets_->check_started());
  run_on_all_shards([](ServerShard& shard) -> Result<void> {
    if (!shard.registrar->is_registered()) return {};
    while (const std::uint64_t ms = shard.registrar->release_previous_jobs()) shard.registrar->wait_until_due(ms);
    return {};
  });

  create_run_loop(dependencies);
  MJ_CHECK(run_loop_->started());
  for (const auto& shard : shards_) MJ_CHECK(open_shard(*shard, dependencies.stores));
  MJ_TRY(cleanup_store, open_connection(dependencies.stores));
  MJ_CHECK(open_sweep(dependencies.stores));
  artifact_cleanup_ = std::make_unique<ArtifactCleanupLoop>(*cleanup_store, clock_, health_, settings_);
  return start_threads();  // must be the last step, since the threads use all other members
}

// Calls the function for all servers in parallel, for the first server on this thread.
std::vector<Result<void>> Agent::run_on_all_shards(const std::function<Result<void>(ServerShard&)>& operation) {
  std::vector<std::future<Result<void>>> futures;
  for (std::size_t i = 1; i < shards_.size(); ++i)
    futures.push_back(run_in_parallel([&operation, shard = shards_[i].get()] { return operation(*shard); }));
  std::vector<Result<void>> results{operation(*shards_.front())};
  for (auto& future : futures) results.push_back(future.get());
  return results;
}

// Registers the runner, on some servers perhaps later. A certificate that is rejected now may be renewed, or is valid
// when the clock of this host is set. A database that cannot be used must not end the agent for other contexts.
Result<void> Agent::register_runner_everywhere(Dependencies& dependencies) {
  const auto is_temporary = [this](const Error& error) {
    return error.code == Code::unavailable || can_certificate_become_valid(error) ||
           (shards_.size() > 1 && is_rejected_database_error(error));
  };
  for (;;) {
    const auto results = run_on_all_shards([](ServerShard& shard) { return shard.registrar->register_all(); });
    for (const auto& result : results) {
      if (!result && !is_temporary(result.error())) return result;
    }
    if (std::any_of(results.begin(), results.end(), [](const auto& result) { return result.has_value(); })) return {};
    if (!dependencies.should_retry(results.front().error())) return results.front();
  }
}

Result<void> Agent::create_shards(StoreFactory& stores) {
  std::map<std::size_t, ServerShard*> shards_by_server;
  for (const Id context : settings_.contexts) {
    const auto server = settings_.servers.find(context);
    const std::size_t number = server == settings_.servers.end() ? 0 : server->second;
    ServerShard*& shard = shards_by_server[number];
    if (shard == nullptr) {
      shard = shards_.emplace_back(std::make_unique<ServerShard>()).get();
      shard->settings = settings_;
      shard->settings.contexts.clear();
      shard->server_context = number == 0 ? 0 : context;
    }
    shard->settings.contexts.push_back(context);
    shards_by_context_[context] = shard;
  }
  for (const auto& shard : shards_) {
    MJ_TRY(store, open_connection(stores));
    shard->registrar = std::make_unique<Registrar>(
        *store, clock_, health_, shard->settings, own_holder_, previous_instances_, shard->server_context,
        Registrar::Callbacks{.on_registered = [this, shard = shard.get()] { return start_serving(*shard); },
                             .on_runner_lost = [this](const std::string& reason) { on_runner_lost(reason); }});
  }
  return {};
}

void Agent::create_run_loop(Dependencies& dependencies) {
  broker_ = std::make_unique<ObjectBroker>(
      dependencies.stores, [this](RunNumber run, std::string reply) { run_loop_->answer(run, std::move(reply)); });
  run_loop_ = std::make_unique<RunLoop>(
      std::move(dependencies.sandbox), clock_, settings_, run_rate_,
      RunLoop::Callbacks{
          .on_report =
              [this](RunReport report) {
                const Id context = get_claim(report.report).context;
                ServerShard& shard = find_shard(context);
                shard.maintenance->on_activity(context);
                report.awaits_upload = shard.uploads && EndUploads::has_artifacts(report);
                shard.reporter->post(std::move(report));
              },
          .on_call = [this](BrokerCall call) { broker_->submit(std::move(call)); },
          .on_run_reaped = [this](RunNumber run) { broker_->end_run(run); },
          .on_start_rejected =
              [this](StartRejected job) { find_shard(job.claim.context).intake->on_start_rejected(std::move(job)); },
          .on_slots_freed = [this] { on_slots_freed(); },
          .on_readiness_changed =
              [this] {
                for (const auto& shard : shards_) {
                  if (shard->is_serving) shard->leases->renew_now();
                }
              },
          .has_current_secrets =
              [this](Id context, const std::vector<Secret>& secrets) {
                return secrets_->are_current(context, secrets);
              },
          .fetch_inputs =
              [this](RunNumber run, std::vector<MissingInput> files, RunLoop::Callbacks::OnInputsEnd on_end) {
                const Id context = files.front().artifact.context;
                find_shard(context).input_fetcher->fetch(run, std::move(files), std::move(on_end));
              },
          .cancel_fetch =
              [this](RunNumber run) {
                for (const auto& shard : shards_) {
                  if (shard->input_fetcher) shard->input_fetcher->cancel(run);
                }
              }});
}

// Inputs are fetched only if there is a state_dir, since the records of jobs name no artifacts otherwise.
Result<void> Agent::open_transfers(ServerShard& shard, StoreFactory& stores) {
  if (settings_.state_dir.empty()) return {};
  MJ_TRY(store, open_connection(stores));
  TransferLoop::Settings transfer_settings;
  transfer_settings.contexts = shard.settings.contexts;
  transfer_settings.holder = settings_.runner.id;
  transfer_settings.state_dir = settings_.state_dir;
  transfer_settings.rate = settings_.transfer_rate;
  transfer_settings.links = settings_.file_links;
  transfer_settings.link_networks = settings_.link_networks;
  shard.transfers = std::make_unique<TransferLoop>(*store, std::move(transfer_settings), clock_, settings_.metrics);
  shard.input_source = std::make_unique<BucketSource>(settings_.bucket, *shard.transfers, settings_.metrics);
  shard.input_fetcher = std::make_unique<InputFetcher>(
      *shard.input_source, settings_.state_dir, ArtifactCache::Limits{settings_.cache_bytes, settings_.cache_age_ms});
  return shard.transfers->subscribe(stores);
}

Result<void> Agent::open_uploads(ServerShard& shard, StoreFactory& stores) {
  if (settings_.bucket == nullptr || settings_.state_dir.empty()) return {};
  MJ_TRY(store, open_connection(stores));
  shard.uploads = std::make_unique<EndUploads>(
      *store, settings_.bucket,
      EndUploads::Settings{shard.settings.contexts, settings_.runner.id, settings_.state_dir,
                           settings_.store_timeout_ms},
      clock_,
      EndUploads::Callbacks{.report = [&shard](RunReport report) { shard.reporter->post(std::move(report)); },
                            .on_adopted =
                                [&shard](RunNumber run, const ClaimRef& claim) {
                                  shard.intake->add_held_jobs(1);
                                  shard.leases->add(run, claim);
                                  shard.leases->renew_now();
                                }},
      settings_.metrics);
  return {};
}

// Objects do not outlive their records for long, and a round lists all objects.
Result<void> Agent::open_sweep(StoreFactory& stores) {
  constexpr std::uint64_t kMinIntervalMs = 10'000, kMaxIntervalMs = 900'000;
  if (settings_.bucket == nullptr || settings_.state_dir.empty()) return {};
  MJ_TRY(store, open_connection(stores));
  const std::uint64_t interval_ms =
      settings_.retention.shortest_ms() == 0
          ? kMaxIntervalMs
          : std::clamp(settings_.retention.shortest_ms() / 4, kMinIntervalMs, kMaxIntervalMs);
  bucket_sweep_ = std::make_unique<BucketSweep>(*store, settings_.bucket, clock_, settings_.contexts,
                                                settings_.state_dir, interval_ms);
  return {};
}

Result<void> Agent::open_shard(ServerShard& shard, StoreFactory& stores) {
  MJ_TRY(reporter_store, open_connection(stores));
  MJ_TRY(lease_store, open_connection(stores));
  MJ_TRY(maintenance_store, open_connection(stores));
  MJ_TRY(prerequisite_store, open_connection(stores));
  shard.reporter = std::make_unique<Reporter>(
      *reporter_store, clock_, health_, ReceiptSigner(settings_.runner.id, settings_.key),
      Reporter::Callbacks{
          .on_settled = [this, &shard](std::span<const RunNumber> runs) { on_jobs_settled(shard, runs); },
          // A single job does not benefit from gathering, however fast its caller sends the next one.
          .batch_delay_us =
              [this] { return count_busy_slots() > 1 ? run_rate_.report_batch_delay_us(steady_now_us()) : 0U; },
          .upload =
              [this, &shard](RunReport report) {
                shard.uploads->submit(std::move(report));
                on_slots_freed();
              },
          .on_stale =
              [this, &shard](RunNumber run) {
                run_loop_->kill(run, KillReason::fenced);
                if (shard.uploads) shard.uploads->on_stale(run);
              }});
  shard.leases = std::make_unique<LeaseKeeper>(
      *lease_store, clock_, health_, shard.settings, own_holder_,
      LeaseKeeper::Callbacks{.on_renewed =
                                 [this](RunNumber run, std::uint64_t fence) {
                                   if (settings_.kill_on_lease_lost) run_loop_->fence(run, fence);
                                 },
                             .on_stale =
                                 [this, &shard](RunNumber run) {
                                   run_loop_->kill(run, KillReason::fenced);
                                   if (shard.uploads) shard.uploads->on_stale(run);
                                 },
                             .on_cancelled =
                                 [this, &shard](RunNumber run) {
                                   run_loop_->kill(run, KillReason::cancelled);
                                   if (shard.uploads) shard.uploads->on_cancelled(run);
                                 },
                             .on_runner_lost = [this](const std::string& reason) { on_runner_lost(reason); },
                             .unready_reason = [this] { return run_loop_->unready_reason(); }});
  shard.prerequisites = std::make_unique<PrerequisiteChecker>(*prerequisite_store, clock_, health_, shard.settings);
  shard.maintenance =
      std::make_unique<MaintenanceLoop>(*maintenance_store, clock_, health_, shard.settings,
                                        [&shard](Id context) { shard.prerequisites->on_jobs_waiting(context); });
  MJ_CHECK(open_transfers(shard, stores));
  MJ_CHECK(open_uploads(shard, stores));
  return open_intake(shard, stores);
}

Result<void> Agent::open_intake(ServerShard& shard, StoreFactory& stores) {
  MJ_TRY(intake_store, open_connection(stores));
  Intake::Dependencies dependencies{*intake_store, {}, {}, *secrets_};
  for (const auto& executor : executors_) dependencies.executors.push_back(executor.get());
  // The record of the runner is unknown on a server that is unavailable; the settings apply there.
  const auto& registered_runners = shard.registrar->registered_runners();
  std::vector<std::pair<Id, std::string>> queues;
  for (const Id context : shard.settings.contexts) {
    const auto runner = registered_runners.find(context);
    const bool serves_queues =
        runner == registered_runners.end() ? settings_.runner.local : runner->second.serves_queues;
    for (const std::string& queue : list_runner_queues(settings_, dependencies.executors, serves_queues))
      queues.emplace_back(context, queue);
  }
  // The waiter receives hints for the topic of the first context only.
  const std::string topic =
      registered_runners.empty() ? settings_.runner.topic : registered_runners.begin()->second.topic;
  MJ_TRY(waiter, stores.open_waiter(queues, topic));
  dependencies.registered_runners = &registered_runners;
  dependencies.waiter = std::move(waiter);
  dependencies.topic = topic;
  dependencies.server_context = shard.server_context;
  dependencies.run_number_stride = shards_.size();
  while (shards_[dependencies.first_run_number - 1].get() != &shard) ++dependencies.first_run_number;
  shard.intake = std::make_unique<Intake>(
      std::move(dependencies), clock_, health_, shard.settings, own_holder_.instance,
      Intake::Callbacks{
          .can_start_runs = [this] { return run_loop_->can_start_runs() && !has_lost_runner_id_; },
          .start_job = [this](JobStart start) { run_loop_->start(std::move(start)); },
          .report = [&shard](RunReport report) { shard.reporter->post(std::move(report)); },
          .on_claimed =
              [&shard](RunNumber run, const ClaimRef& claim) {
                shard.leases->add(run, claim);
                shard.maintenance->on_activity(claim.context);
              },
          .request_heartbeat = [&shard] { shard.leases->renew_now(); },
          .on_wakeup_without_jobs = [&shard](Id context) { shard.maintenance->run_soon(context); },
          .claim_ahead_count = [this] { return run_rate_.claim_ahead_count(steady_now_us()) + count_ending_jobs(); },
          .count_uploading_jobs = [this] { return count_uploading_jobs(); },
          .count_other_jobs = [this, &shard] { return count_jobs_of_other_shards(shard); }});
  return {};
}

void Agent::on_jobs_settled(ServerShard& shard, std::span<const RunNumber> runs) {
  shard.leases->remove(runs);
  if (shard.uploads) shard.uploads->on_settled(runs);
  shard.intake->on_jobs_settled(static_cast<std::uint32_t>(runs.size()));
  for (const auto& other : shards_) {
    if (other.get() != &shard && other->is_serving) other->intake->on_slot_free();
  }
}

void Agent::on_slots_freed() {
  for (const auto& shard : shards_) {
    if (shard->is_serving) shard->intake->on_slot_free();
  }
}

std::uint32_t Agent::count_jobs_of_other_shards(const ServerShard& shard) const {
  std::uint32_t job_count = 0;
  for (const auto& other : shards_) job_count += other.get() == &shard ? 0 : other->intake->held_jobs();
  return job_count;
}

std::uint32_t Agent::count_busy_slots() const {
  std::uint32_t jobs = 0;
  std::uint32_t failing_uploads = 0;  // the next agent of the runner continues them
  for (const auto& shard : shards_) {
    jobs += shard->intake->held_or_requested_jobs();
    if (shard->uploads) failing_uploads += shard->uploads->failing_count();
  }
  return jobs - std::min(jobs, failing_uploads);
}

void Agent::on_runner_lost(const std::string& reason) {
  if (!has_lost_runner_id_.exchange(true)) log(LogLevel::error, "worker", "{}: draining", reason);
}

Result<void> Agent::start_threads() {
  for (const auto& shard : shards_) MJ_CHECK(start_loop_thread(shard->reporter_thread, *shard->reporter));
  MJ_CHECK(start_loop_thread(artifact_cleanup_thread_, *artifact_cleanup_));
  if (bucket_sweep_) MJ_CHECK(start_loop_thread(bucket_sweep_thread_, *bucket_sweep_));
  for (const auto& shard : shards_) {
    if (shard->registrar->is_registered()) {
      MJ_CHECK(start_serving(*shard));
    } else {
      MJ_CHECK(start_loop_thread(shard->registrar_thread, *shard->registrar));
    }
  }
  return {};
}

// Starts the threads of a server after the runner was registered there. If the server was unavailable before, this runs
// on the thread of its registrar. After an error it can be called again, and starts the missing threads.
Result<void> Agent::start_serving(ServerShard& shard) {
  // The lease keeper begins with a heartbeat, since releasing jobs can take a while.
  MJ_CHECK(start_loop_thread(shard.leases_thread, *shard.leases));
  MJ_CHECK(start_loop_thread(shard.maintenance_thread, *shard.maintenance));
  MJ_CHECK(start_loop_thread(shard.prerequisites_thread, *shard.prerequisites));
  if (shard.transfers) MJ_CHECK(start_loop_thread(shard.transfers_thread, *shard.transfers));
  if (shard.uploads) MJ_CHECK(start_loop_thread(shard.uploads_thread, *shard.uploads));
  shard.is_serving = true;  // from now on the intake is notified of free slots
  return start_loop_thread(shard.intake_thread, *shard.intake);
}

Agent::~Agent() {
  // Each part is stopped before the dependencies that it calls.
  for (const auto& shard : shards_) {
    if (shard->intake) shard->intake->stop();  // signals all intakes before the first one is waited for
    if (shard->registrar) shard->registrar->stop();
  }
  for (const auto& shard : shards_) shard->registrar_thread.reset();  // before the threads that it may start
  for (const auto& shard : shards_) shard->intake_thread.reset();
  for (const auto& shard : shards_) shard->maintenance_thread.reset();
  for (const auto& shard : shards_) shard->prerequisites_thread.reset();
  for (const auto& shard : shards_) shard->leases_thread.reset();
  if (run_loop_) run_loop_->stop();
  for (const auto& shard : shards_) {  // before the run loop, which they notify
    shard->transfers_thread.reset();
    if (shard->input_source) shard->input_source->stop();
    shard->uploads_thread.reset();
  }
  broker_.reset();
  for (const auto& shard : shards_) shard->reporter_thread.reset();
  run_loop_.reset();  // before the runner id is released, so that a new holder finds no process of this agent
  for (const auto& shard : shards_) {
    if (shard->registrar) shard->registrar->release_runner_ids(has_lost_runner_id_);
  }
  if (bucket_sweep_) bucket_sweep_->cancel_calls();
  bucket_sweep_thread_.reset();
  secrets_.reset();                  // can wait for a disk
  artifact_cleanup_thread_.reset();  // can wait for a disk
}

// Returns the number of jobs whose artifacts are being uploaded. They need no slot, but the disk of this host and a
// lease, so the number is bounded: further ones occupy slots.
std::uint32_t Agent::count_uploading_jobs() const {
  constexpr std::uint32_t kMaxUploadingJobs = 1000;
  std::uint32_t jobs = 0;
  for (const auto& shard : shards_) jobs += shard->uploads ? shard->uploads->slotless_count() : 0;
  return std::min(jobs, kMaxUploadingJobs);
}

// Returns the number of jobs that have no process left and still wait for the report of their end, at most the number
// of slots. These jobs need no slot, so as many further jobs may be claimed.
std::uint32_t Agent::count_ending_jobs() const {
  return static_cast<std::uint32_t>(std::min<std::size_t>(run_loop_->ending_count(), settings_.slots));
}

void Agent::drain() {
  for (const auto& shard : shards_) shard->intake->drain();
}

void Agent::return_jobs() { run_loop_->return_jobs(); }

void Agent::reload(const Ceilings& ceilings) {
  const auto shared_ceilings = std::make_shared<const Ceilings>(ceilings);
  for (const auto& shard : shards_) {
    shard->intake->replace_ceilings(shared_ceilings);
    shard->leases->replace_ceilings(shared_ceilings);
  }
  secrets_->request_rescan();
}

std::string Agent::unready_reason() {
  if (has_lost_runner_id_) return "another agent has taken the id of this runner, or its record has another key";
  if (std::any_of(shards_.begin(), shards_.end(), [](const auto& shard) { return shard->intake->draining(); }))
    return "draining";
  std::string unregistered;
  for (const auto& shard : shards_) {
    for (const Id context : shard->settings.contexts)
      unregistered += shard->is_serving ? "" : ' ' + std::to_string(context);
  }
  if (!unregistered.empty()) return "this runner is not registered yet in the store of context" + unregistered;
  if (std::string reason = describe_unavailable_contexts(health_.unavailable_contexts()); !reason.empty())
    return reason;
  for (const Id context : settings_.contexts) {
    if (!secrets_->get(context))
      return "the secrets of context " + std::to_string(context) + " are not read yet: see to the disk of secrets_dir";
  }
  return run_loop_->unready_reason();
}

void Agent::refresh_metrics() {
  Metrics& metrics = *settings_.metrics;
  metrics.set(Metric::ready, {}, unready_reason().empty() ? 1 : 0);
  metrics.set(Metric::slots, {}, settings_.slots);
  metrics.set(Metric::jobs_active, {}, count_busy_slots());
  for (const auto& shard : shards_) {
    for (const auto& [context, leases] : shard->leases->count_leases())
      metrics.set(Metric::leases_held, {context}, static_cast<double>(leases));
  }
}

bool Agent::is_healthy() {
  const std::uint64_t run_loop_iterations = run_loop_->liveness().count();
  bool has_progress = run_loop_iterations != last_run_loop_iterations_;
  for (const auto& shard : shards_) {
    if (!shard->is_serving) continue;
    has_progress = has_progress && shard->intake->liveness().count() != shard->last_intake_iterations &&
                   shard->maintenance->liveness().count() != shard->last_maintenance_iterations;
  }
  if (!has_progress) {
    run_loop_->wake();  // an idle run loop waits without a limit; it must make progress before the next check
    return false;
  }
  last_run_loop_iterations_ = run_loop_iterations;
  for (const auto& shard : shards_) {
    shard->last_intake_iterations = shard->intake->liveness().count();
    shard->last_maintenance_iterations = shard->maintenance->liveness().count();
  }
  return true;
}

}  // namespace mycojobs
