#include "sim_coordinator.h"

#include <algorithm>

#include "coordinator/context_loop.h"

namespace mycojobs::sim {
namespace {

constexpr std::uint32_t kLeaseMs = 1000;
constexpr Ms kMaxPauseMs = 200;      // maximum pause between two rounds
constexpr Ms kRetryDelayMs = 50;     // pause after a round that the server did not answer
constexpr Ms kPollIntervalMs = 10;   // interval of the check whether the coordinator may continue
constexpr Ms kRestartDelayMs = 300;  // pause until a killed coordinator is restarted
constexpr Ms kBootMs = 900000;

}  // namespace

SimCoordinator::SimCoordinator(World& world, std::string name)
    : Program(std::move(name)),
      Actor(nullptr),
      world_(world),
      clock_(world.time(), kBootMs),
      fault_free_flows_(world.server().open_flows().value()) {
  start();
  world_.add(*this);
}

SimCoordinator::~SimCoordinator() { world_.remove(*this); }

void SimCoordinator::start() {
  ContextSettings settings;
  settings.context = kContext;
  settings.instance = name() + "." + std::to_string(++starts_);
  settings.lease_ms = kLeaseMs;
  context_loop_ = std::make_unique<ContextLoop>(world_.open_flows(*this), world_.open_store(*this), clock_, settings);
}

void SimCoordinator::on_killed() { due_ = world_.now() + kRestartDelayMs; }

void SimCoordinator::step() {
  if (world_.is_stopped(*this)) {
    due_ = world_.now() + kPollIntervalMs;
    return;
  }
  if (is_killed()) {
    world_.revive(*this);
    start();
  }
  const auto pause_ms = context_loop_->run_round();
  if (!is_killed()) due_ = world_.now() + std::min(kMaxPauseMs, pause_ms ? *pause_ms : kRetryDelayMs);
}

}  // namespace mycojobs::sim
