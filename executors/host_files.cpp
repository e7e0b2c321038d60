#include "executors/host_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "base/errno_text.h"
#include "base/write_all.h"
#include "executors/host_channel.h"

namespace mycojobs {
namespace {

Result<void> make_parents(const std::string& folder, const std::string& path) {
  for (std::size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string parent = folder + '/' + path.substr(0, slash);
    if (::mkdir(parent.c_str(), 0755) != 0 && errno != EEXIST) return fail(Code::io, parent + ": " + errno_text(errno));
  }
  return {};
}

// A JSON string without its quotes; what is not plain ASCII is not shown.
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 200)) out += c >= ' ' && c < '\x7f' && c != '"' && c != '\\' ? c : '?';
  return out;
}

// Most jobs leave nothing, and to read a folder changes it, so that it has to be put right for the next job. One of
// tmpfs grows by 20 bytes with each name in it, "." and ".." among them; of other file systems the size says less.
bool is_surely_empty(const std::string& folder) {
  struct stat info {};
  struct statfs system {};
  return ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_nlink == 2 && info.st_size == 40 &&
         ::statfs(folder.c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC;
}

// One walk through what a script left. Names of folders and files are a stranger's; links are never followed.
class Walk {
 public:
  Walk(int channel, std::uint64_t max_bytes) : channel_(channel), left_(max_bytes) {}

  bool folder(int parent, const char* name, const std::string& path, int depth) {
    constexpr int kDeepest = 32;
    const int fd = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return path.empty() || note(path, "cannot be opened");
    const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(fd), ::closedir);
    if (!listing) return ::close(fd), true;
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(listing.get())) {
      const std::string_view each = entry->d_name;
      if (each != "." && each != "..") names.emplace_back(each);
      if (names.size() > kMaxArtifacts) break;
    }
    std::sort(names.begin(), names.end());
    for (const auto& each : names) {
      const std::string below = path.empty() ? each : path + '/' + each;
      if (sent_ >= kMaxArtifacts) return std::exchange(full_, true) || note(below, "and what follows: over 1000 files");
      struct stat info {};
      if (::fstatat(fd, each.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
      const bool fine = S_ISDIR(info.st_mode) && depth < kDeepest ? folder(fd, each.c_str(), below, depth + 1)
                                                                  : file(fd, each.c_str(), below, info);
      if (!fine) return false;
    }
    return true;
  }

 private:
  bool note(const std::string& path, const char* why) {
    if (++notes_ > 20) return true;
    return send_frame(channel_, FrameKind::note, "{\"text\":\"artifact " + plain(path) + ": not kept: " + why + "\"}");
  }

  bool file(int parent, const char* name, const std::string& path, const struct stat& info) {
    if (!S_ISREG(info.st_mode)) return note(path, "not a regular file");
    if (info.st_nlink != 1) return note(path, "has another name too");
    if (path.size() > kMaxArtifactPath) return note(path, "its name is too long");
    if (static_cast<std::uint64_t>(info.st_size) > left_)
      return note(path, "over the limit for all artifacts together");
    const Fd fd(::openat(parent, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat opened {};
    if (!fd || ::fstat(fd.get(), &opened) != 0 || opened.st_ino != info.st_ino) return note(path, "cannot be read");
    ++sent_;
    const std::string head = path + '\0' + ((info.st_mode & S_IXUSR) != 0 ? "755" : "644") + '\0';
    std::array<char, 65536> part;  // NOLINT(*-member-init): filled by read
    // As long as it was when we looked: a process that is left may go on writing into it.
    auto rest = static_cast<std::uint64_t>(info.st_size);
    bool any = false;
    do {
      const ssize_t got = ::read(fd.get(), part.data(), std::min<std::uint64_t>(part.size(), rest));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return note(path, "cannot be read to its end; what stands before it may be kept");
      if (got == 0 && any) break;
      left_ -= static_cast<std::uint64_t>(got);
      rest -= static_cast<std::uint64_t>(got);
      any = true;
      const std::string_view bytes(part.data(), static_cast<std::size_t>(got));
      if (!send_frame(channel_, FrameKind::artifact, head + std::string(bytes))) return false;
    } while (rest > 0);
    return true;
  }

  int channel_;
  std::uint64_t left_;
  std::size_t sent_ = 0, notes_ = 0;
  bool full_ = false;
};

}  // namespace

Result<void> IncomingFiles::take(std::string_view payload) {
  const std::size_t first = payload.find('\0');
  const std::size_t second = first == std::string_view::npos ? first : payload.find('\0', first + 1);
  if (second == std::string_view::npos) return fail(Code::invalid, "a file without its name");
  const std::string path(payload.substr(0, first));
  const std::string_view bytes = payload.substr(second + 1);
  if (path.empty() || path.front() == '/' || ("/" + path + "/").find("/../") != std::string::npos)
    return fail(Code::invalid, "a file outside of the job's folder: " + path);
  const std::string full = folder_ + '/' + path;
  if (path != path_) {
    MJ_CHECK(make_parents(folder_, path));
    const std::string octal(payload.substr(first + 1, second - first - 1));
    const auto mode = static_cast<mode_t>(std::strtoul(octal.c_str(), nullptr, 8) & 0777);
    file_.reset(::open(full.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file_ || ::fchmod(file_.get(), mode) != 0) return fail(Code::io, full + ": " + errno_text(errno));
    path_ = path;
  }
  if (!write_all(file_.get(), bytes))
    return fail(Code::io, full + ": " + errno_text(errno) + " (remedy: policy: disk, a larger one)");
  return {};
}

bool send_artifacts(int channel, const std::string& folder, std::uint64_t max_bytes) {
  if (is_surely_empty(folder)) return true;
  return Walk(channel, max_bytes).folder(AT_FDCWD, folder.c_str(), "", 0);
}

}  // namespace mycojobs
