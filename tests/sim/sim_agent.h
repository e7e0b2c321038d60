// An agent on one thread: the classes of agent/worker, called by the world in any order. Only the launcher, the
// processes, the waiter and the records of former instances are replaced.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "process.h"
#include "worker/intake/intake.h"
#include "worker/leases/lease_keeper.h"
#include "worker/leases/registration_loop.h"
#include "worker/reports/reporter.h"
#include "worker/runs/job_runs.h"
#include "worker/runs/launcher_monitor.h"
#include "worker/runs/run_rate.h"
#include "worker/upkeep/maintenance_loop.h"
#include "worker/upkeep/prerequisite_loop.h"

namespace mycojobs::sim {

// Executor for the scripts of process.h: its conversation sends nothing and converts the outcome to the end of the job.
class SimExecutor final : public Executor {
 public:
  std::string_view name() const override { return "sim"; }
  std::vector<std::string> script_types() const override { return {"sim", "other"}; }
  std::vector<mycojobs::Stage> stages() const override;
  Result<std::string> probe() const override { return std::string("sim"); }
  Result<std::unique_ptr<Conversation>> begin(const JobFacts&, ArtifactSink*) const override;
};

class SimAgent final : public Program {
 public:
  SimAgent(World&, InvariantChecker&, Host&, WorkerSettings, std::string name);
  ~SimAgent() override;

  void drain();  // stops claiming; the agent shuts down when its runs have ended
  bool is_idle() const;
  bool has_ended() const;  // killed or shut down, and all its processes have ended
  const WorkerSettings& settings() const { return settings_; }

 private:
  class Thread final : public Actor {
   public:
    Thread(SimAgent&, std::string name, void (SimAgent::*step_body)());
    ~Thread() override { agent_.world_.remove(*this); }
    Ms due() const override { return due_; }
    void step() override;
    std::string thread_name() const override { return name_ + " thread"; }
    void wake() { due_ = std::min(due_, agent_.world_.now()); }
    void run_after(Ms delay_ms) { due_ = std::min(due_, agent_.world_.now() + delay_ms); }  // unless woken earlier

   private:
    SimAgent& agent_;
    std::string name_;
    void (SimAgent::*step_body_)();
    Ms due_ = kNever;
  };
  class SimWaiter;
  struct ProcessEvent {  // output or the end of a process
    RunNumber run = 0;
    std::uint64_t sandbox_run = 0;
    std::string line;
    std::optional<RunStatus> end = std::nullopt;
    bool never_started = false;
  };

  void on_killed() override;
  void run_registration();
  void start_serving();
  void create_components();
  void shut_down();

  void run_intake();
  bool poll_waiter();  // polls the waiter; false if there is no event
  void run_jobs();
  void report();
  void renew_leases() { lease_thread_.run_after(lease_keeper_->run_once()); }
  void run_maintenance() { maintenance_thread_.run_after(maintenance_loop_->run_once()); }
  void note_activity() {
    maintenance_loop_->on_activity(kContext);
    maintenance_thread_.wake();
  }
  void check_prerequisites() { prerequisite_thread_.run_after(prerequisites_->run_once()); }

  void post_event(JobRuns::Event);
  void step(JobRuns::Event);
  void perform(JobRuns::Launch&);
  void perform(JobRuns::WriteChannel& write) { runs_.next_channel_bytes(write.run); }
  void perform(JobRuns::PauseChannel& /*no run stores artifacts*/) {}
  void perform(JobRuns::PauseReading& /*no pipes*/) {}
  void perform(JobRuns::KillRun&);
  void perform(JobRuns::MoveFence&);
  void perform(RunReport&);
  void perform(BrokerCall& /*no script calls the object store*/) {}
  void perform(JobRuns::RunReaped&);
  void perform(JobRuns::LaunchBackoff& failed) { launcher_.on_start_failed(host_.clock.boot_ms(), failed.reason); }
  void perform(JobRuns::ClaimBackoff& /*unused*/) { run_rate_.on_claim_ahead_failed(); }
  void perform(StartRejected& rejected) { intake_->on_start_rejected(std::move(rejected)); }
  void perform(JobRuns::RunInBackground& background) { post_event(background.work()); }
  void perform(JobRuns::FetchInputs& /*no job has inputs*/) {}
  void perform(JobRuns::CancelFetch& /*no job has inputs*/) {}
  bool has_planted_bug(PlantedBug::AgentBug bug) const { return world_.planted_bug.agent == bug; }
  std::uint64_t now_us() const { return (world_.now() + 1) * 1000; }

  World& world_;
  InvariantChecker& checker_;
  Host& host_;
  WorkerSettings settings_;
  RunnerHolder self_;
  SimExecutor executor_;
  std::unique_ptr<Store> main_store_, intake_store_, report_store_, lease_store_, maintenance_store_,
      prerequisite_store_;
  StoreHealth health_;
  RunRate run_rate_;
  PreviousInstances previous_instances_;
  LauncherMonitor launcher_;
  JobRuns runs_;
  std::unique_ptr<Registrar> registrar_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<LeaseKeeper> lease_keeper_;
  std::unique_ptr<MaintenanceLoop> maintenance_loop_;
  std::unique_ptr<PrerequisiteChecker> prerequisites_;
  SimWaiter* waiter_ = nullptr;  // the waiter of the intake
  SecretWatcher secrets_{{}, {kContext}, host_.clock};
  std::unique_ptr<Intake> intake_;
  Thread registration_thread_, intake_thread_, run_loop_thread_, reporter_thread_, lease_thread_, maintenance_thread_,
      prerequisite_thread_;

  bool is_registered_ = false, is_runner_lost_ = false, is_shut_down_ = false;
  bool is_intake_waiting_ = false;
  Intake::WaitRequest wait_request_;
  Ms wait_until_ = 0;
  std::deque<JobRuns::Event> posted_events_;
  std::deque<ProcessEvent> process_events_;
  std::map<RunNumber, Process::Parameters> process_parameters_;
  std::map<RunNumber, std::unique_ptr<Process>> processes_;
};

}  // namespace mycojobs::sim
