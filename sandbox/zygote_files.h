// What a zygote is made of: the folders of the host that its root has, the files that it has loaded.
#pragma once

#include <sys/stat.h>
#include <time.h>

#include <string>
#include <vector>

#include "mycojobs/sandbox.h"

namespace mycojobs::sandbox {

// The files that a zygote is made of: libraries that are mapped, modules that it has imported. When one of them is
// updated on the host, the zygote has outlived it: jobs would go on with the old one.
class Loaded {
 public:
  // Make it before the zygote is started: a file that changes from now on is in doubt.
  Loaded();
  // Under the names of the zygote's root. What lies neither in the system nor in a folder of the host's is left out.
  void add(const std::vector<std::string>& files, const ScriptHost&);
  // The path of a file that is not the one that was loaded, or may not be; empty: none.
  std::string changed() const;
  // What is wrong with one that others than root and our user can change (host_folders.h); empty: nothing.
  std::string mistrusted() const;

 private:
  struct File {
    std::string path;
    struct stat was {};
    bool in_doubt = false;  // it has changed while the zygote came up
  };
  timespec since_{};
  std::vector<File> files_;
};

// What a child of the launcher does that stands by a zygote whose host has folders (HostChildren): a disk may hang.
// First it looks through them (mistrust_tree()) and opens them: Refused, or FolderOpened + {mount} for each, in their
// order. Then it is told what the zygote has loaded, LoadedFiles until Ready, and says Refused or Ready. Then it looks
// every five seconds, and leaves when it has said what has changed: LoadedFiles.
void stand_by_folders(const ScriptHost&, int socket);

}  // namespace mycojobs::sandbox
