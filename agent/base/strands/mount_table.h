// Tells which disk a path is on, without access to the disk, which may hang.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"

namespace mycojobs {

// The mount points of this process, as the kernel lists them in /proc/self/mountinfo. Not thread-safe.
class MountTable {
 public:
  MountTable();
  // Returns the mount point of the disk of an absolute path, which need not exist. Symbolic links are not followed,
  // since reading a link can block. Returns "/" if the mount points cannot be read.
  std::string find_mount_point(const std::string& path);

 private:
  void read_if_changed();

  Fd mountinfo_;
  bool is_read_ = false;
  std::vector<std::string> mount_points_;
};

}  // namespace mycojobs
