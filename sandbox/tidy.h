// The folders of a slot that its jobs can write, brought back to how they were made before the next job comes.
#pragma once

#include <sys/stat.h>

#include <array>

namespace mycojobs::sandbox {

class OwnFolders {
 public:
  // As they are now. After they have been made, before a job runs.
  OwnFolders();
  // Removes what a job has left, if that is little, and undoes changes of mode. False: there is more, or something that
  // cannot be undone: the slot is not to be used again. While no process of a job lives.
  bool tidy() const;

 private:
  static constexpr std::array<const char*, 3> kPaths = {"/tmp", "/job", "/dev/shm"};
  std::array<struct stat, kPaths.size()> made_ = {};
};

}  // namespace mycojobs::sandbox
