#include "worker/sweeper.h"

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

Sweeper::Sweeper(RecordStore& store, const Clock& clock, StoreHealth& health, const WorkerSettings& settings)
    : store_(store),
      health_(health),
      contexts_(settings.contexts),
      every_ms_(sweep_every_ms(settings)),
      sweep_(clock, settings.state_dir, every_ms_) {}

void Sweeper::failed(Id context, const Error& error) {
  if (error.code == Code::unavailable) return health_.failed(context, "sweeping artifacts", error);
  log(LogLevel::error, "worker", "context {}: artifacts stay: {}", context, error.message);
}

std::uint64_t Sweeper::turn() {
  std::uint64_t pause = every_ms_;  // which is what the sweep waits after an error, too
  for (const Id context : contexts_) {
    if (stopped()) break;
    if (const auto next = sweep_.look_after(store_, context); next) {
      pause = std::min(pause, *next);
    } else {
      failed(context, next.error());
    }
  }
  return pause;
}

}  // namespace mycojobs
