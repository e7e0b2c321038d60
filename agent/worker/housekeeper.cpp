#include "worker/housekeeper.h"

#include <algorithm>

#include "base/log.h"

namespace mycojobs {
namespace {

// Between two rounds through the artifacts: soon enough that they do not outlive their records for long.
std::uint64_t sweep_every_ms(const WorkerSettings& settings) {
  constexpr std::uint64_t kLeastMs = 1000;
  constexpr std::uint64_t kMostMs = 60000;
  return settings.retention_ms == 0 ? kMostMs : std::clamp(settings.retention_ms / 4, kLeastMs, kMostMs);
}

}  // namespace

Housekeeper::Housekeeper(HouseStore store, const Clock& clock, StoreHealth& health, StoreServers& servers,
                         WorkerSettings settings)
    : store_(store),
      health_(health),
      clock_(clock),
      settings_(std::move(settings)),
      housekeeping_(clock, settings_),
      sweep_(clock, settings_.state_dir, sweep_every_ms(settings_)),
      pauses_(clock, servers) {}

void Housekeeper::hurry() {
  if (!hurry_.exchange(true)) wake();
}

Result<std::uint64_t> Housekeeper::look_after(Id context) {
  MJ_TRY(jobs, housekeeping_.look_after(store_, context));
  auto artifacts = sweep_.look_after(store_, context);
  if (!artifacts && artifacts.error().code == Code::unavailable) return artifacts;
  // Jobs are looked after, whatever becomes of their files.
  if (!artifacts) log(LogLevel::error, "worker", "context {}: artifacts stay: {}", context, artifacts.error().message);
  return artifacts ? std::min(jobs, *artifacts) : jobs;
}

std::uint64_t Housekeeper::turn() {
  if (hurry_.exchange(false)) housekeeping_.hurry();
  std::uint64_t pause = 1000;
  for (Id context : settings_.contexts) {
    if (stopped()) break;
    pulse_.beat();  // each may wait for a server of its own
    if (pauses_.may_try(context)) {
      const std::uint64_t began = clock_.boot_ms();
      auto next = look_after(context);
      if (next) {
        pauses_.worked(context);
        pause = std::min(pause, *next);
        continue;
      }
      health_.failed(context, "looking after jobs", next.error());
      if (next.error().code == Code::unavailable) housekeeping_.blind(context);
      pauses_.failed(context, began);
    }
    pause = std::min(pause, pauses_.left_ms(context));
  }
  return pause;
}

}  // namespace mycojobs
