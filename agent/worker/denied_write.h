// The cause of a denied write in a folder of the host, for the error of a job. A job sees neither the user ids of the
// host nor its own, so only the agent can name the owner that prevents the write.
#pragma once

#include <string>
#include <string_view>
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

// Returns the folders of fs.write and the volumes. `files`: the owner of files below fs.write.
std::vector<JobFolder> list_job_folders(const Grants&, const FileOwner& files);
// Returns the owner of files that jobs of the context create below fs.write, as this process would start the sandbox.
FileOwner find_file_owner(const std::vector<ContextFiles>&, ContextId);

// Returns the cause of the last denied access that the text reports in one of the folders, such as "/srv/out/backup
// belongs to user 1000 and has mode 0755; files of this job belong to user 34". Empty: the text reports none, or the
// files would permit it now. Reads files of the host without following links, so it can block on a disk.
std::string explain_denied_write(std::string_view text, const std::vector<JobFolder>&);

// Appends the cause to the error of a failed job.
void add_denied_write(JobEnd&, const std::vector<JobFolder>&);

}  // namespace mycojobs
