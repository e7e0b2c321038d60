// Hosts with their own clocks, and the processes of jobs; these replace launcher, zygote and init for an agent.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sandbox/sandbox.h"
#include "witness.h"
#include "world.h"

namespace mycojobs::sim {

// The script of a job: "<kind> <ms>".
//   ok       succeeds
//   lines    succeeds, and writes three lines
//   fail     fails at every attempt
//   flaky    fails at its first attempt
//   poison   kills its agent
//   lost     kills its launcher, at the first delivery
//   stubborn succeeds, and ignores TERM
struct Script {
  std::string kind;
  Ms takes = 0;
};
Script parse_script(const std::string&);

struct Host {
  Host(const World& world, std::string host_name, Ms boot) : name(std::move(host_name)), clock(world.time(), boot) {}
  std::string name;
  ShiftedClock clock;
  struct Instance {
    Id runner;
    std::string name;
    Ms gone_at;  // end of its last process
  };
  std::vector<Instance> instances;  // killed instances whose jobs have not been requeued
  std::uint32_t failing_launches = 0;
  std::uint32_t hanging_launches = 0;  // launches for which a required folder does not answer
};

// The processes of a run. They end by themselves, by a kill or at their fence, even while other programs are stopped.
class Process final : public Actor {
 public:
  struct Facts {
    RunSpec spec;
    std::string job;
    Script script;
    std::uint64_t epoch = 0;
    std::uint32_t attempt = 1, deliveries = 1;
  };
  struct Callbacks {
    std::function<void(const std::string& line)> wrote;
    std::function<void(RunStatus)> ended;  // no process is left
    std::function<void()> poisoned;
  };
  Process(World&, Witness&, const Host&, Facts, Callbacks);
  ~Process() override { world_.remove(*this); }

  Ms due() const override;
  void step() override;
  void kill(KillReason, Ms grace);
  void fence(std::uint64_t boot_ms);
  void die_at(Ms moment) { dies_at_ = std::min(dies_at_, moment); }  // together with the launcher
  bool gone() const { return gone_; }
  const Facts& facts() const { return facts_; }

 private:
  void end(RunStatus);
  Ms fence_time() const;

  World& world_;
  Witness& witness_;
  const Host& host_;
  Facts facts_;
  Callbacks callbacks_;
  Ms ends_at_, writes_at_ = kNever, killed_at_ = kNever, dies_at_ = kNever;
  Ms writes_every_ = 0;
  bool gone_ = false;
};

}  // namespace mycojobs::sim
