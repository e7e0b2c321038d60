#include "security/private_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/service_manager.h"

namespace mycojobs {

std::string find_private_file_problem(const struct stat& file) {
  if (file.st_uid != 0 && file.st_uid != ::geteuid())
    return fmt::format("user {} owns it: chown it to root or to user {}", file.st_uid, ::geteuid());
  if ((file.st_mode & 077) != 0)
    return fmt::format("mode {:04o} gives other users access: chmod 600", file.st_mode & 07777);
  return {};
}

Result<std::string> read_private_file(const std::string& path) {
  constexpr std::size_t kMaxBytes = 16U << 10;
  const bool is_managed = is_managed_credential(path);
  // Does not wait for a writer of a pipe.
  const int link_flag = is_managed ? 0 : O_NOFOLLOW;
  const Fd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | link_flag));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0)
    return fail(errno == ENOENT || errno == ENOTDIR ? Code::not_found : Code::io, path + ": " + errno_text(errno));
  if (!S_ISREG(status.st_mode)) return fail(Code::invalid, path + ": it is not a regular file");
  const bool is_accepted = is_managed && (status.st_mode & S_IRWXO) == 0;
  if (const std::string problem = is_accepted ? "" : find_private_file_problem(status); !problem.empty())
    return fail(Code::invalid, path + ": " + problem);
  std::string text(kMaxBytes + 1, '\0');
  std::size_t size = 0;
  for (ssize_t count = 1; count != 0 && size < text.size();) {
    count = ::read(file.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno != EINTR) return fail(Code::io, path + ": " + errno_text(errno));
    if (count > 0) size += static_cast<std::size_t>(count);
  }
  if (size > kMaxBytes) return fail(Code::invalid, path + ": it has more than 16 KiB");
  text.resize(size);
  return text;
}

}  // namespace mycojobs
