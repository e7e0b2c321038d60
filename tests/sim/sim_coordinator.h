// A coordinator on one thread: the rounds of agent/coordinator for the stage's context. A killed coordinator is
// restarted. It receives no hints and polls frequently instead.
#pragma once

#include <memory>
#include <string>

#include "store/flow_store.h"
#include "world.h"

namespace mycojobs {
class ContextLoop;
}

namespace mycojobs::sim {

class SimCoordinator final : public Program, public Actor {
 public:
  SimCoordinator(World&, std::string name);
  ~SimCoordinator() override;

  Ms due() const override { return due_; }
  void step() override;
  FlowStore& own_flows() { return *own_flows_; }  // without faults, for checking the results

 private:
  void begin();
  void on_killed() override;

  World& world_;
  ShiftedClock clock_;
  std::unique_ptr<FlowStore> own_flows_;
  std::unique_ptr<ContextLoop> rounds_;
  Ms due_ = 0;
  unsigned starts_ = 0;
};

}  // namespace mycojobs::sim
