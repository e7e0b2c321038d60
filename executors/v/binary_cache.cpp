#include "executors/v/binary_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <memory>
#include <tuple>
#include <vector>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/sha256.h"

namespace mycojobs {
namespace {

constexpr std::size_t kHashLineBytes = 65;
constexpr const char* kTemporaryPrefix = ".new-";
constexpr std::time_t kMaxTemporarySeconds = 3600;  // age at which a temporary file is removed

Result<void> make_folders(const std::string& folder) {
  for (std::size_t slash = folder.find('/', 1);; slash = folder.find('/', slash + 1)) {
    const std::string part = folder.substr(0, slash);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) return fail(Code::io, part + ": " + errno_text(errno));
    if (slash == std::string::npos) return {};
  }
}

bool read_exactly(int fd, std::string& buffer) {
  std::size_t size = 0;
  while (size < buffer.size()) {
    const ssize_t count = ::read(fd, buffer.data() + size, buffer.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    size += static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace

std::string hash_parts(const std::vector<std::string>& parts) {
  Sha256 hash;
  for (const std::string& part : parts) {
    hash.update(std::to_string(part.size()) + ':');
    hash.update(part);
  }
  return hash.hex();
}

BinaryCache::BinaryCache(const std::string& state_dir, Id context, std::uint64_t max_bytes)
    : folder_(state_dir + "/contexts/" + std::to_string(context) + "/v-cache"), max_bytes_(max_bytes) {}

std::optional<std::string> BinaryCache::find(const std::string& key) const {
  const std::string path = folder_ + '/' + key;
  const Fd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file && errno == ENOENT) return std::nullopt;
  if (!file && errno != ELOOP) {  // the file may be valid but is unreadable now, for example for lack of descriptors
    log(LogLevel::warn, "v", "{}: {}: compiled again", path, errno_text(errno));
    return std::nullopt;
  }
  struct stat status {};
  std::string hash_line(kHashLineBytes, '\0');
  std::string program;
  if (file && ::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
      status.st_size > static_cast<off_t>(kHashLineBytes) &&
      static_cast<std::uint64_t>(status.st_size) <= kMaxBinaryBytes + kHashLineBytes &&
      read_exactly(file.get(), hash_line)) {
    program.resize(static_cast<std::size_t>(status.st_size) - kHashLineBytes);
    if (read_exactly(file.get(), program) && sha256_hex(program) + '\n' == hash_line) {
      // Marks the file as used. Fails on a read-only disk, where remove_old_files() fails too.
      ::futimens(file.get(), nullptr);
      return program;
    }
  }
  log(LogLevel::warn, "v", "{}: differs from the stored program: compiled again", path);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) log(LogLevel::warn, "v", "{}: {}", path, errno_text(errno));
  return std::nullopt;
}

Result<void> BinaryCache::store(const std::string& key, std::string_view program) const {
  static std::atomic<unsigned> next_number{0};
  MJ_CHECK(make_folders(folder_));
  const std::string path =
      folder_ + '/' + kTemporaryPrefix + std::to_string(::getpid()) + '-' + std::to_string(next_number++);
  Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  // Not synced to disk: the hash reveals a file that a power failure damaged.
  const bool is_written = file && write_all(file.get(), sha256_hex(program) + '\n') && write_all(file.get(), program);
  if (!is_written || ::rename(path.c_str(), (folder_ + '/' + key).c_str()) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return fail(Code::io, path + ": " + errno_text(error));
  }
  remove_old_files(key);
  return {};
}

void BinaryCache::remove_old_files(const std::string& newest_key) const {
  std::vector<std::tuple<std::time_t, long, std::string, std::uint64_t>> files;
  std::uint64_t total = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder_.c_str()), ::closedir);
  while (const dirent* entry = listing ? ::readdir(listing.get()) : nullptr) {
    const std::string name = entry->d_name;
    struct stat status {};
    if (::fstatat(::dirfd(listing.get()), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode))
      continue;
    if (name.starts_with(kTemporaryPrefix)) {
      if (status.st_mtim.tv_sec + kMaxTemporarySeconds < std::time(nullptr))
        ::unlinkat(::dirfd(listing.get()), name.c_str(), 0);
      continue;
    }
    const auto size = static_cast<std::uint64_t>(status.st_size);
    total += size;
    if (name != newest_key) files.emplace_back(status.st_mtim.tv_sec, status.st_mtim.tv_nsec, name, size);
  }
  std::sort(files.begin(), files.end());
  for (const auto& [seconds, fraction, name, size] : files) {
    if (total <= max_bytes_) return;
    if (::unlinkat(::dirfd(listing.get()), name.c_str(), 0) == 0) total -= size;
  }
}

}  // namespace mycojobs
