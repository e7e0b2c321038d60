#include "worker/leases/lease_keeper.h"

#include <vector>

#include "model/runner_words.h"
#include "worker/leases/runner_registration.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxDetailBytes = 400;

}  // namespace

LeaseKeeper::LeaseKeeper(StoreRoles<ClaimStore, RunnerStore> store, const Clock& clock, StoreHealth& health,
                         WorkerSettings settings, RunnerHolder hold, Callbacks callbacks)
    : store_(store),
      clock_(clock),
      health_(health),
      settings_(std::move(settings)),
      hold_(std::move(hold)),
      callbacks_(std::move(callbacks)),
      pauses_(clock) {}

void LeaseKeeper::add(RunNumber run, const ClaimRef& claim) {
  std::lock_guard lock(mutex_);
  claims_[claim.context].emplace(run, claim);
}

void LeaseKeeper::remove(std::span<const RunNumber> runs) {
  std::lock_guard lock(mutex_);
  for (auto& [context, claims] : claims_) {
    for (RunNumber run : runs) claims.erase(run);
  }
}

std::map<Id, std::size_t> LeaseKeeper::held() {
  std::lock_guard lock(mutex_);
  std::map<Id, std::size_t> counts;
  for (const Id context : settings_.contexts) counts[context] = claims_[context].size();
  return counts;
}

std::uint64_t LeaseKeeper::run_once() {
  bool ok = true;
  for (Id context : settings_.contexts) {
    if (!pauses_.may_try(context)) {
      ok = false;
      continue;
    }
    // Leases first, since a run is killed when its lease is not renewed in time.
    const bool done = renew_context(context) && hold_runner(context);
    if (done) {
      pauses_.on_success(context);
    } else {
      pauses_.failed(context);
    }
    ok = ok && done;
  }
  failures_ = ok ? 0 : failures_ + 1;
  // A third of the lease leaves two more tries before it ends.
  return failures_ > 0 ? static_cast<std::uint64_t>(retry_pause_ms(failures_)) : settings_.lease_ms / 3;
}

void LeaseKeeper::replace_ceilings(std::shared_ptr<const Ceilings> ceilings) {
  ceilings_.replace(std::move(ceilings));
  wake();
}

bool LeaseKeeper::hold_runner(Id context) {
  if (const auto ceilings = ceilings_.now()) settings_.ceilings = *ceilings;
  Runner runner = runner_record(settings_, context);
  runner.seen_ms = clock_.unix_ms();
  if (const std::string why = callbacks_.why_not_ready(); !why.empty())
    runner.detail = std::string(kRunnerPaused) + why.substr(0, kMaxDetailBytes);
  RunnerHolder held_by;
  auto held = store_.as<RunnerStore>().hold_runner(context, runner, hold_, settings_.lease_ms, "", held_by);
  if (held) return health_.on_success(context), true;
  if (held.error().code == Code::conflict) {
    callbacks_.runner_lost(held.error().message);
    return true;
  }
  health_.failed(context, "renewing the claim of the runner id", held.error());
  return false;
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
  auto answers = store_.as<ClaimStore>().renew(context, claims, settings_.lease_ms);
  if (!answers) {
    health_.failed(context, "renewing leases", answers.error());
    return false;
  }
  health_.on_success(context);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    switch ((*answers)[i]) {
      case Renewal::cancel:
        callbacks_.cancelled(runs[i]);
        [[fallthrough]];
      case Renewal::renewed:
        callbacks_.renewed(runs[i], fence_deadline(sent, settings_.lease_ms));
        break;
      case Renewal::stale:
        callbacks_.stale(runs[i]);
        break;
    }
  }
  return true;
}

}  // namespace mycojobs
