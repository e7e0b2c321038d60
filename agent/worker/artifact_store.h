// The port ArtifactStore over the folders of worker/artifacts.h, with one more below them:
//
//   incoming/<parcel>.<sender>/<sha256>.<bytes>.part    what has come of a file so far
//   incoming/<parcel>.<sender>/<sha256>.<bytes>         whole, its hash was looked at
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "mycojobs/artifact_store.h"
#include "mycojobs/clock.h"

namespace mycojobs {

// state_dir empty: null. sweep_every_ms: as of ArtifactSweep. max_incoming: bytes, of what may come into all contexts
// (worker/incoming_room.h). The clock outlives it.
std::shared_ptr<ArtifactStore> make_artifact_store(const std::string& state_dir, const Clock&,
                                                   std::uint64_t sweep_every_ms, std::uint64_t max_incoming);

}  // namespace mycojobs
