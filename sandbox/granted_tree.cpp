#include "sandbox/granted_tree.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/errno_text.h"
#include "sandbox/job.h"
#include "sandbox/trust.h"

namespace mycojobs::sandbox {
namespace {

// A descriptor, or -errno.
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

// An ordinary user may make no mounts on the host, but in a namespace of its own: a child makes it there.
int clone_tree_in_child(const std::string& path, std::uint64_t attributes) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return -errno;
  const Fd ours(pair[0]);
  Fd theirs(pair[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return -errno;
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int tree = ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 ? clone_tree(path, attributes) : -errno;
    if (tree < 0) {
      send_message(theirs.get(), StepFailed{"grants", -tree});
    } else {
      send_message(theirs.get(), StepFailed{"grants", 0}, {tree});
    }
    ::_exit(0);
  }
  theirs.reset();
  RawFrame frame;
  StepFailed answer;
  const bool answered = receive_raw(ours.get(), frame) == Received::frame && decode(frame, answer);
  ::waitpid(pid, nullptr, 0);
  if (!answered) return -ESRCH;
  return frame.fds.size() == 1 ? frame.fds[0].release() : -answer.error;
}

Result<Fd> open_tree_of(const std::string& what, const std::string& path, std::uint64_t attributes) {
  int tree = clone_tree(path, attributes);
  if (tree == -EPERM) tree = clone_tree_in_child(path, attributes);
  if (tree >= 0) return Fd(tree);
  std::string why = fmt::format("{} {}: {}", what, path, errno_text(-tree));
  if (tree == -ELOOP) why += " (a symbolic link on the way: name the folder itself)";
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
      return fail(Code::invalid, part + ": is a symbolic link on the way to the folder: name the folder itself");
    const std::string problem =
        S_ISDIR(info.st_mode) ? mistrust(info, end != std::string::npos) : std::string("is no folder");
    if (!problem.empty()) return fail(Code::invalid, fmt::format("{}: {}", part, problem));
  }
  return open_tree_of("the folder", path, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY);
}

}  // namespace mycojobs::sandbox
