#include "worker/leases/lease_keeper.h"

#include <vector>

#include "model/runner_words.h"
#include "worker/leases/runner_registration.h"

namespace mycojobs {
namespace {

constexpr std::size_t kMaxDetailBytes = 400;

}  // namespace

LeaseKeeper::LeaseKeeper(Store& store, const Clock& clock, StoreHealth& health, WorkerSettings settings,
                         RunnerHolder holder, Callbacks callbacks)
    : store_(store),
      clock_(clock),
      health_(health),
      settings_(std::move(settings)),
      holder_(std::move(holder)),
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

std::map<Id, std::size_t> LeaseKeeper::count_leases() {
  std::lock_guard lock(mutex_);
  std::map<Id, std::size_t> counts;
  for (const Id context : settings_.contexts) counts[context] = claims_[context].size();
  return counts;
}

std::uint64_t LeaseKeeper::run_once() {
  bool is_complete = true;
  for (Id context : settings_.contexts) {
    if (!pauses_.can_try(context)) {
      is_complete = false;
      continue;
    }
    // Leases first, since a run is killed when its lease is not renewed in time.
    const bool is_renewed = renew_leases(context) && renew_runner_hold(context);
    if (is_renewed) {
      pauses_.on_success(context);
    } else {
      pauses_.on_failure(context);
    }
    is_complete = is_complete && is_renewed;
  }
  failures_ = is_complete ? 0 : failures_ + 1;
  // A third of the lease leaves two more tries before it ends.
  return failures_ > 0 ? static_cast<std::uint64_t>(retry_pause_ms(failures_)) : settings_.lease_ms / 3;
}

void LeaseKeeper::replace_ceilings(std::shared_ptr<const Ceilings> ceilings) {
  ceilings_.replace(std::move(ceilings));
  wake();
}

bool LeaseKeeper::renew_runner_hold(Id context) {
  if (const auto ceilings = ceilings_.now()) settings_.ceilings = *ceilings;
  Runner runner = make_runner_record(settings_, context);
  runner.seen_ms = clock_.unix_ms();
  if (const std::string reason = callbacks_.unready_reason(); !reason.empty())
    runner.detail = std::string(kRunnerPaused) + reason.substr(0, kMaxDetailBytes);
  RunnerHolder current_holder;
  auto hold = store_.hold_runner(context, runner, holder_, settings_.lease_ms, "", current_holder);
  if (hold) return health_.on_success(context), true;
  if (hold.error().code == Code::conflict) {
    callbacks_.on_runner_lost(hold.error().message);
    return true;
  }
  health_.on_failure(context, "renewing the claim of the runner id", hold.error());
  return false;
}

bool LeaseKeeper::renew_leases(Id context) {
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
  auto answers = store_.renew(context, claims, settings_.lease_ms);
  if (!answers) {
    health_.on_failure(context, "renewing leases", answers.error());
    return false;
  }
  health_.on_success(context);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    switch ((*answers)[i]) {
      case Renewal::cancel:
        callbacks_.on_cancelled(runs[i]);
        [[fallthrough]];
      case Renewal::renewed:
        callbacks_.on_renewed(runs[i], compute_fence_boot_ms(sent, settings_.lease_ms));
        break;
      case Renewal::stale:
        callbacks_.on_stale(runs[i]);
        break;
    }
  }
  return true;
}

}  // namespace mycojobs
