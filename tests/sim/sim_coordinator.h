// A coordinator on one thread: runs the ContextLoop of agent/coordinator for the context of the stage. A killed
// coordinator is restarted. It receives no hints and polls frequently instead.
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
  FlowStore& fault_free_flows() { return *fault_free_flows_; }  // for checking the results

 private:
  void start();
  void on_killed() override;

  World& world_;
  ShiftedClock clock_;
  std::unique_ptr<FlowStore> fault_free_flows_;
  std::unique_ptr<ContextLoop> context_loop_;
  Ms due_ = 0;
  unsigned starts_ = 0;
};

}  // namespace mycojobs::sim
