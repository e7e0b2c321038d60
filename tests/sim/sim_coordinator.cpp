#include "sim_coordinator.h"

#include <algorithm>

#include "coordinator/context_loop.h"

namespace mycojobs::sim {
namespace {

constexpr std::uint32_t kLeaseMs = 1000;
constexpr Ms kMaxMs = 200;      // maximum pause between two rounds
constexpr Ms kAgainMs = 50;     // pause after a round that the server did not answer
constexpr Ms kLookMs = 10;      // interval of the check whether the coordinator may continue
constexpr Ms kRestartMs = 300;  // pause until a killed coordinator is restarted
constexpr Ms kBootMs = 900000;

}  // namespace

SimCoordinator::SimCoordinator(World& world, std::string name)
    : Program(std::move(name)),
      Actor(nullptr),
      world_(world),
      clock_(world.time(), kBootMs),
      own_flows_(world.server().open_flows().value()) {
  begin();
  world_.add(*this);
}

SimCoordinator::~SimCoordinator() { world_.remove(*this); }

void SimCoordinator::begin() {
  ContextSettings settings;
  settings.context = kContext;
  settings.instance = name() + "." + std::to_string(++starts_);
  settings.lease_ms = kLeaseMs;
  rounds_ = std::make_unique<ContextLoop>(world_.open_flows(*this), world_.open_store(*this), clock_, settings);
}

void SimCoordinator::on_killed() { due_ = world_.now() + kRestartMs; }

void SimCoordinator::step() {
  if (world_.is_stopped(*this)) {
    due_ = world_.now() + kLookMs;
    return;
  }
  if (killed()) {
    world_.revive(*this);
    begin();
  }
  const auto next = rounds_->run_round();
  if (!killed()) due_ = world_.now() + std::min(kMaxMs, next ? *next : kAgainMs);
}

}  // namespace mycojobs::sim
