#include "sandbox/id_registry.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/errno_text.h"

namespace mycojobs::sandbox {
namespace {

constexpr const char* kLock = "lock";

// Our own and nobody else's to write, or anybody could take all ids.
bool is_trusted(int folder) {
  struct stat info {};
  return ::fstat(folder, &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

Fd open_folder(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    (void)::mkdir(path.substr(0, slash).c_str(), 0755);
    if (slash == std::string::npos) break;
  }
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder && !is_trusted(folder.get())) {
    folder.reset();
    errno = EPERM;
  }
  return folder;
}

Fd lock_folder(const std::string& path) {
  const Fd folder = open_folder(path);
  if (!folder) return {};
  Fd lock(::openat(folder.get(), kLock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  while (lock && ::flock(lock.get(), LOCK_EX) != 0) {
    if (errno != EINTR) lock.reset();
  }
  return lock;
}

bool same_file(int one, int other) {
  struct stat a {
  }, b{};
  return ::fstat(one, &a) == 0 && ::fstat(other, &b) == 0 && a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

}  // namespace

IdRegistry IdRegistry::open(const std::string& folder) {
  IdRegistry registry;
  registry.folder_ = folder;
  const auto without = [&](const std::string& what) {
    registry.problem_ = fmt::format(
        "{}: {}: agents on this host may use the same user ids for their jobs; give each a range of its own", what,
        errno_text(errno));
    return std::move(registry);
  };
  const Fd lock = lock_folder(folder);
  if (!lock) return without(folder);
  for (int number = 0;; ++number) {
    const std::string path = fmt::format("{}/{}", folder, number);
    registry.entry_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!registry.entry_ && errno == EEXIST) continue;
    if (!registry.entry_ || ::flock(registry.entry_.get(), LOCK_EX | LOCK_NB) != 0) return without(path);
    return registry;
  }
}

IdRegistry IdRegistry::adopt(Fd entry, const std::string& folder) {
  IdRegistry registry;
  registry.folder_ = folder;
  registry.entry_ = std::move(entry);
  return registry;
}

IdRegistry::Session IdRegistry::session() const { return {*this, entry_ ? lock_folder(folder_) : Fd()}; }

std::vector<IdSpan> IdRegistry::Session::taken() const {
  std::vector<IdSpan> spans;
  DIR* const names = lock_ ? ::opendir(registry_.folder_.c_str()) : nullptr;
  if (names == nullptr) return spans;
  while (const dirent* name = ::readdir(names)) {
    if (name->d_name[0] < '0' || name->d_name[0] > '9') continue;
    const Fd entry(::openat(::dirfd(names), name->d_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    if (!entry || same_file(entry.get(), registry_.entry_.get())) continue;
    if (::flock(entry.get(), LOCK_EX | LOCK_NB) == 0) {
      (void)::unlinkat(::dirfd(names), name->d_name, 0);
      continue;
    }
    char text[64] = {};
    unsigned long long base = 0, count = 0;
    if (::pread(entry.get(), text, sizeof text - 1, 0) > 0 && std::sscanf(text, "%llu %llu", &base, &count) == 2)
      spans.push_back({base, count});
  }
  ::closedir(names);
  return spans;
}

bool IdRegistry::Session::enter(const IdSpan& span) const {
  if (!registry_.entry_) return true;
  const std::string text = fmt::format("{} {}\n", span.base, span.count);
  return lock_ && ::pwrite(registry_.entry_.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
}

}  // namespace mycojobs::sandbox
