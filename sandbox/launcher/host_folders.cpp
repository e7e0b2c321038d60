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
#include <sys/statvfs.h>
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
#include "sandbox/launcher/mount_ids.h"
#include "sandbox/open_path.h"
#include "sandbox/zygote/child.h"

namespace mycojobs::sandbox {
namespace {

constexpr int kMaxLinks = 40;  // same limit as in the kernel

std::deque<std::string> split_path(std::string_view path) {
  std::deque<std::string> names;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) names.emplace_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

std::string read_link(const std::string& link) {
  char target[4096];
  const ssize_t size = ::readlink(link.c_str(), target, sizeof target);
  return {target, static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

std::string prefix_path(const std::string& path, const std::string& problem) {
  return problem.empty() ? "" : path + ": " + problem;
}

struct CloseDir {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

// Checks the entries of one folder and appends its subfolders to `folders`.
std::string check_entry_ownership(const std::string& folder, std::vector<std::string>& folders) {
  const std::unique_ptr<DIR, CloseDir> open(::opendir(folder.c_str()));
  if (!open) return prefix_path(folder, errno_text(errno));
  while (const dirent* entry = ::readdir(open.get())) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    std::string path = fmt::format("{}/{}", folder, name);
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) return prefix_path(path, errno_text(errno));
    std::string problem = prefix_path(path, find_ownership_problem(info, false));
    if (problem.empty() && S_ISLNK(info.st_mode)) problem = check_path_ownership(path);
    if (!problem.empty()) return problem;
    if (S_ISDIR(info.st_mode)) folders.push_back(std::move(path));
  }
  return {};
}

}  // namespace

std::string find_ownership_problem(const struct stat& info, bool allow_sticky) {
  if (info.st_uid != 0 && info.st_uid != ::geteuid())
    return fmt::format("belongs to user {}, neither to root nor to the agent's user", info.st_uid);
  // the mode of a link is meaningless, and other types are not code
  if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) return {};
  const bool sticky = allow_sticky && S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0;
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0 && !sticky) return "can be written by other users: chmod go-w";
  return {};
}

std::string check_path_ownership(const std::string& path) {
  std::deque<std::string> names = split_path(path);
  std::vector<std::string> resolved;  // resolved path, without links
  int link_count = 0;
  while (!names.empty()) {
    const std::string name = names.front();
    names.pop_front();
    if (name == ".") continue;
    if (name == "..") {
      if (!resolved.empty()) resolved.pop_back();
      continue;
    }
    const std::string current = fmt::format("/{}{}{}", fmt::join(resolved, "/"), resolved.empty() ? "" : "/", name);
    struct stat info {};
    if (::lstat(current.c_str(), &info) != 0) return errno == ENOENT ? "" : prefix_path(current, errno_text(errno));
    if (const std::string problem = find_ownership_problem(info, !names.empty()); !problem.empty())
      return prefix_path(current, problem);
    if (!S_ISLNK(info.st_mode)) {
      resolved.push_back(name);
      continue;
    }
    if (++link_count > kMaxLinks) return prefix_path(path, errno_text(ELOOP));
    const std::string target = read_link(current);
    if (target.starts_with('/')) resolved.clear();
    const auto target_names = split_path(target);
    names.insert(names.begin(), target_names.begin(), target_names.end());
  }
  return {};
}

std::string check_tree_ownership(const std::string& folder) {
  if (const std::string problem = check_path_ownership(folder); !problem.empty()) return problem;
  std::vector<std::string> folders{folder};
  while (!folders.empty()) {
    const std::string current_folder = std::move(folders.back());
    folders.pop_back();
    if (const std::string problem = check_entry_ownership(current_folder, folders); !problem.empty()) return problem;
  }
  return {};
}

