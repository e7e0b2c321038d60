// Opens a path of the host in which other users may replace folders by links at the same time.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/fd.h"

namespace mycojobs {

// Opens with O_PATH; fails with ELOOP if any component is a symbolic link. Opens one path component at a time, since a
// service manager may have forbidden openat2 (RestrictSUIDSGID).
inline Fd open_without_links(const std::string& path) {
  Fd parent(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (std::size_t name_start = 1; parent && name_start < path.size();) {
    const std::size_t end = std::min(path.find('/', name_start), path.size());
    Fd child(
        ::openat(parent.get(), path.substr(name_start, end - name_start).c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat info {};
    if (child && (::fstat(child.get(), &info) != 0 || S_ISLNK(info.st_mode))) {
      child.reset();
      errno = ELOOP;
    }
    parent = std::move(child);
    name_start = end + 1;
  }
  return parent;
}

}  // namespace mycojobs
