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
  SimAgent(World&, Witness&, Host&, WorkerSettings, std::string name);
  ~SimAgent() override;

  void drain();  // stops claiming; the agent leaves when its runs have ended
  bool idle() const;
  bool gone() const;  // killed or left, and all its processes have ended
  const WorkerSettings& settings() const { return settings_; }

 private:
  class Thread final : public Actor {
   public:
    Thread(SimAgent&, void (SimAgent::*body)());
    ~Thread() override { agent_.world_.remove(*this); }
    Ms due() const override { return due_; }
    void step() override;
    void wake() { due_ = std::min(due_, agent_.world_.now()); }
    void after(Ms pause) { due_ = std::min(due_, agent_.world_.now() + pause); }  // unless woken earlier

   private:
    SimAgent& agent_;
    void (SimAgent::*body_)();
    Ms due_ = kNever;
  };
  class SimWaiter;
  struct Heard {  // an event of a process
    RunNumber run = 0;
    std::uint64_t sandbox_run = 0;
    std::string line;
    std::optional<RunStatus> end = std::nullopt;
    bool unstarted = false;
  };

  void on_killed() override;
  void open();
  void begin_to_serve();
  void make_parts();
  void leave();

  void take_jobs();
  bool poll_waiter();  // polls the waiter; false if there is no event
  void run_jobs();
  void report();
  void beat() { keeper_.after(leases_->run_once()); }
  void keep_house() { house_.after(housekeeper_->run_once()); }
  void check_waiting() { waiting_.after(prerequisites_->run_once()); }

  void order(JobRuns::Event);
  void step(JobRuns::Event);
  void perform(JobRuns::Launch&);
  void perform(JobRuns::WriteChannel& speak) { runs_.next_channel_bytes(speak.run); }
  void perform(JobRuns::PauseChannel& /*no run stores artifacts*/) {}
  void perform(JobRuns::PauseReading& /*no pipes*/) {}
  void perform(JobRuns::KillRun&);
  void perform(JobRuns::MoveFence&);
  void perform(RunReport&);
  void perform(BrokerCall& /*no script calls the object store*/) {}
  void perform(JobRuns::RunReaped&);
  void perform(JobRuns::LaunchBackoff& failed) { launcher_.on_start_failed(host_.clock.boot_ms(), failed.reason); }
  void perform(JobRuns::ClaimBackoff& /*unused*/) { run_rate_.on_claim_ahead_failed(); }
  void perform(StartRejected& job) { intake_->on_start_rejected(std::move(job)); }
  void perform(JobRuns::RunInBackground& elsewhere) { order(elsewhere.work()); }
  bool errs(Mistake::Agent how) const { return world_.mistake.agent == how; }
  std::uint64_t now_us() const { return (world_.now() + 1) * 1000; }

  World& world_;
  Witness& witness_;
  Host& host_;
  WorkerSettings settings_;
  RunnerHolder self_;
  SimExecutor executor_;
  std::unique_ptr<Store> main_store_, intake_store_, report_store_, lease_store_, house_store_, waiting_store_;
  StoreHealth health_;
  RunRate run_rate_;
  PreviousInstances former_;
  LauncherMonitor launcher_;
  JobRuns runs_;
  std::unique_ptr<Registrar> registrar_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<LeaseKeeper> leases_;
  std::unique_ptr<MaintenanceLoop> housekeeper_;
  std::unique_ptr<PrerequisiteChecker> prerequisites_;
  SimWaiter* waiter_ = nullptr;  // the waiter of the intake
  SecretWatcher secrets_{{}, {kContext}, host_.clock};
  std::unique_ptr<Intake> intake_;
  Thread opening_, intake_thread_, run_loop_, reporter_thread_, keeper_, house_, waiting_;

  bool open_ = false, runner_lost_ = false, left_ = false;
  bool resting_ = false;  // whether the intake waits
  Intake::WaitRequest rest_;
  Ms rests_until_ = 0;
  std::deque<JobRuns::Event> orders_;
  std::deque<Heard> heard_;
  std::map<RunNumber, Process::Facts> facts_;
  std::map<RunNumber, std::unique_ptr<Process>> processes_;
};

}  // namespace mycojobs::sim
