#include "sim_agent.h"

#include <algorithm>

#include "security/profiles.h"

namespace mycojobs::sim {
namespace {

constexpr Ms kLookMs = 10;                       // poll interval of a waiter
constexpr Ms kDyingMs = 20;                      // time until the processes of a dead agent end
constexpr std::int64_t kNoProcess = 0x7fffff00;  // above any pid of this host, so has_ended() holds

RunnerHolder make_runner_holder(const Host& host, const std::string& name) {
  return {name, host.name, "boot of " + host.name, kNoProcess};
}

// The instances of a host's agents, in place of the files in state_dir.
class SimInstances final : public InstanceRecords {
 public:
  SimInstances(const World& world, Host& host, Id runner) : world_(world), host_(host), runner_(runner) {}
  std::vector<std::string> list() const override {
    std::vector<std::string> names;
    for (const Host::Instance& each : host_.instances) {
      if (each.runner == runner_) names.push_back(each.name);
    }
    return names;
  }
  bool has_ended(const std::string& name) const override {
    return std::any_of(host_.instances.begin(), host_.instances.end(),
                       [&](const Host::Instance& each) { return each.name == name && each.gone_at <= world_.now(); });
  }
  void forget_if_ended(const std::string& name) const override {
    std::erase_if(host_.instances, [&](const Host::Instance& each) { return each.name == name; });
  }

 private:
  const World& world_;
  Host& host_;
  Id runner_;
};

class SimConversation final : public Conversation {
 public:
  explicit SimConversation(const Job& job) : job_(job) {}
  const Job& job() const { return job_; }
  std::string consume_output() override { return ""; }
  void feed(std::string_view /*unused*/) override {}
  std::vector<std::string> consume_notes() override { return {}; }
  JobEnd finish(const Outcome& outcome) const override {
    JobEnd end;
    if (outcome.status == RunStatus::ok) {
      end.status = JobStatus::finished;
      end.detail = "ok";
      end.result["of"] = redis_key(job_);
    } else {
      end.detail = outcome.status == RunStatus::cancelled ? "cancelled" : "exit";
      end.error = end.detail;
    }
    return end;
  }

 private:
  Job job_;
};

}  // namespace

std::vector<mycojobs::Stage> SimExecutor::stages() const {
  return {{.profile = "python", .host = "python", .policy = profile("python")}};
}

Result<std::unique_ptr<Conversation>> SimExecutor::begin(const JobFacts& facts, ArtifactSink* /*no artifacts*/) const {
  return std::make_unique<SimConversation>(facts.job);
}

// The world polls this waiter, since it must not block.
class SimAgent::SimWaiter final : public Waiter {
 public:
  SimWaiter(SimAgent& agent, std::unique_ptr<Waiter> inner) : agent_(agent), inner_(std::move(inner)) {}
  Result<WaitResult> wait(std::uint32_t /*unused*/, bool for_work) override {
    inner_->wake();  // makes inner_ answer at once
    MJ_TRY(woken, inner_->wait(0, for_work));
    woken.reconnected = std::exchange(was_away_, false);
    return std::move(woken);
  }
  void set_paused(Id context, const std::vector<std::string>& queues) override { inner_->set_paused(context, queues); }
  void wake() override {
    called_ = true;
    agent_.intake_thread_.wake();
  }
  bool take_call() { return std::exchange(called_, false); }
  bool note_away() { return !std::exchange(was_away_, true); }  // returns true if the server was reachable until now

