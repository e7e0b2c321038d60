// Folders of the host for zygotes and runs, and checks of their ownership. Used in the launcher and its children, which
// see the host's user ids.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "sandbox/volume.h"

namespace mycojobs::sandbox {

// A script host may run code with more rights than a job only if the code and all folders of its path belong to root or
// the agent's user, and no other user can change them.
//
// Returns the problem of one file or folder with the remedy, or an empty text. With `allow_sticky` a parent folder may
// be writable for others if its sticky bit protects the entries of other users.
std::string find_ownership_problem(const struct stat&, bool allow_sticky);
// Checks a path with every folder and symbolic link on the way. Names the failing part. A missing file is trusted,
// since it cannot run.
std::string check_path_ownership(const std::string& path);
// Checks a folder, its contents, and the targets of its symbolic links. The duration depends on the size of the folder.
std::string check_tree_ownership(const std::string& folder);

// The mount shows files of `files` as files of `job` (mount_ids.h).
struct OwnerMapping {
  FileOwner files, job;
};

// A folder of the host for a run.
struct FolderMount {
  std::string path;
  bool writable = false, exec = false;
  std::optional<OwnerMapping> mapping = {};  // without a value the owners of the host are shown
  bool must_be_writable = false;             // whether a folder that the host has mounted read-only is refused
};

// Opens a granted folder of the host as a detached mount for the namespace of a run. Includes mounts below it; nosuid,
// nodev, read-only unless writable, noexec unless exec. Symbolic links are not followed, since another user could
// replace the folder by a link. Errors, naming the path: invalid, also for must_be_writable; unsupported: the owner
// cannot be mapped; unavailable: the host lacks a resource.
Result<Fd> open_granted(const FolderMount&);

// Opens a folder with code for a script host: read-only and executable. The folder and its parents must pass the
// ownership check of find_ownership_problem(). Error: invalid, naming the path and the remedy.
Result<Fd> open_trusted(const std::string& path);

}  // namespace mycojobs::sandbox
