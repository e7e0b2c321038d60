#include "worker/upkeep/artifact_cleanup_loop.h"

#include <algorithm>

#include "artifacts/artifact_usage.h"
#include "base/log.h"
#include "model/codec.h"

namespace mycojobs {
namespace {

constexpr std::uint64_t kMinRoundPauseMs = 1000;  // a pause of at least this length means that the round has ended

// Returns the minimum time between the starts of two rounds. It is short enough that artifacts do not outlive their
// records for long.
std::uint64_t cleanup_interval_ms(const WorkerSettings& settings) {
  constexpr std::uint64_t kMinIntervalMs = 1000;
  constexpr std::uint64_t kMaxIntervalMs = 60000;
  const std::uint64_t retention_ms = settings.retention.shortest_ms();
  return retention_ms == 0 ? kMaxIntervalMs : std::clamp(retention_ms / 4, kMinIntervalMs, kMaxIntervalMs);
}

}  // namespace

ArtifactCleanupLoop::ArtifactCleanupLoop(RecordStore& store, const Clock& clock, StoreHealth& health,
                                         const WorkerSettings& settings)
    : store_(store),
      health_(health),
      settings_(settings),
      contexts_(settings.contexts),
      interval_ms_(cleanup_interval_ms(settings)),
      cleanup_(clock, settings.state_dir, interval_ms_,
               ArtifactCache::Limits{settings.cache_bytes, settings.cache_age_ms}) {}

void ArtifactCleanupLoop::on_failed(Id context, const Error& error) {
  if (error.code == Code::unavailable) return health_.on_failure(context, "cleaning up artifacts", error);
  log(LogLevel::error, "worker", "context {}: artifacts stay: {}", context, error.message);
}

// Shows the artifacts of the context on this host in the metrics and in the record of the runner, which
// context.overview reads.
void ArtifactCleanupLoop::publish_artifact_totals(Id context) {
  if (settings_.state_dir.empty()) return;
  const ArtifactTotals totals = read_artifact_totals(settings_.state_dir, context);
  const auto set = [&](Metric metric, const char* scope, std::uint64_t bytes) {
    settings_.metrics->set(metric, {context, scope}, static_cast<double>(bytes));
  };
  set(Metric::artifact_bytes, "all", totals.bytes);
  set(Metric::artifact_bytes, "largest", totals.largest_bytes);
  set(Metric::artifact_quota, "all", settings_.context_artifact_bytes);
  set(Metric::artifact_quota, "largest", settings_.caller_artifact_bytes);
  settings_.metrics->set(Metric::artifact_cache, {context}, static_cast<double>(cleanup_.cache_bytes(context)));
  if (const auto published = published_.find(context);
      published != published_.end() && published->second == totals.bytes)
    return;
  const Fields fields{{"artifact_bytes", std::to_string(totals.bytes)},
                      {"artifact_quota_bytes", std::to_string(settings_.context_artifact_bytes)}};
  const auto written = store_.change_record_if(context, redis_key(settings_.runner), fields, {});
  if (!written && written.error().code == Code::unavailable)
    return health_.on_failure(context, "publishing artifacts", written.error());
  if (written) published_[context] = totals.bytes;
  if (written || written.error().code == Code::not_found) return;  // a deleted record is not created again
  log(LogLevel::warn, "worker", "context {}: the record of the runner does not show its artifacts: {}", context,
      written.error().message);
}

std::uint64_t ArtifactCleanupLoop::run_once() {
  std::uint64_t pause = interval_ms_;  // also the pause after an error
  for (const Id context : contexts_) {
    if (stopped()) break;
    if (const auto next = cleanup_.run_step(store_, context); next) {
      pause = std::min(pause, *next);
      if (*next >= kMinRoundPauseMs) publish_artifact_totals(context);
    } else {
      on_failed(context, next.error());
    }
  }
  return pause;
}

}  // namespace mycojobs
