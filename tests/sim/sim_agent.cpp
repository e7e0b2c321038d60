#include "sim_agent.h"

#include <algorithm>

#include "domain/codec.h"
#include "worker/registration.h"
#include "worker/store_health.h"

namespace mycojobs::sim {
namespace {

constexpr Ms kWaitMs = 500;  // as in agent/worker/intake.cpp
constexpr std::uint32_t kMaxBatch = 16;
constexpr Ms kLookMs = 10;                       // between two looks at what a real waiter is woken by
constexpr Ms kDyingMs = 20;                      // of processes whose agent is gone
constexpr std::int64_t kNoProcess = 0x7fffff00;  // above any pid of this host: is_gone() holds for it

RunnerHold hold_of(const Host& host, const std::string& name) {
  return {name, host.name, "boot of " + host.name, kNoProcess};
}

}  // namespace

SimAgent::Thread::Thread(SimAgent& agent, void (SimAgent::*body)()) : Actor(&agent), agent_(agent), body_(body) {
  agent_.world_.add(*this);
}

void SimAgent::Thread::step() {
  due_ = kNever;
  (agent_.*body_)();
}

SimAgent::SimAgent(World& world, Witness& witness, Host& host, WorkerSettings settings, std::string name)
    : Program(std::move(name)),
      world_(world),
      witness_(witness),
      host_(host),
      settings_(std::move(settings)),
      self_(hold_of(host, this->name())),
      main_store_(world.open_store(*this)),
      intake_store_(world.open_store(*this)),
      report_store_(world.open_store(*this)),
      lease_store_(world.open_store(*this)),
      house_store_(world.open_store(*this)),
      waiting_store_(world.open_store(*this)),
      topic_(settings_.runner),
      housekeeping_(host.clock, settings_),
      intake_pauses_(host.clock, servers_),
      lease_pauses_(host.clock, servers_),
      house_pauses_(host.clock, servers_),
      waiting_pauses_(host.clock, servers_),
      opening_(*this, &SimAgent::open),
      intake_(*this, &SimAgent::take_jobs),
      run_loop_(*this, &SimAgent::run_jobs),
      reporter_(*this, &SimAgent::report),
      keeper_(*this, &SimAgent::beat),
      house_(*this, &SimAgent::keep_house),
      waiting_(*this, &SimAgent::check_waiting),
      free_(settings_.slots) {
  queues_.push_back(runner_queue(settings_.runner.id));
  for (const std::string& type : settings_.script_types) queues_.push_back(queue_key(type));
  std::vector<std::pair<Id, std::string>> waited;
  for (const std::string& queue : queues_) waited.emplace_back(kContext, queue);
  waiter_ = world_.server().open_waiter(waited, settings_.runner.topic).value();
  world_.note(this->name() + " starts on " + host_.name);
  opening_.wake();
}

SimAgent::~SimAgent() = default;

bool SimAgent::idle() const { return free_ == settings_.slots && pending_.empty() && runs_.empty(); }

bool SimAgent::gone() const {
  return killed() && std::all_of(runs_.begin(), runs_.end(),
                                 [](const auto& each) { return !each.second.process || each.second.process->gone(); });
}

void SimAgent::on_killed() {
  for (auto& [number, run] : runs_) {
    if (run.process) run.process->die_at(world_.now() + world_.below(kDyingMs));
  }
  if (open_ && !left_) host_.instances.emplace_back(settings_.runner.id, self_.instance);
}

// Agent::open(): a program that cannot register ends.
void SimAgent::open() {
  const auto gone = register_runner(*main_store_, settings_, self_);
  if (killed()) return;
  if (!gone) {
    world_.note(name() + " cannot register: " + gone.error().message);
    return world_.kill(*this);
  }
  give_back_of_the_dead();
  if (killed()) return;
  open_ = true;
  for (Thread* each : {&keeper_, &house_, &waiting_, &intake_}) each->wake();
}

// reconcile(): the lock of an instance is free once no process of it is left. Processes die soon, so it is waited for.
void SimAgent::give_back_of_the_dead() {
  const auto instances = host_.instances;
  for (const auto& instance : instances) {
    if (instance.first != settings_.runner.id || killed()) continue;
    if (main_store_->expire_instance(kContext, instance.first, instance.second)) std::erase(host_.instances, instance);
  }
}

void SimAgent::drain() {
  draining_ = true;
  intake_.wake();
}

// Agent::sign_off()
void SimAgent::leave() {
  auto done = mark_runner(*main_store_, kContext, settings_.runner.id, kRunnerStopped);
  if (done) done = main_store_->release_runner(kContext, settings_.runner.id, self_);
  if (killed()) return;
  left_ = true;
  world_.kill(*this);
}

// Intake::loop(), of which the waiting is polled.
void SimAgent::take_jobs() {
  const bool claiming = !draining_ && free_ > 0 && !runner_lost_ && host_.clock.boot_ms() >= resting_until_boot_;
  if (draining_ && idle()) return leave();
  waiter_->wake();  // it answers at once then
  auto woken = waiter_->wait(0, claiming);
  if (!world_.server_up()) {
    deaf_ = look_at_topic_ = true;
    return intake_.after(static_cast<Ms>(retry_pause_ms(1)));
  }
  const bool over = woken->work || !woken->hints.empty() || called_ || deaf_ || world_.now() >= wait_until_;
  if (!over) return intake_.after(kLookMs);
  work_ = woken->work;
  called_ = deaf_ = false;
  if (std::erase_if(woken->hints, [](const std::string& hint) { return hint.starts_with("cancel:"); }) > 0) {
    keeper_.wake();
  }
  if (!draining_ && (look_at_topic_ || !woken->hints.empty() || world_.now() >= wait_until_)) {
    look_at_topic_ = !topic_.take(*intake_store_, settings_.contexts, woken->hints);
  }
  if (killed()) return;
  const std::size_t taken = claiming ? claim_some() : 0;
  if (work_ && claiming && taken == 0) {
    housekeeping_.hurry();
    house_.wake();
  }
  wait_until_ = world_.now() + kWaitMs;
  intake_.after(taken > 0 && free_ > 0 ? 0 : kLookMs);
}

// Intake::claim_some() and claim(), of one context.
std::size_t SimAgent::claim_some() {
  ++turn_;
  if (!intake_pauses_.may_try(kContext)) return 0;
  ClaimRequest request;
  request.context = kContext;
  request.runner = settings_.runner.id;
  request.instance = self_.instance;
  request.queues = queues_;
  const auto first = static_cast<std::ptrdiff_t>(turn_ % queues_.size());
  std::rotate(request.queues.begin(), request.queues.begin() + first, request.queues.end());
  request.max_jobs = std::min(free_, kMaxBatch);
  request.max_script_bytes = settings_.max_script_bytes;
  request.max_deliveries = settings_.max_deliveries;
  request.lease_ms = settings_.lease_ms;
  const std::uint64_t sent = host_.clock.boot_ms();
  free_ -= request.max_jobs;
  auto reply = intake_store_->claim(request);
  free_ += request.max_jobs - static_cast<std::uint32_t>(reply ? reply->jobs.size() : 0);
  if (!reply) {
    if (!killed()) world_.note("  " + name() + " claim: " + reply.error().message);
    intake_pauses_.failed(kContext, sent);
    waiter_->set_paused(kContext, queues_);
    return 0;
  }
  intake_pauses_.worked(kContext);
  waiter_->set_paused(kContext, reply->paused);
  for (Claimed& claimed : reply->jobs) accept(claimed, fence_after(sent, settings_.lease_ms));
  called_ = called_ || reply->more;
  return reply->jobs.size();
}

void SimAgent::accept(Claimed& claimed, std::uint64_t fence_boot_ms) {
  const RunNumber run = next_run_++;
  claims_.emplace(run, claimed.ref);
  auto start = prepare(claimed, fence_boot_ms, run);
  if (start) return order(std::move(*start));
  JobEnd end;
  end.detail = "dead_letter";
  end.error = start.error().message;
  post(Outgoing{run, EndReport{claimed.ref, std::move(end)}, true});
}

Result<SimAgent::Begin> SimAgent::prepare(Claimed& claimed, std::uint64_t fence_boot_ms, RunNumber run) const {
  const Job job = decode<Job>(claimed.record).record;
  if (const auto problems = validate(job); !problems.empty()) return fail(Code::invalid, join(problems));
  if (redis_key(job) != claimed.ref.job_key) return fail(Code::invalid, "id: not that of its key");
  Begin start{run, std::move(claimed.ref), {}, job.retries};
  start.facts.spec.run = run;
  start.facts.spec.fence_boot_ms = fence_boot_ms;
  start.facts.job = start.claim.job_key;
  start.facts.script = parse_script(job.script);
  start.facts.epoch = claimed.epoch;
  start.facts.attempt = claimed.attempt;
  start.facts.deliveries = claimed.deliveries;
  return start;
}

}  // namespace mycojobs::sim
