#include "stage.h"

#include "inspect/invariants.h"
#include "model/codec.h"

namespace mycojobs::sim {
namespace {

constexpr Id kCaller = 12;
constexpr Ms kRetryDelayMs = 50;     // pause before a client repeats a call
constexpr Ms kPollIntervalMs = 10;   // interval of the check whether a client may continue
constexpr Ms kRestartDelayMs = 200;  // pause until a killed client is restarted

}  // namespace

std::string make_job_key(Id id) { return job_key(kCaller, id); }

Client::Client(World& world, std::string name)
    : Program(std::move(name)),
      Actor(nullptr),
      world_(world),
      store_(world.open_store(*this)),
      flows_(world.open_flows(*this)) {
  world_.add(*this);
}

void Client::on_killed() { due_ = world_.now() + kRestartDelayMs; }

void Client::step() {
  if (is_killed()) {
    world_.revive(*this);
    store_ = world_.open_store(*this);
    flows_ = world_.open_flows(*this);
  }
  const Request request = requests_.front();
  if (request.condition && !request.condition()) {
    due_ = world_.now() + kPollIntervalMs;
    return;
  }
  const auto reply = request.call(*store_);
  if (is_killed()) return;
  const bool is_unavailable = !reply && reply.error().code == Code::unavailable;
  world_.note("  " + name() + ' ' + request.description + (reply ? "" : ": " + reply.error().message));
  if (!is_unavailable) requests_.pop_front();
  due_ = world_.now() + (is_unavailable ? kRetryDelayMs : 0);
}

Service::Service(World& world, InvariantChecker& checker, Host& host, WorkerSettings settings)
    : Actor(nullptr), world_(world), checker_(checker), host_(host), settings_(std::move(settings)) {
  world_.add(*this);
}

Service::~Service() { world_.remove(*this); }

void Service::start(Ms delay_ms) {
  start_at_ = world_.now() + delay_ms;
  due_ = std::min(due_, start_at_);
}

// Periodically checks whether the agent has ended.
void Service::step() {
  constexpr Ms kCheckIntervalMs = 20;
  due_ = world_.now() + kCheckIntervalMs;
  if (agent_ && agent_->has_ended() && world_.is_alone()) {
    agent_.reset();
    if (restart_delay_ != kNever) start_at_ = world_.now() + restart_delay_;
    if (on_end) on_end();
  }
  if (agent_ || world_.now() < start_at_) return;
  start_at_ = kNever;
  agent_ = std::make_unique<SimAgent>(world_, checker_, host_, settings_,
                                      "agent" + std::to_string(settings_.runner.id) + "." + std::to_string(++starts_));
}

bool Service::is_quiet() const { return !agent_ ? start_at_ == kNever : !agent_->is_killed() && agent_->is_idle(); }

Stage::Stage(const StageSettings& settings)
    : world(settings.seed), checker(world, kQueues), client(world, "client"), settings_(settings) {}

Service& Stage::add_service(const std::function<void(WorkerSettings&)>& change, Host* host) {
  const auto number = static_cast<Id>(services.size() + 1);
  if (host == nullptr) {
    hosts.push_back(std::make_unique<Host>(world, "host" + std::to_string(number), 100000 * number));
    host = hosts.back().get();
  }
  WorkerSettings worker;
  worker.runner.id = number;
  worker.runner.local = true;
  worker.runner.topic = "runner" + std::to_string(number);
  worker.contexts = {kContext};
  worker.script_types = {"sim"};
  worker.slots = 3;
  worker.lease_ms = settings_.lease_ms;
  worker.grace_ms = 300;
  worker.retry.min_ms = 100;
  worker.retention = settings_.retention;
  worker.retention_count = settings_.retention_count;
  if (change) change(worker);
  services.push_back(std::make_unique<Service>(world, checker, *host, worker));
  return *services.back();
}

Job Stage::job(Id id, std::string script) {
  Job job;
  job.id = id;
  job.caller_id = kCaller;
  job.context_id = kContext;
  job.script = std::move(script);
  job.script_type = "sim";
  return job;
}

void Stage::push(const Job& job) {
  const std::string key = redis_key(job);
  std::vector<std::string> words{"HSET", key};
  for (const auto& [name, value] : encode(job)) {
    words.push_back(name);
    words.push_back(value);
  }
  world.server().run_command(kContext, words);
  world.server().push(kContext, queue_key(job.script_type), key);
  world.note("  a plain client pushes " + key);
}

JobStoreState Stage::get_job_state(const std::string& key) {
  const std::vector<std::string> keys{key};
  auto job_states = store().job_states(kContext, keys, true);
  return job_states ? job_states->front() : JobStoreState{};
}

bool Stage::has_ended(const std::string& key) { return mycojobs::has_ended(get_job_state(key)); }

}  // namespace mycojobs::sim
