// The artifacts that the record of an ended job lists. All other files of the job are deleted, on the disk of a host
// (artifact_cleanup.h) and in the object storage (bucket/bucket_sweep.h).
#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/result.h"
#include "model/records.h"
#include "store/record_store.h"

namespace mycojobs {

struct RecordedArtifacts {
  bool is_record_missing = false;
  std::set<std::string> hashes;
};

// Reads the artifacts that the record of a job lists. Returns no value if the list can still change. In this case no
// file of the job may be deleted. Returns the errors of the store.
Result<std::optional<RecordedArtifacts>> read_recorded_artifacts(RecordStore&, Id context, const std::string& job_key);

}  // namespace mycojobs
