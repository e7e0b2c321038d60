#include "base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

#include "base/parse.h"

namespace mycojobs {
std::string random_bytes(std::size_t bytes) {
  std::string out(bytes, '\0');
  // More than 256 bytes may be returned in parts. Without the generator no key or id would be safe.
  for (std::size_t filled = 0; filled < bytes;) {
    const ssize_t read_size = ::getrandom(out.data() + filled, bytes - filled, 0);
    if (read_size > 0) filled += static_cast<std::size_t>(read_size);
    if (read_size <= 0 && errno != EINTR) std::abort();
  }
  return out;
}

std::string random_hex(std::size_t bytes) { return to_hex(random_bytes(bytes)); }

}  // namespace mycojobs
