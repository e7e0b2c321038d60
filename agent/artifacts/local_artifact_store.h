// Implements ArtifactStore on the folders of artifacts/job_artifacts.h, with an additional folder for received files:
//
//   incoming/<bundle>.<sender>/<sha256>.<bytes>.part    incomplete file
//   incoming/<bundle>.<sender>/<sha256>.<bytes>         complete file with a verified hash
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "artifacts/artifact_store.h"
#include "artifacts/transfer/artifact_cache.h"
#include "artifacts/transfer/artifact_fetcher.h"
#include "base/clock.h"

namespace mycojobs {

// Returns null if state_dir is empty. `cache_limits`: see ArtifactCleanup. With a `fetcher`, files
// that are not on this host are fetched from the runners of their jobs. `cleanup_interval_ms` is the interval of
// ArtifactCleanup. `max_incoming_bytes` is the limit for the incoming/ folders of all contexts
// (artifacts/inbound_quota.h). The clock must outlive the store.
std::shared_ptr<ArtifactStore> make_artifact_store(const std::string& state_dir, const Clock&,
                                                   std::uint64_t cleanup_interval_ms, std::uint64_t max_incoming_bytes,
                                                   std::optional<ArtifactCache::Limits> cache_limits = std::nullopt,
                                                   std::shared_ptr<ArtifactFetcher> fetcher = nullptr);

}  // namespace mycojobs
