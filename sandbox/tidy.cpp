#include "sandbox/tidy.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <memory>

#include "base/fd.h"

namespace mycojobs::sandbox {
namespace {

constexpr int kMostEntries = 256, kDeepest = 8;

// A folder of tmpfs grows with each name in it, so that its size tells whether it is empty without being read.
bool is_as_made(const struct stat& now, const struct stat& made) {
  return now.st_dev == made.st_dev && now.st_ino == made.st_ino && now.st_mode == made.st_mode &&
         now.st_uid == made.st_uid && now.st_gid == made.st_gid && now.st_size == made.st_size &&
         now.st_nlink == made.st_nlink;
}

// Names are a stranger's; no link is followed. Nobody else is there to change what is looked at.
bool empty_folder(int folder, int& left, int depth) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(folder), ::closedir);
  if (!listing) return ::close(folder), false;
  while (const dirent* entry = ::readdir(listing.get())) {
    const char* name = entry->d_name;
    if (name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'))) continue;
    if (--left < 0 || depth > kDeepest) return false;
    int how = 0;
    if (entry->d_type == DT_DIR) {
      const int below = ::openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      if (below < 0 || !empty_folder(below, left, depth + 1)) return false;
      how = AT_REMOVEDIR;
    }
    if (::unlinkat(folder, name, how) != 0) return false;
  }
  return true;
}

}  // namespace

OwnFolders::OwnFolders() {
  for (std::size_t i = 0; i < kPaths.size(); ++i) {
    if (::stat(kPaths[i], &made_[i]) != 0) made_[i] = {};  // then it never is as it was made
  }
}

bool OwnFolders::tidy() const {
  int left = kMostEntries;
  for (std::size_t i = 0; i < kPaths.size(); ++i) {
    struct stat now {};
    if (::stat(kPaths[i], &now) != 0) return false;
    if (is_as_made(now, made_[i])) continue;
    if (now.st_mode != made_[i].st_mode && ::chmod(kPaths[i], made_[i].st_mode & 07777) != 0) return false;
    const int folder = ::open(kPaths[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0 || !empty_folder(folder, left, 0)) return false;
    if (::stat(kPaths[i], &now) != 0 || !is_as_made(now, made_[i])) return false;
  }
  return true;
}

}  // namespace mycojobs::sandbox
