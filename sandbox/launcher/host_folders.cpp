#include "sandbox/launcher/host_folders.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "base/errno_text.h"
#include "base/shortage.h"
#include "sandbox/zygote/child.h"

namespace mycojobs::sandbox {
namespace {

constexpr int kMaxLinks = 40;  // same limit as in the kernel

std::deque<std::string> names_of(std::string_view path) {
  std::deque<std::string> names;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) names.emplace_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

std::string target_of(const std::string& link) {
  char target[4096];
  const ssize_t size = ::readlink(link.c_str(), target, sizeof target);
  return {target, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

std::string of(const std::string& path, const std::string& problem) {
  return problem.empty() ? "" : path + ": " + problem;
}

struct CloseDir {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

// Checks the entries of one folder and appends its subfolders to `folders`.
std::string mistrust_entries(const std::string& folder, std::vector<std::string>& folders) {
  const std::unique_ptr<DIR, CloseDir> open(::opendir(folder.c_str()));
  if (!open) return of(folder, errno_text(errno));
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    std::string path = fmt::format("{}/{}", folder, name);
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) return of(path, errno_text(errno));
    std::string problem = of(path, ownership_problem(info, false));
    if (problem.empty() && S_ISLNK(info.st_mode)) problem = check_path_ownership(path);
    if (!problem.empty()) return problem;
    if (S_ISDIR(info.st_mode)) folders.push_back(std::move(path));
  }
  return {};
}

}  // namespace

std::string ownership_problem(const struct stat& info, bool sticky_will_do) {
  if (info.st_uid != 0 && info.st_uid != ::geteuid())
    return fmt::format("belongs to user {}, neither to root nor to the agent's user", info.st_uid);
  // the mode of a link is meaningless, and other types are not code
  if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) return {};
  const bool sticky = sticky_will_do && S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0;
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky) return "can be written by other users: chmod go-w";
  return {};
}

std::string check_path_ownership(const std::string& path) {
  std::deque<std::string> names = names_of(path);
  std::vector<std::string> way;  // resolved path, without links
  int links = 0;
  while (!names.empty()) {
    const std::string name = names.front();
    names.pop_front();
    if (name == ".") continue;
    if (name == "..") {
      if (!way.empty()) way.pop_back();
      continue;
    }
    const std::string at = fmt::format("/{}{}{}", fmt::join(way, "/"), way.empty() ? "" : "/", name);
    struct stat info {};
    if (::lstat(at.c_str(), &info) != 0) return errno == ENOENT ? "" : of(at, errno_text(errno));
    if (const std::string problem = ownership_problem(info, !names.empty()); !problem.empty()) return of(at, problem);
    if (!S_ISLNK(info.st_mode)) {
      way.push_back(name);
      continue;
    }
    if (++links > kMaxLinks) return of(path, errno_text(ELOOP));
    const std::string target = target_of(at);
    if (target.starts_with('/')) way.clear();
    const auto further = names_of(target);
    names.insert(names.begin(), further.begin(), further.end());
  }
  return {};
}

std::string check_tree_ownership(const std::string& folder) {
  if (const std::string problem = check_path_ownership(folder); !problem.empty()) return problem;
  std::vector<std::string> folders{folder};
  while (!folders.empty()) {
    const std::string next = std::move(folders.back());
    folders.pop_back();
    if (const std::string problem = mistrust_entries(next, folders); !problem.empty()) return problem;
  }
  return {};
}

namespace {

// Returns a descriptor, or -errno.
int clone_tree(const std::string& path, std::uint64_t attributes) {
  const Fd place = open_without_links(path);
  if (!place) return -errno;
  Fd tree(::open_tree(place.get(), "", AT_EMPTY_PATH | AT_RECURSIVE | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!tree) return -errno;
  mount_attr attr{};
  attr.attr_set = attributes;
  attr.propagation = MS_PRIVATE;
  if (::mount_setattr(tree.get(), "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr) != 0) return -errno;
  return tree.release();
}

// Without root, mounts are only possible in a new namespace; a child creates the mount there.
int clone_tree_in_child(const std::string& path, std::uint64_t attributes) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return -errno;
  const Fd ours(pair[0]);
  Fd theirs(pair[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return -errno;
  if (pid == 0) {
    // the parent died before the prctl
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) ::_exit(1);
    const int tree = ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 ? clone_tree(path, attributes) : -errno;
    if (tree < 0) {
      send_message(theirs.get(), SetupStepFailed{"grants", -tree});
    } else {
      send_message(theirs.get(), SetupStepFailed{"grants", 0}, {tree});
    }
    ::_exit(0);
  }
  theirs.reset();
  RawFrame frame;
  SetupStepFailed answer;
  const ReceiveResult received = receive_raw(ours.get(), frame);
  const bool answered = (received == ReceiveResult::frame || received == ReceiveResult::cut) && decode(frame, answer);
  ::waitpid(pid, nullptr, 0);
  if (!answered) return -ESRCH;
  if (received == ReceiveResult::cut) return -EMFILE;
  return frame.fds.size() == 1 ? frame.fds[0].release() : -answer.error;
}

Result<Fd> open_tree_of(const std::string& what, const std::string& path, std::uint64_t attributes) {
  int tree = clone_tree(path, attributes);
  if (tree == -EPERM) tree = clone_tree_in_child(path, attributes);
  if (tree >= 0) return Fd(tree);
  std::string why = fmt::format("{} {}: {}", what, path, errno_text(-tree));
  if (const ResourceShortage* shortage = find_shortage(-tree))
    return fail(Code::unavailable, why + ": " + describe_shortage(*shortage));
  if (tree == -ELOOP) why += " (a symbolic link in the path: name the folder itself)";
  return fail(Code::invalid, why);
}

}  // namespace

Result<Fd> open_granted(const std::string& path, bool writable, bool exec) {
  return open_tree_of(
      "the granted", path,
      MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (writable ? 0 : MOUNT_ATTR_RDONLY) | (exec ? 0 : MOUNT_ATTR_NOEXEC));
}

Result<Fd> open_trusted(const std::string& path) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    struct stat info {};
    if (::lstat(part.c_str(), &info) != 0) return fail(Code::invalid, part + ": " + errno_text(errno));
    if (S_ISLNK(info.st_mode))
      return fail(Code::invalid, part + ": is a symbolic link in the path: name the folder itself");
    const std::string problem =
        S_ISDIR(info.st_mode) ? ownership_problem(info, end != std::string::npos) : std::string("is not a folder");
    if (!problem.empty()) return fail(Code::invalid, fmt::format("{}: {}", part, problem));
  }
  return open_tree_of("the folder", path, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY);
}

}  // namespace mycojobs::sandbox
