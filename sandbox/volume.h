// Volumes and owners of files: the folders of the host in which jobs may create files that outlive them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace mycojobs {

using ContextId = std::uint32_t;

// The user and group to which the files of jobs belong on disk, as ids of the host.
struct FileOwner {
  std::uint32_t uid = 0, gid = 0;
  bool operator==(const FileOwner&) const = default;
};

// Stands for a user that was not looked up, or does not exist on this host. The kernel has no such id, and the launcher
// refuses it.
inline constexpr FileOwner kUnknownFileOwner{0xffffffffU, 0xffffffffU};

// A named folder of the host. Jobs see it at kVolumesFolder/NAME, so that scripts do not know host paths. Files that
// jobs create in it belong to `owner`, whatever user id the job has; other files are reachable by their mode bits.
struct Volume {
  std::string name;
  std::string path;  // absolute, in normal form
  bool writable = false;
  FileOwner owner;
  bool operator==(const Volume&) const = default;
};

inline constexpr const char* kVolumesFolder = "/volumes";  // of a job
inline std::string volume_mount_point(const std::string& name) { return std::string(kVolumesFolder) + '/' + name; }

// A folder of the agent with Python packages, for one run (executors/python/packages/). Runs see it at kPackagesFolder
// and can load libraries from it.
struct PackagesFolder {
  std::string path;       // absolute, in normal form, without symbolic links; empty if the run has none
  bool writable = false;  // only for a run that installs packages; the job's user id must be able to write there
  bool operator==(const PackagesFolder&) const = default;
};

inline constexpr const char* kPackagesFolder = "/packages/python";  // of a job

// The owner of files that the jobs of a context create below fs.write.
struct ContextFiles {
  ContextId context = 0;
  FileOwner owner;
  // Runs with fs.write or volumes have the user id of `owner` instead of an id of their own. They need no id mapping,
  // which some file systems and containers do not support.
  bool has_fixed_uid = false;
  bool operator==(const ContextFiles&) const = default;
};

// Returns null if the context has none.
inline const ContextFiles* find_context_files(const std::vector<ContextFiles>& files, ContextId context) {
  const auto entry = std::find_if(files.begin(), files.end(),
                                  [context](const ContextFiles& candidate) { return candidate.context == context; });
  return entry == files.end() ? nullptr : &*entry;
}

// A context without ContextFiles has an owner of its own: this id plus the context's id. The ids are below the default
// range of job ids (SandboxConfig::uid_base).
inline constexpr std::uint32_t kFirstFileUid = 1878917120, kMaxContextWithFileUid = 65535;
inline FileOwner default_file_owner(ContextId context) { return {kFirstFileUid + context, kFirstFileUid + context}; }

}  // namespace mycojobs
