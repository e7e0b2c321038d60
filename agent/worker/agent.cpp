#include "worker/agent.h"

#include <algorithm>

#include "base/log.h"
#include "base/version.h"

namespace mycojobs {

Agent::Agent(Parts& parts, WorkerSettings settings)
    : settings_(std::move(settings)),
      clock_(parts.clock),
      self_(std::move(parts.self)),
      alive_(std::move(parts.alive)),
      executors_(std::move(parts.executors)),
      servers_(settings_.contexts, settings_.own_servers) {
  Runner& runner = settings_.runner;
  if (runner.topic.empty()) runner.topic = "runner" + std::to_string(runner.id);
  runner.version = kVersion;
  if (settings_.key) runner.pubkey = settings_.key->public_key();
  runner.slots = settings_.slots;
  runner.detail = kRunnerRunning;
  std::vector<const Executor*> all;
  for (const auto& executor : executors_) all.push_back(executor.get());
  for (const std::string& queue : queues_of(settings_, all)) {  // what it serves, by script type
    if (queue.starts_with("queue:")) runner.executors.push_back(queue.substr(6));
  }
}

Result<std::unique_ptr<Agent>> Agent::start(Parts parts, WorkerSettings settings) {
  std::unique_ptr<Agent> agent(new Agent(parts, std::move(settings)));
  MJ_CHECK(agent->open(parts));
  return agent;
}

Result<Store*> Agent::connect(StoreFactory& stores) {
  MJ_TRY(store, stores.open());
  return connections_.emplace_back(std::move(store)).get();
}

Result<void> Agent::open(Parts& parts) {
  MJ_TRY(registration, connect(parts.stores));
  registration_ = registration;
  auto registered = register_runner(*registration_, settings_, self_);
  while (!registered && registered.error().code == Code::unavailable && parts.try_again(registered.error()))
    registered = register_runner(*registration_, settings_, self_);
  MJ_TRY(gone, std::move(registered));
  registered_ = true;
  reconcile(*registration_, settings_, self_, gone);

  MJ_TRY(reporter_store, connect(parts.stores));
  MJ_TRY(lease_store, connect(parts.stores));
  MJ_TRY(housekeeping_store, connect(parts.stores));
  MJ_TRY(sweeping_store, connect(parts.stores));
  MJ_TRY(prerequisite_store, connect(parts.stores));
  MJ_TRY(intake_store, connect(parts.stores));
  Threads threads{*reporter_store, *lease_store,        *housekeeping_store,
                  *sweeping_store, *prerequisite_store, {*intake_store, {}, {}}};
  Intake::Parts& intake = threads.intake;
  std::vector<std::pair<Id, std::string>> queues;
  for (const auto& executor : executors_) intake.executors.push_back(executor.get());
  for (Id context : settings_.contexts) {
    for (const std::string& queue : queues_of(settings_, intake.executors)) queues.emplace_back(context, queue);
  }
  MJ_TRY(waiter, parts.stores.open_waiter(queues, settings_.runner.topic));
  intake.waiter = std::move(waiter);

  make_parts(parts, std::move(threads));
  start_threads();  // now that all whom a job comes by know one another
  return {};
}

// Nothing of this fails.
void Agent::make_parts(Parts& parts, Threads threads) {
  reporter_ = std::make_unique<Reporter>(
      threads.reporter, clock_, health_, servers_, Receipts(settings_.runner.id, settings_.key),
      Reporter::Callbacks{.settled =
                              [this](std::span<const RunNumber> runs) {
                                leases_->remove(runs);
                                intake_->settled(static_cast<std::uint32_t>(runs.size()));
                              },
                          // One job alone has nobody to wait for, however fast its caller sends the next.
                          .gather_us = [this] { return busy() > 1 ? pace_.gather_us(steady_us()) : 0U; },
                          .stale = [this](RunNumber run) { run_loop_->kill(run, KillReason::fenced); }});
  broker_ = std::make_unique<Broker>(
      parts.stores, [this](RunNumber run, std::string reply) { run_loop_->answer(run, std::move(reply)); });
  run_loop_ = std::make_unique<RunLoop>(
      std::move(parts.sandbox), clock_, settings_, pace_,
      RunLoop::Callbacks{.post = [this](Outgoing report) { reporter_->post(std::move(report)); },
                         .ask = [this](BrokerCall call) { broker_->ask(std::move(call)); },
                         .forget = [this](RunNumber run) { broker_->forget(run); },
                         .cannot_begin = [this](CannotBegin job) { intake_->cannot_begin(std::move(job)); },
                         .ending = [this] { intake_->settled(0); }});
  leases_ = std::make_unique<LeaseKeeper>(
      threads.leases, clock_, health_, servers_, settings_, self_,
      LeaseKeeper::Callbacks{.renewed =
                                 [this](RunNumber run, std::uint64_t fence) {
                                   if (settings_.kill_on_lease_lost) run_loop_->fence(run, fence);
                                 },
                             .stale = [this](RunNumber run) { run_loop_->kill(run, KillReason::fenced); },
                             .cancelled = [this](RunNumber run) { run_loop_->kill(run, KillReason::cancelled); },
                             .runner_lost =
                                 [this](const std::string& why) {
                                   if (!runner_lost_.exchange(true))
                                     log(LogLevel::error, "worker", "{}: draining", why);
                                 }});
  housekeeper_ = std::make_unique<Housekeeper>(threads.housekeeping, clock_, health_, servers_, settings_);
  sweeper_ = std::make_unique<Sweeper>(threads.sweeping, clock_, health_, settings_);
  prerequisites_ = std::make_unique<PrerequisiteChecker>(threads.prerequisites, clock_, health_, servers_, settings_);
  intake_ = std::make_unique<Intake>(
      std::move(threads.intake), clock_, health_, servers_, settings_, self_.instance,
      Intake::Callbacks{.may_start = [this] { return run_loop_->ready() && !runner_lost_; },
                        .start = [this](Start start) { run_loop_->start(std::move(start)); },
                        .report = [this](Outgoing report) { reporter_->post(std::move(report)); },
                        .claimed = [this](RunNumber run, const ClaimRef& claim) { leases_->add(run, claim); },
                        .heartbeat = [this] { leases_->beat_now(); },
                        .no_work = [this] { housekeeper_->hurry(); },
                        .ahead = [this] { return pace_.ahead(steady_us()) + slots_of_endings(); }});
}

void Agent::start_threads() {
  reporter_thread_.emplace(*reporter_);
  leases_thread_.emplace(*leases_);  // with a heartbeat: reconciling may have taken a while
  housekeeper_thread_.emplace(*housekeeper_);
  sweeper_thread_.emplace(*sweeper_);
  prerequisites_thread_.emplace(*prerequisites_);
  intake_thread_.emplace(*intake_);
}

Agent::~Agent() {
  // Whoever calls another stops before it.
  intake_thread_.reset();
  housekeeper_thread_.reset();
  prerequisites_thread_.reset();
  leases_thread_.reset();
  if (run_loop_) run_loop_->stop();
  broker_.reset();
  reporter_thread_.reset();
  run_loop_.reset();  // whoever finds the runner's id free finds no process of ours either
  if (registration_) sign_off();
  sweeper_thread_.reset();  // which may have to wait for a disk
}

void Agent::sign_off() {
  const Id id = settings_.runner.id;
  for (Id context : settings_.contexts) {
    Result<void> done;
    if (registered_ && !runner_lost_) done = mark_runner(*registration_, context, id, kRunnerStopped);
    if (done) done = registration_->release_runner(context, id, self_);  // only if it is ours
    if (!done) log(LogLevel::info, "worker", "runner {} not signed off: {}", id, done.error().message);
  }
}

// Whose end waits for others takes no slot; there are as many of these as slots at most.
std::uint32_t Agent::slots_of_endings() const {
  return static_cast<std::uint32_t>(std::min<std::size_t>(run_loop_->endings(), settings_.slots));
}

void Agent::drain() { intake_->drain(); }

void Agent::cancel_jobs() { run_loop_->cancel_all(); }

std::string Agent::why_not_ready() {
  if (runner_lost_) return "another agent has taken the id of this runner";
  if (intake_->draining()) return "draining";
  if (const std::vector<Id> away = health_.away(); !away.empty()) {
    std::string text = "the store is away, of context";
    for (const Id context : away) {
      if (context == 0) return "the store is away";
      text += ' ' + std::to_string(context);
    }
    return text;
  }
  return run_loop_->ready() ? "" : "no sandbox can be had: the log says why";
}

void Agent::measure() {
  Metrics& metrics = *settings_.metrics;
  metrics.set(Metric::ready, {}, why_not_ready().empty() ? 1 : 0);
  metrics.set(Metric::slots, {}, settings_.slots);
  metrics.set(Metric::jobs_held, {}, busy());
  for (const auto& [context, leases] : leases_->held())
    metrics.set(Metric::leases_held, {context}, static_cast<double>(leases));
}

bool Agent::is_healthy() {
  const std::array<std::uint64_t, 3> rounds{run_loop_->pulse().count(), intake_->pulse().count(),
                                            housekeeper_->pulse().count()};
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    if (rounds[i] == rounds_[i]) return run_loop_->wake(), false;  // the run loop alone sleeps for as long as it likes
  }
  rounds_ = rounds;
  return true;
}

}  // namespace mycojobs
