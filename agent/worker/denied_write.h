// The cause of a denied write in a folder of the host, for the error of a job. A job sees neither the user ids of the
// host nor its own, so only the agent can name the owner that prevents the write.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/job_end.h"
#include "sandbox/sandbox.h"

namespace mycojobs {

// A folder of the host in a job.
struct JobFolder {
  std::string path;       // in the job
  std::string host_path;  // the same folder on the host
  bool writable = false;
  FileOwner owner;  // owner of the files that the job creates
};

// Returns the folders of fs.write and the volumes. file_owner: the owner of files below fs.write.
std::vector<JobFolder> list_job_folders(const Grants&, const FileOwner& file_owner);
// Returns the owner of files that jobs of the context create below fs.write, as this process would start the sandbox.
FileOwner find_file_owner(const std::vector<ContextFiles>&, ContextId);

// A denied access to a file in a folder of the host.
struct DeniedAccess {
  JobFolder folder;
  std::string relative;       // path in the folder, without a slash at its ends; empty for the folder itself
  bool is_read_only = false;  // whether the error says that the file system is read-only
};

// Returns the last denied access that the error of a failed job, or else its standard error output, reports in one of
// the folders. Returns no value if they report none.
std::optional<DeniedAccess> find_denied_access(const JobEnd&, const std::vector<JobFolder>&);

// Returns the cause, such as "/srv/out/backup belongs to user 1000 and has mode 0755; files of this job belong to user
// 34", or an empty text if the files would permit the access now. Reads files of the host without following links, so
// it can block on the disk of the folder.
std::string find_cause(const DeniedAccess&);

}  // namespace mycojobs