 private:
  SimAgent& agent_;
  std::unique_ptr<Waiter> inner_;
  bool called_ = false, was_away_ = false;
};

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
      self_(make_runner_holder(host, this->name())),
      main_store_(world.open_store(*this)),
      intake_store_(world.open_store(*this)),
      report_store_(world.open_store(*this)),
      lease_store_(world.open_store(*this)),
      house_store_(world.open_store(*this)),
      waiting_store_(world.open_store(*this)),
      former_(std::make_unique<SimInstances>(world, host, settings_.runner.id), settings_, self_),
      runs_({settings_.slots, settings_.grace_ms, settings_.retry}, world.below(UINT32_MAX)),
      opening_(*this, &SimAgent::open),
      intake_thread_(*this, &SimAgent::take_jobs),
      run_loop_(*this, &SimAgent::run_jobs),
      reporter_thread_(*this, &SimAgent::report),
      keeper_(*this, &SimAgent::beat),
      house_(*this, &SimAgent::keep_house),
      waiting_(*this, &SimAgent::check_waiting) {
  make_parts();
  world_.note(this->name() + " starts on " + host_.name);
  opening_.wake();
}

SimAgent::~SimAgent() = default;

// Corresponds to Agent::make_parts().
void SimAgent::make_parts() {
  registrar_ = std::make_unique<Registrar>(*main_store_, host_.clock, health_, settings_, self_, former_, 0,
                                           Registrar::Callbacks{.on_registered =
                                                                    [this] {
                                                                      begin_to_serve();
                                                                      return Result<void>();
                                                                    },
                                                                .on_runner_lost =
                                                                    [this](const std::string& why) {
                                                                      world_.note(name() + " cannot register: " + why);
                                                                      world_.kill(*this);
                                                                    }});
  reporter_ = std::make_unique<Reporter>(
      *report_store_, host_.clock, health_, ReceiptSigner(settings_.runner.id, nullptr),
      Reporter::Callbacks{.on_settled =
                              [this](std::span<const RunNumber> runs) {
                                leases_->remove(runs);
                                intake_->on_jobs_settled(static_cast<std::uint32_t>(runs.size()));
                              },
                          .on_stale =
                              [this](RunNumber run) {
                                order(JobRuns::Kill{run, KillReason::fenced});
                              }});
  leases_ = std::make_unique<LeaseKeeper>(*lease_store_, host_.clock, health_, settings_, self_,
                                          LeaseKeeper::Callbacks{.on_renewed =
                                                                     [this](RunNumber run, std::uint64_t fence) {
                                                                       if (errs(Mistake::Agent::fences_late))
                                                                         fence += settings_.lease_ms;
                                                                       order(JobRuns::Fence{run, fence});
                                                                     },
                                                                 .on_stale =
                                                                     [this](RunNumber run) {
                                                                       order(JobRuns::Kill{run, KillReason::fenced});
                                                                     },
                                                                 .on_cancelled =
                                                                     [this](RunNumber run) {
                                                                       order(JobRuns::Kill{run, KillReason::cancelled});
                                                                     },
                                                                 .on_runner_lost =
                                                                     [this](const std::string&) {
                                                                       if (!std::exchange(runner_lost_, true)) drain();
                                                                     }});
  housekeeper_ = std::make_unique<MaintenanceLoop>(*house_store_, host_.clock, health_, settings_);
  prerequisites_ = std::make_unique<PrerequisiteChecker>(*waiting_store_, host_.clock, health_, settings_);
  Intake::Dependencies parts{*intake_store_, nullptr, {&executor_}, secrets_, world_.below(UINT32_MAX)};
  std::vector<std::pair<Id, std::string>> waited;
  for (const std::string& queue : list_runner_queues(settings_, parts.executors, settings_.runner.local))
    waited.emplace_back(kContext, queue);
  auto waiter = std::make_unique<SimWaiter>(*this, world_.server().open_waiter(waited, settings_.runner.topic).value());
  waiter_ = waiter.get();
  parts.waiter = std::move(waiter);
  intake_ = std::make_unique<Intake>(
      std::move(parts), host_.clock, health_, settings_, self_.instance,
      Intake::Callbacks{
          .can_start_runs = [this] { return launcher_.can_start_runs(host_.clock.boot_ms()) && !runner_lost_; },
          .start_job =
              [this](JobStart start) {
                const Job& job = dynamic_cast<SimConversation&>(*start.conversation).job();
                facts_[start.run] = {{},        start.claim.job_key, parse_script(job.script),
                                     job.epoch, job.attempt,         job.deliveries};
                order(std::move(start));
              },
          .report = [this](RunReport report) { perform(report); },
          .on_claimed = [this](RunNumber run, const ClaimRef& claim) { leases_->add(run, claim); },
          .request_heartbeat = [this] { keeper_.wake(); },
          .on_wakeup_without_jobs =
              [this] {
                housekeeper_->run_soon();
                house_.wake();
              },
          .claim_ahead_count = [this] { return run_rate_.claim_ahead_count(now_us()); }});
}

bool SimAgent::idle() const { return intake_->held_or_requested_jobs() == 0 && processes_.empty() && orders_.empty(); }

bool SimAgent::gone() const {
  return killed() &&
         std::all_of(processes_.begin(), processes_.end(), [](const auto& each) { return each.second->gone(); });
}

void SimAgent::on_killed() {
  Ms last = world_.now();
  for (auto& [number, process] : processes_) {
    const Ms dies_at = world_.now() + world_.below(kDyingMs);
    process->die_at(dies_at);
    last = std::max(last, dies_at);
  }
  if (open_ && !left_) host_.instances.push_back({settings_.runner.id, self_.instance, last});
}

void SimAgent::open() {
  const Ms pause = registrar_->run_once();
  if (!killed() && !registrar_->stopped()) opening_.after(pause);
}

void SimAgent::begin_to_serve() {
  if (killed()) return;
  open_ = true;
  for (Thread* each : {&keeper_, &house_, &waiting_, &intake_thread_}) each->wake();
}

void SimAgent::drain() {
  intake_->drain();
  intake_thread_.wake();
}

void SimAgent::leave() {
  registrar_->release_runner_ids(runner_lost_);
  if (killed()) return;
  left_ = true;
  world_.kill(*this);
}

// The intake thread, whose waiting is replaced by polling. A drained agent leaves, as the main thread of an agent does.
void SimAgent::take_jobs() {
  if (intake_->draining() && idle()) return leave();
  if (!resting_) {
    rest_ = intake_->run_once();
    rests_until_ = world_.now() + rest_.ms;
    resting_ = true;
  }
  if (poll_waiter()) {
    resting_ = false;
    return intake_thread_.wake();
  }
  intake_thread_.after(std::min<Ms>(kLookMs, std::max<Ms>(rests_until_, world_.now() + 1) - world_.now()));
}

bool SimAgent::poll_waiter() {
  const bool over = world_.now() >= rests_until_;
  if (!world_.server_up()) {
    if (!waiter_->note_away() && !over) return false;
    return intake_->on_wait_result(fail(Code::unavailable, "the server does not answer")), true;
  }
  const bool called = waiter_->take_call();
  auto woken = waiter_->wait(0, rest_.wakes_on_work);
  if (!over && !called && woken && !woken->has_work && woken->hints.empty() && !woken->reconnected) return false;
  return intake_->on_wait_result(std::move(woken)), true;
}

void SimAgent::report() {
  if (const auto pause = reporter_->run_once()) reporter_thread_.after(*pause);
}

// ---- RunLoop ----

void SimAgent::order(JobRuns::Event event) {
  orders_.push_back(std::move(event));
  run_loop_.wake();
}

void SimAgent::run_jobs() {
  for (const Heard& each : std::exchange(heard_, {})) {
    if (each.end) {
      RunEnded ended{each.sandbox_run, {}};
      ended.outcome.status = *each.end;
      ended.outcome.unstarted = each.unstarted;
      if (*each.end == RunStatus::lost) ended.outcome.reason = "lost";
      step(std::move(ended));
    } else {
      step(JobRuns::BytesReceived{each.run, JobPipe::out, each.line});
      step(JobRuns::PipesDrained{each.run});
    }
  }
  for (JobRuns::Event& event : std::exchange(orders_, {})) step(std::move(event));
  step(JobRuns::TimePassed{});
  if (const auto look = runs_.next_wakeup_ms()) run_loop_.after(*look);
}

void SimAgent::step(JobRuns::Event event) {
  for (JobRuns::Action& action : runs_.step(std::move(event), {host_.clock.boot_ms(), host_.clock.unix_ms()}))
    std::visit([this](auto& each) { perform(each); }, action);
}

void SimAgent::perform(JobRuns::Launch& launch) {
  const RunNumber number = launch.run;
  if (host_.failing_launches > 0) {
    --host_.failing_launches;
    return step(JobRuns::LaunchFailed{number, "no descriptors left"});
  }
  const std::uint64_t sandbox_run = launch.spec.run;
  const auto tell = [this, number, sandbox_run](std::string line, std::optional<RunStatus> end,
                                                bool unstarted = false) {
    heard_.push_back({number, sandbox_run, std::move(line), end, unstarted});
    run_loop_.wake();
  };
  step(JobRuns::RunLaunched{number});
  if (host_.clock.boot_ms() >= launch.spec.fence_boot_ms) return tell("", RunStatus::lost);  // the run never starts
  if (host_.hanging_launches > 0) {
    --host_.hanging_launches;
    return tell("", RunStatus::lost, true);
  }
  Process::Facts facts = facts_[number];
  facts.spec = std::move(launch.spec);
  if (errs(Mistake::Agent::fences_never)) facts.spec.fence_boot_ms = 0;
  processes_[number] = std::make_unique<Process>(
      world_, witness_, host_, std::move(facts),
      Process::Callbacks{.wrote = [tell](const std::string& line) { tell(line + '\n', std::nullopt); },
                         .ended = [tell](RunStatus status) { tell("", status); },
                         .poisoned = [this] { world_.kill(*this); }});
}

void SimAgent::perform(JobRuns::KillRun& kill) {
  const auto process = processes_.find(JobRuns::get_run_number(kill.sandbox_run));
  if (process != processes_.end() && !process->second->gone()) process->second->kill(kill.reason, kill.grace_ms);
}

void SimAgent::perform(JobRuns::MoveFence& fence) {
  const auto process = processes_.find(JobRuns::get_run_number(fence.sandbox_run));
  if (errs(Mistake::Agent::fences_never)) return;
  if (process != processes_.end() && !process->second->gone()) process->second->fence(fence.boot_ms);
}

void SimAgent::perform(RunReport& report) {
  if (report.is_last) facts_.erase(report.run);
  if (report.is_last && errs(Mistake::Agent::forgets_reports) && world_.once_in(10)) return;
  reporter_->post(std::move(report));
  reporter_thread_.wake();
}

void SimAgent::perform(JobRuns::RunReaped& over) {
  processes_.erase(over.run);
  run_rate_.on_run_ended(now_us());
}

}  // namespace mycojobs::sim
