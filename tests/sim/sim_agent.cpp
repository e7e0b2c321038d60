#include "sim_agent.h"

#include <algorithm>

#include "security/profiles.h"

namespace mycojobs::sim {
namespace {

constexpr Ms kPollIntervalMs = 10;                    // poll interval of a waiter
constexpr Ms kMaxEndDelayMs = 20;                     // time until the processes of a dead agent end
constexpr std::int64_t kNonexistentPid = 0x7fffff00;  // above any pid of this host, so has_ended() holds

RunnerHolder make_runner_holder(const Host& host, const std::string& name) {
  return {name, host.name, "boot of " + host.name, kNonexistentPid};
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
    return std::any_of(host_.instances.begin(), host_.instances.end(), [&](const Host::Instance& each) {
      return each.name == name && each.ended_at_ms <= world_.now();
    });
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

// A waiter that the intake thread polls, because waiting would block the whole simulation.
class SimAgent::SimWaiter final : public Waiter {
 public:
  SimWaiter(SimAgent& agent, std::unique_ptr<Waiter> inner) : agent_(agent), inner_(std::move(inner)) {}
  Result<WaitResult> wait(std::uint32_t /*unused*/, bool for_work) override {
    inner_->wake();  // so that inner_ does not block
    MJ_TRY(result, inner_->wait(0, for_work));
    result.reconnected = std::exchange(was_unavailable_, false);
    return std::move(result);
  }
  void set_paused(Id context, const std::vector<std::string>& queues) override { inner_->set_paused(context, queues); }
  void wake() override {
    was_woken_ = true;
    agent_.intake_thread_.wake();
  }
  bool consume_wakeup() { return std::exchange(was_woken_, false); }
  bool note_outage() {
    return !std::exchange(was_unavailable_, true);
  }  // returns true if the server was reachable until now

 private:
  SimAgent& agent_;
  std::unique_ptr<Waiter> inner_;
  bool was_woken_ = false, was_unavailable_ = false;
};

SimAgent::Thread::Thread(SimAgent& agent, std::string name, void (SimAgent::*step_body)())
    : Actor(&agent), agent_(agent), name_(std::move(name)), step_body_(step_body) {
  agent_.world_.add(*this);
}

void SimAgent::Thread::step() {
  due_ = kNever;
  (agent_.*step_body_)();
}

SimAgent::SimAgent(World& world, InvariantChecker& checker, Host& host, WorkerSettings settings, std::string name)
    : Program(std::move(name)),
      world_(world),
      checker_(checker),
      host_(host),
      settings_(std::move(settings)),
      self_(make_runner_holder(host, this->name())),
      main_store_(world.open_store(*this)),
      intake_store_(world.open_store(*this)),
      report_store_(world.open_store(*this)),
      lease_store_(world.open_store(*this)),
      maintenance_store_(world.open_store(*this)),
      prerequisite_store_(world.open_store(*this)),
      previous_instances_(std::make_unique<SimInstances>(world, host, settings_.runner.id), settings_, self_),
      runs_({settings_.slots, settings_.grace_ms, settings_.retry}, world.random_below(UINT32_MAX)),
      registration_thread_(*this, "registration", &SimAgent::run_registration),
      intake_thread_(*this, "intake", &SimAgent::run_intake),
      run_loop_thread_(*this, "run loop", &SimAgent::run_jobs),
      reporter_thread_(*this, "reporter", &SimAgent::report),
      lease_thread_(*this, "lease", &SimAgent::renew_leases),
      maintenance_thread_(*this, "maintenance", &SimAgent::run_maintenance),
      prerequisite_thread_(*this, "prerequisite", &SimAgent::check_prerequisites) {
  create_components();
  world_.note(this->name() + " starts on " + host_.name);
  registration_thread_.wake();
}

SimAgent::~SimAgent() = default;

// Creates the components of agent/worker with stores, callbacks and a waiter that the world controls.
void SimAgent::create_components() {
  registrar_ = std::make_unique<Registrar>(*main_store_, host_.clock, health_, settings_, self_, previous_instances_, 0,
                                           Registrar::Callbacks{.on_registered =
                                                                    [this] {
                                                                      start_serving();
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
                                lease_keeper_->remove(runs);
                                intake_->on_jobs_settled(static_cast<std::uint32_t>(runs.size()));
                              },
                          .on_stale =
                              [this](RunNumber run) {
                                post_event(JobRuns::Kill{run, KillReason::fenced});
                              }});
  lease_keeper_ =
      std::make_unique<LeaseKeeper>(*lease_store_, host_.clock, health_, settings_, self_,
                                    LeaseKeeper::Callbacks{.on_renewed =
                                                               [this](RunNumber run, std::uint64_t fence) {
                                                                 if (has_planted_bug(PlantedBug::AgentBug::fences_late))
                                                                   fence += settings_.lease_ms;
                                                                 post_event(JobRuns::Fence{run, fence});
                                                               },
                                                           .on_stale =
                                                               [this](RunNumber run) {
                                                                 post_event(JobRuns::Kill{run, KillReason::fenced});
                                                               },
                                                           .on_cancelled =
                                                               [this](RunNumber run) {
                                                                 post_event(JobRuns::Kill{run, KillReason::cancelled});
                                                               },
                                                           .on_runner_lost =
                                                               [this](const std::string&) {
                                                                 if (!std::exchange(is_runner_lost_, true)) drain();
                                                               }});
  maintenance_loop_ =
      std::make_unique<MaintenanceLoop>(*maintenance_store_, host_.clock, health_, settings_, [this](Id context) {
        prerequisites_->on_jobs_waiting(context);
        prerequisite_thread_.wake();
      });
  prerequisites_ = std::make_unique<PrerequisiteChecker>(*prerequisite_store_, host_.clock, health_, settings_);
  Intake::Dependencies dependencies{*intake_store_, nullptr, {&executor_}, secrets_, world_.random_below(UINT32_MAX)};
  std::vector<std::pair<Id, std::string>> waited_queues;
  for (const std::string& queue : list_runner_queues(settings_, dependencies.executors, settings_.runner.local))
    waited_queues.emplace_back(kContext, queue);
  auto waiter =
      std::make_unique<SimWaiter>(*this, world_.server().open_waiter(waited_queues, settings_.runner.topic).value());
  waiter_ = waiter.get();
  dependencies.waiter = std::move(waiter);
  intake_ = std::make_unique<Intake>(
      std::move(dependencies), host_.clock, health_, settings_, self_.instance,
      Intake::Callbacks{
          .can_start_runs = [this] { return launcher_.can_start_runs(host_.clock.boot_ms()) && !is_runner_lost_; },
          .start_job =
              [this](JobStart start) {
                const Job& job = dynamic_cast<SimConversation&>(*start.conversation).job();
                process_parameters_[start.run] = {{},        start.claim.job_key, parse_job_script(job.script),
                                                  job.epoch, job.attempt,         job.deliveries};
                post_event(std::move(start));
              },
          .report = [this](RunReport report) { perform(report); },
          .on_claimed =
              [this](RunNumber run, const ClaimRef& claim) {
                lease_keeper_->add(run, claim);
                note_activity();
              },
          .request_heartbeat = [this] { lease_thread_.wake(); },
          .on_wakeup_without_jobs =
              [this](Id context) {
                maintenance_loop_->run_soon(context);
                maintenance_thread_.wake();
              },
          .claim_ahead_count = [this] { return run_rate_.claim_ahead_count(now_us()); }});
}

bool SimAgent::is_idle() const {
  return intake_->held_or_requested_jobs() == 0 && processes_.empty() && posted_events_.empty();
}

bool SimAgent::has_ended() const {
  return is_killed() &&
         std::all_of(processes_.begin(), processes_.end(), [](const auto& each) { return each.second->has_ended(); });
}

void SimAgent::on_killed() {
  Ms last_end = world_.now();
  for (auto& [number, process] : processes_) {
    const Ms dies_at = world_.now() + world_.random_below(kMaxEndDelayMs);
    process->die_at(dies_at);
    last_end = std::max(last_end, dies_at);
  }
  if (is_registered_ && !is_shut_down_) host_.instances.push_back({settings_.runner.id, self_.instance, last_end});
}

void SimAgent::run_registration() {
  const Ms pause = registrar_->run_once();
  if (!is_killed() && !registrar_->stopped()) registration_thread_.run_after(pause);
}

void SimAgent::start_serving() {
  if (is_killed()) return;
  is_registered_ = true;
  for (Thread* each : {&lease_thread_, &maintenance_thread_, &prerequisite_thread_, &intake_thread_}) each->wake();
}

void SimAgent::drain() {
  intake_->drain();
  intake_thread_.wake();
}

void SimAgent::shut_down() {
  registrar_->release_runner_ids(is_runner_lost_);
  if (is_killed()) return;
  is_shut_down_ = true;
  world_.kill(*this);
}

// The intake thread, whose waiting is replaced by polling. A drained agent shuts down once its runs have ended.
void SimAgent::run_intake() {
  if (intake_->draining() && is_idle()) return shut_down();
  if (!is_intake_waiting_) {
    wait_request_ = intake_->run_once();
    wait_until_ = world_.now() + wait_request_.ms;
    is_intake_waiting_ = true;
  }
  if (poll_waiter()) {
    is_intake_waiting_ = false;
    return intake_thread_.wake();
  }
  intake_thread_.run_after(std::min<Ms>(kPollIntervalMs, std::max<Ms>(wait_until_, world_.now() + 1) - world_.now()));
}

bool SimAgent::poll_waiter() {
  const bool is_wait_over = world_.now() >= wait_until_;
  if (!world_.is_server_up()) {
    if (!waiter_->note_outage() && !is_wait_over) return false;
    return intake_->on_wait_result(fail(Code::unavailable, "the server does not answer")), true;
  }
  const bool was_woken = waiter_->consume_wakeup();
  auto result = waiter_->wait(0, wait_request_.wakes_on_work);
  if (!is_wait_over && !was_woken && result && !result->has_work && result->hints.empty() && !result->reconnected)
    return false;
  return intake_->on_wait_result(std::move(result)), true;
}

void SimAgent::report() {
  if (const auto pause = reporter_->run_once()) reporter_thread_.run_after(*pause);
}

// ---- RunLoop ----

void SimAgent::post_event(JobRuns::Event event) {
  posted_events_.push_back(std::move(event));
  run_loop_thread_.wake();
}

void SimAgent::run_jobs() {
  for (const ProcessEvent& each : std::exchange(process_events_, {})) {
    if (each.end) {
      RunEnded ended{each.sandbox_run, {}};
      ended.outcome.status = *each.end;
      ended.outcome.never_started = each.never_started;
      if (*each.end == RunStatus::lost) ended.outcome.reason = "lost";
      step(std::move(ended));
    } else {
      step(JobRuns::BytesReceived{each.run, JobPipe::out, each.line});
      step(JobRuns::PipesDrained{each.run});
    }
  }
  for (JobRuns::Event& event : std::exchange(posted_events_, {})) step(std::move(event));
  step(JobRuns::TimePassed{});
  if (const auto delay_ms = runs_.next_wakeup_ms()) run_loop_thread_.run_after(*delay_ms);
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
  const auto report_event = [this, number, sandbox_run](std::string line, std::optional<RunStatus> end,
                                                        bool never_started = false) {
    process_events_.push_back({number, sandbox_run, std::move(line), end, never_started});
    run_loop_thread_.wake();
  };
  step(JobRuns::RunLaunched{number});
  if (host_.clock.boot_ms() >= launch.spec.fence_boot_ms)
    return report_event("", RunStatus::lost);  // the run never starts
  if (host_.hanging_launches > 0) {
    --host_.hanging_launches;
    return report_event("", RunStatus::lost, true);
  }
  Process::Parameters parameters = process_parameters_[number];
  parameters.spec = std::move(launch.spec);
  if (has_planted_bug(PlantedBug::AgentBug::fences_never)) parameters.spec.fence_boot_ms = 0;
  processes_[number] = std::make_unique<Process>(
      world_, checker_, host_, std::move(parameters),
      Process::Callbacks{
          .on_line = [report_event](const std::string& line) { report_event(line + '\n', std::nullopt); },
          .on_ended = [report_event](RunStatus status) { report_event("", status); },
          .on_poisoned = [this] { world_.kill(*this); }});
}

void SimAgent::perform(JobRuns::KillRun& kill) {
  const auto process = processes_.find(JobRuns::get_run_number(kill.sandbox_run));
  if (process != processes_.end() && !process->second->has_ended()) process->second->kill(kill.reason, kill.grace_ms);
}

void SimAgent::perform(JobRuns::MoveFence& fence) {
  const auto process = processes_.find(JobRuns::get_run_number(fence.sandbox_run));
  if (has_planted_bug(PlantedBug::AgentBug::fences_never)) return;
  if (process != processes_.end() && !process->second->has_ended()) process->second->fence(fence.boot_ms);
}

void SimAgent::perform(RunReport& report) {
  if (report.is_last) process_parameters_.erase(report.run);
  if (report.is_last && has_planted_bug(PlantedBug::AgentBug::forgets_reports) && world_.random_one_in(10)) return;
  note_activity();
  reporter_->post(std::move(report));
  reporter_thread_.wake();
}

void SimAgent::perform(JobRuns::RunReaped& reaped) {
  processes_.erase(reaped.run);
  run_rate_.on_run_ended(now_us());
}

}  // namespace mycojobs::sim
