// Finds artifacts of jobs for clients on any host. Separate functions read the store and the disk, so that a caller
// holds no connection to the store while a disk blocks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "artifacts/transfer/artifact_source.h"
#include "base/fd.h"
#include "model/artifact.h"
#include "service/service_caller.h"

namespace mycojobs::service {

// Whether the holder of the artifacts of a job can send them.
enum class HolderState {
  live,
  away,     // the agent or the coordinator does not run or is not connected
  deleted,  // the record of the runner does not exist any more
  unknown,  // no record names a holder
};

struct ArtifactListing {
  std::string job_key;
  Id context = 0;
  FileHolder holder;        // the agent that ran the job, or the coordinator that received its answer
  std::string holder_name;  // "runner 3 on host atlas"
  HolderState holder_state = HolderState::unknown;
  std::vector<std::string> store_names;  // names of the store, for the folders of the job; empty without artifacts
  std::vector<ListedArtifact> files;
};
// Reads the list of a job's artifacts from the store. Errors: denied, not_found (the job), and those of the store.
Result<ArtifactListing> load_artifact_listing(const RequestContext&, Store&, const std::string& job_key);
// Returns the artifact with this name. Error not_found: the job has none, with the remedy.
Result<ListedArtifact> find_artifact(const ArtifactListing&, const std::string& name);
// Returns the file for a transfer. `label` names job and file.
RemoteArtifact make_remote_artifact(const ArtifactListing&, const ListedArtifact&);

// Returns the folders on this host that can contain the artifacts, without access to the disk. state_dir: folder of
// this host; empty: none.
std::vector<std::string> list_artifact_folders(const std::string& state_dir, const ArtifactListing&);
// Opens the file in the first of the folders that has it. Returns an empty descriptor if no folder has it. Error io.
// Reads the disk.
Result<Fd> open_artifact(const std::vector<std::string>& folders, const ListedArtifact&);

// Returns why a file that is not on this host cannot be read now, with the remedy. Returns an empty text if the runner
// that has the file is live, or the file is in own_object_store, the object storage of this process (empty: none).
std::string describe_unreadable(const ArtifactListing&, const ListedArtifact&, const std::string& own_object_store);
// Returns a message about an artifact: "job:12:7: artifact \"report.txt\": <reason>".
std::string describe_artifact_problem(const ArtifactListing&, std::string_view name, std::string_view reason);

}  // namespace mycojobs::service
