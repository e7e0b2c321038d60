#include "sandbox/tidy.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace mycojobs::sandbox {
namespace {

constexpr int kMostEntries = 256, kDeepest = 8;

// A folder of tmpfs grows with each name in it, so that its size says how many there are without its being read.
bool is_as_made(const struct stat& now, const struct stat& made) {
  return now.st_mode == made.st_mode && now.st_uid == made.st_uid && now.st_gid == made.st_gid &&
         now.st_size == made.st_size && now.st_nlink == made.st_nlink;
}

// What a job has set, or what shows when it has written or listed. The time of the change itself is then that of its
// end, and no longer one that it chose.
bool forget_times(int folder) {
  constexpr timespec kNone[2] = {};
  return ::utimensat(folder, ".", kNone, 0) == 0;
}

bool same(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

// As getdents64(2) gives them. Not readdir(3), whose memory is given back with the names in it: the next job is a copy
// of init, and would find them there.
class Names {
 public:
  Names() = default;
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;
  ~Names() { ::explicit_bzero(bytes_, used_); }
  // Null: there is none left, or failed().
  const dirent64* next(int folder) {
    if (at_ == filled_) {
      filled_ = ::getdents64(folder, bytes_, sizeof bytes_);
      used_ = std::max(used_, static_cast<std::size_t>(std::max<ssize_t>(filled_, 0)));
      at_ = 0;
      if (filled_ <= 0) return nullptr;
    }
    const auto* entry = reinterpret_cast<const dirent64*>(bytes_ + at_);
    at_ += entry->d_reclen;
    return entry;
  }
  bool failed() const { return filled_ < 0; }

 private:
  alignas(dirent64) char bytes_[4096];
  std::size_t used_ = 0;
  ssize_t filled_ = 0, at_ = 0;
};

// Names are a stranger's; no link is followed. Nobody else is there to change what is looked at.
bool empty_folder(const Fd& folder, const char* kept, int& left, int depth) {
  Names names;
  while (const dirent64* entry = names.next(folder.get())) {
    const char* name = entry->d_name;
    if (same(name, ".") || same(name, "..") || (kept != nullptr && same(name, kept))) continue;
    if (--left < 0 || depth > kDeepest) return false;
    int how = 0;
    if (entry->d_type == DT_DIR) {
      const Fd below(::openat(folder.get(), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!below || !empty_folder(below, nullptr, left, depth + 1)) return false;
      how = AT_REMOVEDIR;
    }
    if (::unlinkat(folder.get(), name, how) != 0) return false;
  }
  return !names.failed();
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
  if (!is_as_made(now, folder.made)) {
    // What is O_PATH can be neither read nor changed.
    const Fd open_folder(::openat(folder.fd.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!open_folder) return false;
    const mode_t mode = folder.made.st_mode & 07777;
    if (now.st_mode != folder.made.st_mode && ::fchmod(open_folder.get(), mode) != 0) return false;
    if (!empty_folder(open_folder, folder.kept, left, 0)) return false;
    if (::fstat(folder.fd.get(), &now) != 0 || !is_as_made(now, folder.made)) return false;
  }
  return forget_times(folder.fd.get());
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
