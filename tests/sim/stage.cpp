#include "stage.h"

#include "inspect/invariants.h"
#include "model/codec.h"

namespace mycojobs::sim {
namespace {

constexpr Id kCaller = 12;
constexpr Ms kAgainMs = 50;     // pause before a client repeats a call
constexpr Ms kLookMs = 10;      // interval of the check whether a client may continue
constexpr Ms kRevivalMs = 200;  // pause until a killed client is restarted

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

void Client::on_killed() { due_ = world_.now() + kRevivalMs; }

void Client::step() {
  if (killed()) {
    world_.revive(*this);
    store_ = world_.open_store(*this);
    flows_ = world_.open_flows(*this);
  }
  const Request request = requests_.front();
  if (request.when && !request.when()) {
    due_ = world_.now() + kLookMs;
    return;
  }
  const auto answer = request.call(*store_);
  if (killed()) return;
  const bool away = !answer && answer.error().code == Code::unavailable;
  world_.note("  " + name() + ' ' + request.what + (answer ? "" : ": " + answer.error().message));
  if (!away) requests_.pop_front();
  due_ = world_.now() + (away ? kAgainMs : 0);
}

Service::Service(World& world, Witness& witness, Host& host, WorkerSettings settings)
    : Actor(nullptr), world_(world), witness_(witness), host_(host), settings_(std::move(settings)) {
  world_.add(*this);
}

Service::~Service() { world_.remove(*this); }

void Service::start(Ms after) {
  start_at_ = world_.now() + after;
  due_ = std::min(due_, start_at_);
}

// Periodically checks whether the agent has ended.
void Service::step() {
  constexpr Ms kEveryMs = 20;
  due_ = world_.now() + kEveryMs;
  if (agent_ && agent_->gone() && world_.is_alone()) {
    agent_.reset();
    if (restart_pause_ != kNever) start_at_ = world_.now() + restart_pause_;
    if (on_end) on_end();
  }
  if (agent_ || world_.now() < start_at_) return;
  start_at_ = kNever;
  agent_ = std::make_unique<SimAgent>(world_, witness_, host_, settings_,
                                      "agent" + std::to_string(settings_.runner.id) + "." + std::to_string(++starts_));
}

bool Service::is_quiet() const { return !agent_ ? start_at_ == kNever : !agent_->killed() && agent_->idle(); }

Stage::Stage(const StageSettings& settings)
    : world(settings.seed), witness(world, kQueues), client(world, "client"), settings_(settings) {}

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
  worker.retention_ms = settings_.retention_ms;
  worker.retention_count = settings_.retention_count;
  if (change) change(worker);
  services.push_back(std::make_unique<Service>(world, witness, *host, worker));
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

JobStoreState Stage::place(const std::string& key) {
  const std::vector<std::string> keys{key};
  auto places = store().job_states(kContext, keys, true);
  return places ? places->front() : JobStoreState{};
}

bool Stage::has_ended(const std::string& key) { return mycojobs::has_ended(place(key)); }

}  // namespace mycojobs::sim
