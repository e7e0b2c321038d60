#include "worker/agent.h"

#include <algorithm>
#include <future>

#include "base/log.h"
#include "base/version.h"

namespace mycojobs {
namespace {

template <class T>
Result<void> begin_turns(std::optional<LoopThread<T>>& thread, T& of) {
  if (thread && thread->started()) return {};
  thread.emplace(of);
  return thread->started();
}

}  // namespace

Agent::Agent(Dependencies& parts, WorkerSettings settings)
    : settings_(std::move(settings)),
      clock_(parts.clock),
      self_(std::move(parts.self)),
      alive_(std::move(parts.alive)),
      executors_(std::move(parts.executors)),
      former_(std::make_unique<InstanceFiles>(settings_.state_dir, settings_.runner.id), settings_, self_) {
  Runner& runner = settings_.runner;
  if (runner.topic.empty()) runner.topic = "runner" + std::to_string(runner.id);
  runner.version = kVersion;
  if (settings_.key) runner.pubkey = settings_.key->public_key();
  runner.slots = settings_.slots;
  runner.detail = kRunnerRunning;
  std::vector<const Executor*> all;
  for (const auto& executor : executors_) all.push_back(executor.get());
  // The queues of the script types name the types that the runner executes.
  for (const std::string& queue : queues_of(settings_, all, true)) {
    if (queue.starts_with("queue:")) runner.executors.push_back(queue.substr(6));
  }
}

Result<std::unique_ptr<Agent>> Agent::start(Dependencies parts, WorkerSettings settings) {
  std::unique_ptr<Agent> agent(new Agent(parts, std::move(settings)));
  MJ_CHECK(agent->open(parts));
  return agent;
}

Result<Store*> Agent::connect(StoreFactory& stores) {
  MJ_TRY(store, stores.open());
  return connections_.emplace_back(std::move(store)).get();
}

Result<void> Agent::open(Dependencies& parts) {
  MJ_CHECK(make_sides(parts.stores));
  MJ_CHECK(register_runner_everywhere(parts));
  secrets_ = std::make_unique<SecretsWatch>(settings_.secrets, settings_.contexts, clock_);
  MJ_CHECK(secrets_->started());
  run_on_all_shards([](ServerShard& shard) -> Result<void> {
    if (!shard.registrar->registered()) return {};
    while (const std::uint64_t ms = shard.registrar->give_back()) shard.registrar->wait_until_due(ms);
    return {};
  });

  make_run_loop(parts);
  MJ_CHECK(run_loop_->started());
  for (const auto& shard : shards_) MJ_CHECK(open(*shard, parts.stores));
  MJ_TRY(sweeping_store, connect(parts.stores));
  sweeper_ = std::make_unique<Sweeper>(*sweeping_store, clock_, health_, settings_);
  return start_threads();  // last, since the threads use all parts
}

// Calls the function for all servers in parallel, for the first server on this thread.
std::vector<Result<void>> Agent::run_on_all_shards(const std::function<Result<void>(ServerShard&)>& what) {
  std::vector<std::future<Result<void>>> others;
  for (std::size_t i = 1; i < shards_.size(); ++i)
    others.push_back(run_in_parallel([&what, shard = shards_[i].get()] { return what(*shard); }));
  std::vector<Result<void>> done{what(*shards_.front())};
  for (auto& each : others) done.push_back(each.get());
  return done;
}

Result<void> Agent::register_runner_everywhere(Dependencies& parts) {
  for (;;) {
    const auto entered = run_on_all_shards([](ServerShard& shard) { return shard.registrar->enter(); });
    for (const auto& each : entered) {
      if (!each && each.error().code != Code::unavailable) return each;
    }
    if (std::any_of(entered.begin(), entered.end(), [](const auto& each) { return each.has_value(); })) return {};
    if (!parts.try_again(entered.front().error())) return entered.front();
  }
}

Result<void> Agent::make_sides(StoreFactory& stores) {
  const auto& own = settings_.own_servers;
  ServerShard* shared = nullptr;
  for (const Id context : settings_.contexts) {
    const bool alone = std::find(own.begin(), own.end(), context) != own.end();
    ServerShard* shard = alone ? nullptr : shared;
    if (shard == nullptr) {
      shard = shards_.emplace_back(std::make_unique<ServerShard>()).get();
      shard->settings = settings_;
      shard->settings.contexts.clear();
      if (alone) {
        shard->server_of = context;
      } else {
        shared = shard;
      }
    }
    shard->settings.contexts.push_back(context);
    side_of_[context] = shard;
  }
  for (const auto& shard : shards_) {
    MJ_TRY(store, connect(stores));
    shard->registrar = std::make_unique<Registrar>(
        *store, clock_, health_, shard->settings, self_, former_, shard->server_of,
        Registrar::Callbacks{.registered = [this, of = shard.get()] { return start_serving(*of); },
                             .runner_lost = [this](const std::string& why) { on_runner_lost(why); }});
  }
  return {};
}

void Agent::make_run_loop(Dependencies& parts) {
  broker_ = std::make_unique<Broker>(
      parts.stores, [this](RunNumber run, std::string reply) { run_loop_->answer(run, std::move(reply)); });
  run_loop_ = std::make_unique<RunLoop>(
      std::move(parts.sandbox), clock_, settings_, pace_,
      RunLoop::Callbacks{
          .post =
              [this](RunReport report) { shard_of(claim_of(report.report).context).reporter->post(std::move(report)); },
          .ask = [this](BrokerCall call) { broker_->ask(std::move(call)); },
          .forget = [this](RunNumber run) { broker_->forget(run); },
          .cannot_begin =
              [this](StartRejected job) { shard_of(job.claim.context).intake->cannot_begin(std::move(job)); },
          .ending = [this] { on_capacity(); },
          .paused =
              [this] {
                for (const auto& shard : shards_) {
                  if (shard->serves) shard->leases->renew_now();
                }
              },
          .has_secrets = [this](Id context,
                                const std::vector<Secret>& given) { return secrets_->has(context, given); }});
}

Result<void> Agent::open(ServerShard& shard, StoreFactory& stores) {
  MJ_TRY(reporter_store, connect(stores));
  MJ_TRY(lease_store, connect(stores));
  MJ_TRY(housekeeping_store, connect(stores));
  MJ_TRY(prerequisite_store, connect(stores));
  shard.reporter = std::make_unique<Reporter>(
      *reporter_store, clock_, health_, Receipts(settings_.runner.id, settings_.key),
      Reporter::Callbacks{.settled = [this, &shard](std::span<const RunNumber> runs) { on_jobs_settled(shard, runs); },
                          // A single job does not benefit from gathering, however fast its caller sends the next one.
                          .gather_us = [this] { return busy() > 1 ? pace_.report_batch_us(steady_us()) : 0U; },
                          .stale = [this](RunNumber run) { run_loop_->kill(run, KillReason::fenced); }});
  shard.leases = std::make_unique<LeaseKeeper>(
      *lease_store, clock_, health_, shard.settings, self_,
      LeaseKeeper::Callbacks{.renewed =
                                 [this](RunNumber run, std::uint64_t fence) {
                                   if (settings_.kill_on_lease_lost) run_loop_->fence(run, fence);
                                 },
                             .stale = [this](RunNumber run) { run_loop_->kill(run, KillReason::fenced); },
                             .cancelled = [this](RunNumber run) { run_loop_->kill(run, KillReason::cancelled); },
                             .runner_lost = [this](const std::string& why) { on_runner_lost(why); },
                             .why_not_ready = [this] { return run_loop_->why_not_ready(); }});
  shard.housekeeper = std::make_unique<MaintenanceLoop>(*housekeeping_store, clock_, health_, shard.settings);
  shard.prerequisites = std::make_unique<PrerequisiteChecker>(*prerequisite_store, clock_, health_, shard.settings);
  return open_intake(shard, stores);
}

Result<void> Agent::open_intake(ServerShard& shard, StoreFactory& stores) {
  MJ_TRY(intake_store, connect(stores));
  Intake::Dependencies parts{*intake_store, {}, {}, *secrets_};
  for (const auto& executor : executors_) parts.executors.push_back(executor.get());
  // The record of the runner is unknown on a server that is unavailable; the settings apply there.
  const auto& registered = shard.registrar->runners();
  std::vector<std::pair<Id, std::string>> queues;
  for (const Id context : shard.settings.contexts) {
    const auto found = registered.find(context);
    const bool takes_queues = found == registered.end() ? settings_.runner.local : found->second.takes_queues;
    for (const std::string& queue : queues_of(settings_, parts.executors, takes_queues))
      queues.emplace_back(context, queue);
  }
  // The waiter receives hints for the topic of the first context only. Other topics are checked every half second.
  const std::string topic = registered.empty() ? settings_.runner.topic : registered.begin()->second.topic;
  MJ_TRY(waiter, stores.open_waiter(queues, topic));
  parts.registered = &registered;
  parts.waiter = std::move(waiter);
  parts.server_of = shard.server_of;
  parts.run_step = shards_.size();
  while (shards_[parts.first_run - 1].get() != &shard) ++parts.first_run;
  shard.intake = std::make_unique<Intake>(
      std::move(parts), clock_, health_, shard.settings, self_.instance,
      Intake::Callbacks{.may_start = [this] { return run_loop_->ready() && !runner_lost_; },
                        .start = [this](JobStart start) { run_loop_->start(std::move(start)); },
                        .report = [&shard](RunReport report) { shard.reporter->post(std::move(report)); },
                        .claimed = [&shard](RunNumber run, const ClaimRef& claim) { shard.leases->add(run, claim); },
                        .heartbeat = [&shard] { shard.leases->renew_now(); },
                        .no_work = [&shard] { shard.housekeeper->run_soon(); },
                        .ahead = [this] { return pace_.claim_ahead_count(steady_us()) + slots_of_endings(); },
                        .others = [this, &shard] { return jobs_of_other_shards(shard); }});
  return {};
}

void Agent::on_jobs_settled(ServerShard& shard, std::span<const RunNumber> runs) {
  shard.leases->remove(runs);
  shard.intake->on_jobs_settled(static_cast<std::uint32_t>(runs.size()));
  for (const auto& other : shards_) {
    if (other.get() != &shard && other->serves) other->intake->on_slot_free();
  }
}

void Agent::on_capacity() {
  for (const auto& shard : shards_) {
    if (shard->serves) shard->intake->on_slot_free();
  }
}

std::uint32_t Agent::jobs_of_other_shards(const ServerShard& shard) const {
  std::uint32_t jobs = 0;
  for (const auto& each : shards_) jobs += each.get() == &shard ? 0 : each->intake->jobs();
  return jobs;
}

std::uint32_t Agent::busy() const {
  std::uint32_t jobs = 0;
  for (const auto& shard : shards_) jobs += shard->intake->busy();
  return jobs;
}

void Agent::on_runner_lost(const std::string& why) {
  if (!runner_lost_.exchange(true)) log(LogLevel::error, "worker", "{}: draining", why);
}

Result<void> Agent::start_threads() {
  for (const auto& shard : shards_) MJ_CHECK(begin_turns(shard->reporter_thread, *shard->reporter));
  MJ_CHECK(begin_turns(sweeper_thread_, *sweeper_));
  for (const auto& shard : shards_) {
    if (shard->registrar->registered()) {
      MJ_CHECK(start_serving(*shard));
    } else {
      MJ_CHECK(begin_turns(shard->registrar_thread, *shard->registrar));
    }
  }
  return {};
}

// Starts the threads of a server after the runner was registered there. If the server was unavailable before, this runs
// on the thread of its registrar. After an error it can be called again, and starts the missing threads.
Result<void> Agent::start_serving(ServerShard& shard) {
  // The lease keeper begins with a heartbeat, since releasing jobs can take a while.
  MJ_CHECK(begin_turns(shard.leases_thread, *shard.leases));
  MJ_CHECK(begin_turns(shard.housekeeper_thread, *shard.housekeeper));
  MJ_CHECK(begin_turns(shard.prerequisites_thread, *shard.prerequisites));
  shard.serves = true;  // from here on the intake is notified of free slots
  return begin_turns(shard.intake_thread, *shard.intake);
}

Agent::~Agent() {
  // Each part is stopped before the parts that it calls.
  for (const auto& shard : shards_) {
    if (shard->intake) shard->intake->stop();  // signals all intakes before the first one is waited for
    if (shard->registrar) shard->registrar->stop();
  }
  for (const auto& shard : shards_) shard->registrar_thread.reset();  // before the threads that it may start
  for (const auto& shard : shards_) shard->intake_thread.reset();
  for (const auto& shard : shards_) shard->housekeeper_thread.reset();
  for (const auto& shard : shards_) shard->prerequisites_thread.reset();
  for (const auto& shard : shards_) shard->leases_thread.reset();
  if (run_loop_) run_loop_->stop();
  broker_.reset();
  for (const auto& shard : shards_) shard->reporter_thread.reset();
  run_loop_.reset();  // before the runner id is released, so that a new holder finds no process of this agent
  for (const auto& shard : shards_) {
    if (shard->registrar) shard->registrar->sign_off(runner_lost_);
  }
  secrets_.reset();         // can wait for a disk
  sweeper_thread_.reset();  // can wait for a disk
}

// Returns the number of jobs that have no process left and still wait for the report of their end. They need no slot,
// so as many jobs may be claimed in addition, up to the number of slots.
std::uint32_t Agent::slots_of_endings() const {
  return static_cast<std::uint32_t>(std::min<std::size_t>(run_loop_->endings(), settings_.slots));
}

void Agent::drain() {
  for (const auto& shard : shards_) shard->intake->drain();
}

void Agent::return_jobs() { run_loop_->return_jobs(); }

void Agent::reload(const Ceilings& ceilings) {
  const auto shared = std::make_shared<const Ceilings>(ceilings);
  for (const auto& shard : shards_) {
    shard->intake->replace_ceilings(shared);
    shard->leases->replace_ceilings(shared);
  }
  secrets_->rescan_now();
}

std::string Agent::unready_reason() {
  if (runner_lost_) return "another agent has taken the id of this runner, or its record has another key";
  if (std::any_of(shards_.begin(), shards_.end(), [](const auto& shard) { return shard->intake->draining(); }))
    return "draining";
  std::string outside;
  for (const auto& shard : shards_) {
    for (const Id context : shard->settings.contexts) outside += shard->serves ? "" : ' ' + std::to_string(context);
  }
  if (!outside.empty()) return "this runner is not registered yet in the store of context" + outside;
  if (const std::vector<Id> away = health_.unavailable_contexts(); !away.empty()) {
    std::string text = "the store is away, of context";
    for (const Id context : away) {
      if (context == 0) return "the store is away";
      text += ' ' + std::to_string(context);
    }
    return text;
  }
  for (const Id context : settings_.contexts) {
    if (!secrets_->of(context))
      return "the secrets of context " + std::to_string(context) + " are not read yet: see to the disk of secrets_dir";
  }
  return run_loop_->why_not_ready();
}

void Agent::measure() {
  Metrics& metrics = *settings_.metrics;
  metrics.set(Metric::ready, {}, unready_reason().empty() ? 1 : 0);
  metrics.set(Metric::slots, {}, settings_.slots);
  metrics.set(Metric::jobs_held, {}, busy());
  for (const auto& shard : shards_) {
    for (const auto& [context, leases] : shard->leases->held())
      metrics.set(Metric::leases_held, {context}, static_cast<double>(leases));
  }
}

bool Agent::is_healthy() {
  const std::uint64_t rounds = run_loop_->pulse().count();
  if (rounds == rounds_) return run_loop_->wake(), false;  // the run loop can wait without a limit
  for (const auto& shard : shards_) {
    if (shard->serves &&
        (shard->intake->pulse().count() == shard->rounds[0] || shard->housekeeper->pulse().count() == shard->rounds[1]))
      return run_loop_->wake(), false;
  }
  rounds_ = rounds;
  for (const auto& shard : shards_)
    shard->rounds = {shard->intake->pulse().count(), shard->housekeeper->pulse().count()};
  return true;
}

}  // namespace mycojobs