namespace {

// Returns a descriptor, or -errno.
int clone_tree(const std::string& path, std::uint64_t attributes, int id_mapping = -1) {
  const Fd path_fd = open_without_links(path);
  if (!path_fd) return -errno;
  Fd tree(::open_tree(path_fd.get(), "", AT_EMPTY_PATH | AT_RECURSIVE | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC));
  if (!tree) return -errno;
  mount_attr attr{};
  attr.attr_set = attributes;
  attr.propagation = MS_PRIVATE;
  if (id_mapping >= 0) {
    attr.attr_set |= MOUNT_ATTR_IDMAP;
    attr.userns_fd = static_cast<std::uint64_t>(id_mapping);
  }
  if (::mount_setattr(tree.get(), "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof attr) != 0) return -errno;
  return tree.release();
}

// Without root, mounts are only possible in a new namespace; a child creates the mount there.
int clone_tree_in_child(const std::string& path, std::uint64_t attributes) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return -errno;
  const Fd parent_socket(pair[0]);
  Fd child_socket(pair[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return -errno;
  if (pid == 0) {
    // the parent died before the prctl
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) ::_exit(1);
    const int tree = ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 ? clone_tree(path, attributes) : -errno;
    if (tree < 0) {
      send_message(child_socket.get(), SetupStepFailed{"grants", -tree});
    } else {
      send_message(child_socket.get(), SetupStepFailed{"grants", 0}, {tree});
    }
    ::_exit(0);
  }
  child_socket.reset();
  RawFrame frame;
  SetupStepFailed answer;
  const ReceiveResult received = receive_raw(parent_socket.get(), frame);
  const bool has_answer =
      (received == ReceiveResult::frame || received == ReceiveResult::descriptors_lost) && decode(frame, answer);
  ::waitpid(pid, nullptr, 0);
  if (!has_answer) return -ESRCH;
  if (received == ReceiveResult::descriptors_lost) return -EMFILE;
  return frame.fds.size() == 1 ? frame.fds[0].release() : -answer.error;
}

tl::unexpected<Error> fail_open(const std::string& subject, const std::string& path, int tree) {
  std::string message = fmt::format("{} {}: {}", subject, path, errno_text(-tree));
  if (const ResourceShortage* shortage = find_shortage(-tree))
    return fail(Code::unavailable, message + ": " + describe_shortage(*shortage));
  if (tree == -ELOOP) message += " (a symbolic link in the path: name the folder itself)";
  return fail(Code::invalid, message);
}

Result<Fd> open_mount(const std::string& subject, const std::string& path, std::uint64_t attributes) {
  int tree = clone_tree(path, attributes);
  if (tree == -EPERM) tree = clone_tree_in_child(path, attributes);
  return tree >= 0 ? Result<Fd>(Fd(tree)) : fail_open(subject, path, tree);
}

// Returns the mount, or -errno.
int clone_mapped_tree(const std::string& path, std::uint64_t attributes, const OwnerMapping& mapping) {
  const int id_mapping = create_id_mapping(mapping.files, mapping.job);
  if (id_mapping < 0) return id_mapping;
  const Fd id_mapping_fd(id_mapping);
  return clone_tree(path, attributes, id_mapping);
}

Result<Fd> open_mapped_mount(const FolderMount& folder, std::uint64_t attributes) {
  const int tree = clone_mapped_tree(folder.path, attributes, *folder.mapping);
  if (tree >= 0) return Fd(tree);
  const bool cannot_map = tree == -EPERM || tree == -EINVAL || tree == -ENOSYS;
  if (!cannot_map) return fail_open("the granted", folder.path, tree);
  const std::uint32_t uid = folder.mapping->files.uid;
  const std::string_view cause =
      tree == -EPERM
          ? "the agent may not map ids (a container, or a mount that is mapped already)"
          : "its file system, or one that is mounted below it, has no id mapping (such as NFS), or the kernel "
            "is older than 5.12 (tmpfs: 6.3)";
  // Jobs never run as root, so a fixed uid is no remedy for a volume of root.
  const std::string remedy =
      uid == 0 ? "name another owner that may read the files"
               : fmt::format("set owner = {} and fixed_uid = true in the [contexts.N.files] of its context", uid);
  return fail(Code::unsupported,
              fmt::format("the granted {}: {}: cannot be mapped to user {}: {}; use another folder, or {} "
                          "(docs/volumes.md)",
                          folder.path, errno_text(-tree), uid, cause, remedy));
}

// A detached mount keeps the flags of the mount that it is cloned from, so each write would fail.
bool is_read_only(const Fd& tree) {
  struct statvfs info {};
  return ::fstatvfs(tree.get(), &info) == 0 && (info.f_flag & ST_RDONLY) != 0;
}

Result<Fd> open_checked(const FolderMount& folder) {
  const std::uint64_t attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (folder.writable ? 0 : MOUNT_ATTR_RDONLY) |
                                   (folder.exec ? 0 : MOUNT_ATTR_NOEXEC);
  return folder.mapping ? open_mapped_mount(folder, attributes) : open_mount("the granted", folder.path, attributes);
}

}  // namespace

Result<Fd> open_granted(const FolderMount& folder) {
  MJ_TRY(tree, open_checked(folder));
  if (!folder.must_be_writable || !is_read_only(tree)) return std::move(tree);
  return fail(Code::invalid,
              fmt::format("the granted {}: jobs cannot write in it, since it is mounted read-only: mount "
                          "it with rw, or add it to ReadWritePaths= of the systemd unit of the agent",
                          folder.path));
}

Result<Fd> open_trusted(const std::string& path) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string prefix = path.substr(0, end);
    struct stat info {};
    if (::lstat(prefix.c_str(), &info) != 0) return fail(Code::invalid, prefix + ": " + errno_text(errno));
    if (S_ISLNK(info.st_mode))
      return fail(Code::invalid, prefix + ": is a symbolic link in the path: name the folder itself");
    const std::string problem =
        S_ISDIR(info.st_mode) ? find_ownership_problem(info, end != std::string::npos) : std::string("is not a folder");
    if (!problem.empty()) return fail(Code::invalid, fmt::format("{}: {}", prefix, problem));
  }
  return open_mount("the folder", path, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY);
}

}  // namespace mycojobs::sandbox
