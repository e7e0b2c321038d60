#include "sandbox/tidy.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <memory>

namespace mycojobs::sandbox {
namespace {

constexpr int kMostEntries = 256, kDeepest = 8;

// A folder of tmpfs grows with each name in it, so that its size tells how many there are without its being read.
bool is_as_made(const struct stat& now, const struct stat& made) {
  return now.st_mode == made.st_mode && now.st_mtim.tv_sec == 0 && now.st_atim.tv_sec == 0 &&
         now.st_uid == made.st_uid && now.st_gid == made.st_gid && now.st_size == made.st_size &&
         now.st_nlink == made.st_nlink;
}

// They would tell the next job what this one has written into them.
bool forget_times(int folder) {
  constexpr timespec kNone[2] = {};
  return ::utimensat(folder, ".", kNone, 0) == 0;
}

bool same(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

// Names are a stranger's; no link is followed. Nobody else is there to change what is looked at.
bool empty_folder(int folder, const char* kept, int& left, int depth) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(folder), ::closedir);
  if (!listing) return ::close(folder), false;
  while (const dirent* entry = ::readdir(listing.get())) {
    const char* name = entry->d_name;
    if (same(name, ".") || same(name, "..") || (kept != nullptr && same(name, kept))) continue;
    if (--left < 0 || depth > kDeepest) return false;
    int how = 0;
    if (entry->d_type == DT_DIR) {
      const int below = ::openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      if (below < 0 || !empty_folder(below, nullptr, left, depth + 1)) return false;
      how = AT_REMOVEDIR;
    }
    if (::unlinkat(folder, name, how) != 0) return false;
  }
  return true;
}

}  // namespace

OwnFolders::OwnFolders(const char* kept) {
  const auto add = [this](const char* path, const char* name, int at) {
    Folder folder{path, name, Fd(::openat(at, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)), {}};
    if (!folder.fd || !forget_times(folder.fd.get()) || ::fstat(folder.fd.get(), &folder.made) != 0)
      folder.made = {};  // then it never is as it was made
    folders_.push_back(std::move(folder));
  };
  folders_.reserve(4);
  for (const char* path : {"/tmp", "/dev/shm", "/job"}) add(path, same(path, "/job") ? kept : nullptr, AT_FDCWD);
  if (kept == nullptr) return;
  add(kept, nullptr, folders_.back().fd.get());
  std::swap(folders_[2], folders_[3]);
}

bool OwnFolders::tidy(const Folder& folder, int& left) {
  struct stat now {};
  if (::fstat(folder.fd.get(), &now) != 0) return false;
  if (is_as_made(now, folder.made)) return true;
  // What is O_PATH can be neither read nor changed.
  const int open_folder = ::openat(folder.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (open_folder < 0) return false;
  const mode_t mode = folder.made.st_mode & 07777;
  if (now.st_mode != folder.made.st_mode && ::fchmod(open_folder, mode) != 0) return ::close(open_folder), false;
  if (!empty_folder(open_folder, folder.kept, left, 0) || !forget_times(folder.fd.get())) return false;
  return ::fstat(folder.fd.get(), &now) == 0 && is_as_made(now, folder.made);
}

// Under its own name: a job could have moved it, and put another thing in its place.
bool OwnFolders::has_kept() const {
  const Folder& job = folders_.back();
  struct stat now {};
  return job.kept == nullptr ||
         (::fstatat(job.fd.get(), job.kept, &now, AT_SYMLINK_NOFOLLOW) == 0 &&
          now.st_ino == folders_[folders_.size() - 2].made.st_ino && now.st_dev == job.made.st_dev);
}

bool OwnFolders::tidy() const {
  int left = kMostEntries;
  for (const Folder& folder : folders_) {
    if (!tidy(folder, left)) return false;
  }
  return has_kept();
}

}  // namespace mycojobs::sandbox
