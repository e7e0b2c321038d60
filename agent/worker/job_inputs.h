// What a job gets from the jobs that it depends on.
#pragma once

#include <string>

#include "mycojobs/executor.h"
#include "mycojobs/store.h"

namespace mycojobs {

// Fills facts.inputs and facts.files from the records of facts.job.dependends: each once, under its name if no other
// has that as its name or id, else under its id. state_dir: where artifacts are kept (worker/artifacts.h). Error
// unavailable: the store is away; invalid: names what the job asked for and does not exist.
Result<void> gather_inputs(RecordStore&, const std::string& state_dir, JobFacts& facts);

// Name -> artifact, of a record's field. Unreadable or empty text has none. Paths are filled in.
std::vector<StoredArtifact> read_artifacts(const std::string& json, Id context, const std::string& state_dir);

}  // namespace mycojobs
