// The files and folders of a zygote: folders of the host in its root, and files that it has loaded.
#pragma once

#include <sys/stat.h>
#include <time.h>

#include <string>
#include <vector>

#include "sandbox/sandbox.h"

namespace mycojobs::sandbox {

// The files that a zygote has loaded: mapped libraries and imported modules. After an update of one of them on the
// host, jobs of this zygote would still use the previous version.
class LoadedFileSet {
 public:
  // Must be created before the zygote is started: a file that changes afterwards is in doubt.
  LoadedFileSet();
  // Adds paths in the zygote's root. Paths outside of the system and the host's folders are ignored.
  void add(const std::vector<std::string>& files, const ScriptHost&);
  // Returns the path of a file that differs, or may differ, from the loaded file, or an empty text.
  std::string find_changed_file() const;
  // Returns the problem of a file that users other than root and the agent's user can change (host_folders.h), or
  // an empty text.
  std::string find_trust_problem() const;

 private:
  struct File {
    std::string path;
    struct stat initial_state {};
    bool is_uncertain = false;  // the file changed while the zygote was started
  };
  timespec created_at_{};
  std::vector<File> files_;
};

// Main function of a launcher's child (HostChildren) for a zygote with folders; a separate process, since a disk may
// hang.
//   1. Checks the folders (check_tree_ownership()) and opens them. Sends RequestRefused, or FolderOpened + {mount} for
//      each folder.
//   2. Receives LoadedFiles until Ready. Sends RequestRefused or Ready.
//   3. Checks the files every five seconds. After a change, sends LoadedFiles with the path and exits.
void watch_folders(const ScriptHost&, int socket);

}  // namespace mycojobs::sandbox
