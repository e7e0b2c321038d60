// Hosts with their own clocks, and the processes of jobs; these replace launcher, zygote and init for an agent.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "invariant_checker.h"
#include "sandbox/sandbox.h"
#include "world.h"

namespace mycojobs::sim {

// The script of a job: "KIND DURATION_MS".
//   ok       succeeds
//   lines    writes three lines, and succeeds
//   fail     fails at each attempt
//   flaky    fails at the first attempt, and succeeds at the next
//   poison   kills the agent instead of ending
//   lost     ends as lost at the first delivery of the first attempt, as if the launcher had died; later succeeds
//   stubborn succeeds; a kill ends it only after the grace period, since it ignores TERM
struct JobScript {
  std::string kind;
  Ms duration_ms = 0;
};
JobScript parse_job_script(const std::string&);

struct Host {
  Host(const World& world, std::string host_name, Ms boot_ms)
      : name(std::move(host_name)), clock(world.time(), boot_ms) {}
  std::string name;
  ShiftedClock clock;
  struct Instance {
    Id runner;
    std::string name;
    Ms ended_at_ms;  // end of the last process of the instance
  };
  std::vector<Instance> instances;  // killed instances whose jobs have not been requeued
  std::uint32_t failing_launches = 0;
  std::uint32_t hanging_launches = 0;  // launches for which a required folder does not answer
};

// The processes of a run. They end by themselves, by a kill or at their fence, even while other programs are stopped.
class Process final : public Actor {
 public:
  struct Parameters {
    RunSpec spec;
    std::string job;
    JobScript script;
    std::uint64_t epoch = 0;
    std::uint32_t attempt = 1, deliveries = 1;
  };
  struct Callbacks {
    std::function<void(const std::string& line)> on_line;
    std::function<void(RunStatus)> on_ended;  // no process is left
    std::function<void()> on_poisoned;
  };
  Process(World&, InvariantChecker&, const Host&, Parameters, Callbacks);
  ~Process() override { world_.remove(*this); }

  Ms due() const override;
  void step() override;
  void kill(KillReason, Ms grace);
  void fence(std::uint64_t boot_ms);
  void die_at(Ms time_ms) { dies_at_ = std::min(dies_at_, time_ms); }  // the death of the launcher
  bool has_ended() const { return has_ended_; }
  const Parameters& parameters() const { return parameters_; }

 private:
  void end(RunStatus);
  Ms fence_time() const;

  World& world_;
  InvariantChecker& checker_;
  const Host& host_;
  Parameters parameters_;
  Callbacks callbacks_;
  Ms ends_at_, writes_at_ = kNever, killed_at_ = kNever, dies_at_ = kNever;
  Ms write_interval_ms_ = 0;
  bool has_ended_ = false;
};

}  // namespace mycojobs::sim
