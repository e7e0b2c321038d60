// An agent in one thread: what agent/worker does, in the same order of store calls, each of its threads an actor that
// is stepped. Real are: the store and its scripts, Housekeeping, registration, the topic's intake, ContextPauses, the
// rules of fence and retry, decode and validate of records. Copied, as thinly as may be, are the loops of Intake,
// RunLoop, Reporter, LeaseKeeper, Housekeeper and PrerequisiteChecker: whoever changes those looks here.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "process.h"
#include "worker/housekeeping.h"
#include "worker/store_health.h"
#include "worker/topic_intake.h"
#include "worker/types.h"

namespace mycojobs::sim {

class SimAgent final : public Program {
 public:
  SimAgent(World&, Witness&, Host&, WorkerSettings, std::string name);
  ~SimAgent() override;

  void drain();  // claims nothing more; leaves when its runs are over
  bool idle() const;
  bool gone() const;  // killed or left, and no process of it is there any more
  const WorkerSettings& settings() const { return settings_; }

 private:
  class Thread final : public Actor {
   public:
    Thread(SimAgent&, void (SimAgent::*body)());
    ~Thread() override { agent_.world_.remove(*this); }
    Ms due() const override { return due_; }
    void step() override;
    void wake() { due_ = std::min(due_, agent_.world_.now()); }
    void after(Ms pause) { due_ = std::min(due_, agent_.world_.now() + pause); }  // unless it was woken meanwhile

   private:
    SimAgent& agent_;
    void (SimAgent::*body_)();
    Ms due_ = kNever;
  };
  struct Begin {
    RunNumber run = 0;
    ClaimRef claim;
    Process::Facts facts;
    std::uint32_t retries = 0;
  };
  struct Fence {
    RunNumber run = 0;
    std::uint64_t boot_ms = 0;
  };
  struct Kill {
    RunNumber run = 0;
    KillReason reason = KillReason::cancelled;
  };
  using Order = std::variant<Begin, Fence, Kill>;
  struct Run {
    ClaimRef claim;
    std::uint32_t attempt = 1, retries = 0;
    std::uint64_t lines = 0;
    std::vector<std::string> unread;  // in its pipes
    std::optional<RunStatus> outcome;
    std::unique_ptr<Process> process;
  };

  void on_killed() override;
  void open();
  void give_back_of_the_dead();
  void leave();

  void take_jobs();  // Intake
  std::size_t claim_some();
  void accept(Claimed&, std::uint64_t fence_boot_ms);
  Result<Begin> prepare(Claimed&, std::uint64_t fence_boot_ms, RunNumber) const;

  void run_jobs();  // RunLoop
  void obey(Order&);
  void begin(Begin&);
  void pass_on_output(RunNumber, Run&);
  void end(RunNumber, Run&);
  JobEnd end_of(const Run&) const;
  void order(Order);

  void report();  // Reporter
  void post(Outgoing);
  void settled(RunNumber);

  void beat();  // LeaseKeeper
  bool renew();
  bool hold();

  void keep_house();     // Housekeeper
  void check_waiting();  // PrerequisiteChecker

  World& world_;
  Witness& witness_;
  Host& host_;
  WorkerSettings settings_;
  RunnerHold self_;
  std::vector<std::string> queues_;
  std::unique_ptr<Store> main_store_, intake_store_, report_store_, lease_store_, house_store_, waiting_store_;
  std::unique_ptr<Waiter> waiter_;
  TopicIntake topic_;
  Housekeeping housekeeping_;
  StoreServers servers_{{kContext}, {}};
  ContextPauses intake_pauses_, lease_pauses_, house_pauses_, waiting_pauses_;
  Thread opening_, intake_, run_loop_, reporter_, keeper_, house_, waiting_;

  std::uint32_t free_;
  std::size_t turn_ = 0;
  RunNumber next_run_ = 1;
  bool open_ = false, draining_ = false, runner_lost_ = false, left_ = false;
  bool called_ = false, look_at_topic_ = true, work_ = false, deaf_ = false;
  Ms wait_until_ = 0;
  std::uint64_t resting_until_boot_ = 0;
  std::deque<Order> orders_;
  std::map<RunNumber, Run> runs_;
  std::deque<Outgoing> pending_;
  unsigned report_failures_ = 0, lease_failures_ = 0;
  std::map<RunNumber, ClaimRef> claims_;
};

}  // namespace mycojobs::sim
