// The folders of a sandbox that its jobs can write, brought back to how they were made before the next job comes.
#pragma once

#include <sys/stat.h>

#include <vector>

#include "base/fd.h"

namespace mycojobs::sandbox {

class OwnFolders {
 public:
  // As they are now: after they have been made, before a job runs. kept: of ZygoteHost::folder, or null.
  explicit OwnFolders(const char* kept);
  // Removes what a job has left, if that is little, and undoes changes of mode. False: there is more, or something that
  // cannot be undone: the sandbox is not to be used again. While no process of a job lives.
  bool tidy() const;

 private:
  struct Folder {
    const char* path;
    const char* kept;  // the one name that belongs in it
    Fd fd;             // O_PATH: asking it costs no walk
    struct stat made;
  };
  static bool tidy(const Folder&, int& left);
  bool has_kept() const;

  std::vector<Folder> folders_;  // an inner one before what it lies in
};

}  // namespace mycojobs::sandbox
