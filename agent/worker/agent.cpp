#include "worker/agent.h"

#include "base/log.h"
#include "base/version.h"
#include "worker/registration.h"

namespace mycojobs {

Agent::Agent(Parts& parts, WorkerSettings settings)
    : settings_(std::move(settings)),
      clock_(parts.clock),
      self_(describe_self()),
      executors_(std::move(parts.executors)) {
  Runner& runner = settings_.runner;
  if (runner.topic.empty()) runner.topic = "runner" + std::to_string(runner.id);
  runner.version = kVersion;
  runner.slots = settings_.slots;
  runner.detail = "running";
  for (const auto& executor : executors_) runner.executors.emplace_back(executor->name());
}

Result<std::unique_ptr<Agent>> Agent::start(Parts parts, WorkerSettings settings) {
  std::unique_ptr<Agent> agent(new Agent(parts, std::move(settings)));
  MJ_CHECK(agent->open(parts));
  return agent;
}

Result<void> Agent::open(Parts& parts) {
  MJ_TRY(registration, parts.stores.open());
  registration_ = std::move(registration);
  MJ_CHECK(register_runner(*registration_, settings_, self_));

  MJ_TRY(reporter_store, parts.stores.open());
  MJ_TRY(lease_store, parts.stores.open());
  Intake::Parts intake;
  MJ_TRY(intake_store, parts.stores.open());
  intake.store = std::move(intake_store);
  intake.transport = parts.make_transport(*intake.store);
  std::vector<std::pair<Id, std::string>> queues;
  for (const auto& executor : executors_) intake.executors.push_back(executor.get());
  for (Id context : settings_.contexts) {
    for (const std::string& queue : queues_of(settings_, intake.executors)) queues.emplace_back(context, queue);
  }
  MJ_TRY(waiter, parts.stores.open_waiter(queues, settings_.runner.topic));
  intake.waiter = std::move(waiter);

  // From here on nothing fails. The threads call one another only for claims, and the intake, which makes them, comes
  // last.
  reporter_ = std::make_unique<Reporter>(std::move(reporter_store), clock_, health_, [this](RunNumber run) {
    leases_->remove(run);
    intake_->slot_free();
  });
  run_loop_ = std::make_unique<RunLoop>(std::move(parts.sandbox), clock_, settings_,
                                        [this](Outgoing report) { reporter_->post(std::move(report)); });
  leases_ = std::make_unique<LeaseKeeper>(
      std::move(lease_store), clock_, health_, settings_, self_,
      LeaseKeeper::Callbacks{.renewed = [this](RunNumber run, std::uint64_t fence) { run_loop_->fence(run, fence); },
                             .stale = [this](RunNumber run) { run_loop_->kill(run, KillReason::fenced); },
                             .cancelled = [this](RunNumber run) { run_loop_->kill(run, KillReason::cancelled); },
                             .runner_lost =
                                 [this](const std::string& why) {
                                   if (!runner_lost_.exchange(true))
                                     log(LogLevel::error, "worker", "{}: draining", why);
                                 }});
  intake_ = std::make_unique<Intake>(
      std::move(intake), clock_, health_, settings_,
      Intake::Callbacks{.may_start = [this] { return run_loop_->ready() && !runner_lost_; },
                        .start = [this](Start start) { run_loop_->start(std::move(start)); },
                        .report = [this](Outgoing report) { reporter_->post(std::move(report)); },
                        .claimed = [this](RunNumber run, const ClaimRef& claim) { leases_->add(run, claim); },
                        .heartbeat = [this] { leases_->beat_now(); }});
  return {};
}

Agent::~Agent() {
  // Whoever calls another stops before it.
  if (intake_) intake_->stop();
  if (leases_) leases_->stop();
  if (run_loop_) run_loop_->stop();
  if (reporter_) reporter_->stop();
  if (!registration_) return;
  for (Id context : settings_.contexts) {
    if (auto released = registration_->release_runner(context, settings_.runner.id, self_); !released) {
      log(LogLevel::info, "worker", "runner {} not signed off: {}", settings_.runner.id, released.error().message);
    }
  }
}

void Agent::drain() { intake_->drain(); }

void Agent::cancel_jobs() { run_loop_->cancel_all(); }

}  // namespace mycojobs
