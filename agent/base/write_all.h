// All of a text into a blocking descriptor.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace mycojobs {

// False: not all of it was written; errno says why. Interruptions by signals are passed over.
inline bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace mycojobs
