#include "worker/lease_keeper.h"

#include <poll.h>

#include <vector>

namespace mycojobs {

LeaseKeeper::LeaseKeeper(std::unique_ptr<Store> store, const Clock& clock, StoreHealth& health, WorkerSettings settings,
                         RunnerHold hold, Callbacks callbacks)
    : store_(std::move(store)),
      clock_(clock),
      health_(health),
      settings_(std::move(settings)),
      hold_(std::move(hold)),
      callbacks_(std::move(callbacks)),
      thread_([this] { loop(); }) {}

void LeaseKeeper::stop() {
  stop_ = true;
  wake_.wake();
  if (thread_.joinable()) thread_.join();
}

void LeaseKeeper::add(RunNumber run, const ClaimRef& claim) {
  std::lock_guard lock(mutex_);
  claims_[claim.context].emplace(run, claim);
}

void LeaseKeeper::remove(RunNumber run) {
  std::lock_guard lock(mutex_);
  for (auto& [context, claims] : claims_) claims.erase(run);
}

void LeaseKeeper::loop() {
  unsigned failures = 0;
  while (!stop_) {
    pollfd waiting{wake_.fd(), POLLIN, 0};
    // A third of the lease leaves two more tries before it ends.
    const int pause = failures > 0 ? retry_pause_ms(failures) : static_cast<int>(settings_.lease_ms / 3);
    ::poll(&waiting, 1, pause);
    wake_.take();
    if (stop_) return;
    bool ok = hold_runner();
    for (Id context : settings_.contexts) ok = renew_context(context) && ok;
    failures = ok ? 0 : failures + 1;
  }
}

bool LeaseKeeper::hold_runner() {
  for (Id context : settings_.contexts) {
    Runner runner = settings_.runner;
    runner.seen_ms = clock_.unix_ms();
    RunnerHold held_by;
    auto held = store_->hold_runner(context, runner, hold_, settings_.lease_ms, "", held_by);
    if (held) continue;
    if (held.error().code == Code::conflict) {
      callbacks_.runner_lost(held.error().message);
    } else {
      health_.failed("renewing leases", held.error());
      return false;
    }
  }
  return true;
}

bool LeaseKeeper::renew_context(Id context) {
  std::vector<RunNumber> runs;
  std::vector<ClaimRef> claims;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [run, claim] : claims_[context]) {
      runs.push_back(run);
      claims.push_back(claim);
    }
  }
  if (runs.empty()) return true;
  const std::uint64_t sent = clock_.boot_ms();
  auto answers = store_->renew(context, claims, settings_.lease_ms);
  if (!answers) {
    health_.failed("renewing leases", answers.error());
    return false;
  }
  health_.worked();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    switch ((*answers)[i]) {
      case Renewal::cancel:
        callbacks_.cancelled(runs[i]);
        [[fallthrough]];
      case Renewal::renewed:
        callbacks_.renewed(runs[i], fence_after(sent, settings_.lease_ms));
        break;
      case Renewal::stale:
        callbacks_.stale(runs[i]);
        break;
    }
  }
  return true;
}

}  // namespace mycojobs
