#include "sandbox/launcher/mount_ids.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <limits>

#include "sandbox/launcher/id_map.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint32_t kInvalidId = std::numeric_limits<std::uint32_t>::max();

int exit_at_once(void*) { ::_exit(0); }

// Returns a descriptor, or -errno.
int open_mapped_namespace(pid_t pid, const FileOwner& files, const FileOwner& job) {
  if (int error = write_process_file(pid, "uid_map", format_mapped_ids(files.uid, job.uid)); error != 0) return -error;
  if (int error = write_process_file(pid, "gid_map", format_mapped_ids(files.gid, job.gid)); error != 0) return -error;
  const int fd = ::open(fmt::format("/proc/{}/ns/user", pid).c_str(), O_RDONLY | O_CLOEXEC);
  return fd < 0 ? -errno : fd;
}

}  // namespace

std::string format_mapped_ids(std::uint32_t files, std::uint32_t job) {
  if (files == job) return fmt::format("0 0 {}\n", kInvalidId);
  std::string text = fmt::format("0 {} 1\n", files == 0 ? job : files);
  std::uint32_t next = 1;
  const auto add_unchanged_until = [&](std::uint32_t end) {
    if (next < end) text += fmt::format("{0} {0} {1}\n", next, end - next);
    next = end + 1;
  };
  for (const std::uint32_t id : {std::min(files, job), std::max(files, job)}) {
    if (id == 0) continue;
    add_unchanged_until(id);
    if (id == files) text += fmt::format("{} {} 1\n", files, job);
  }
  add_unchanged_until(kInvalidId);
  return text;
}

// The process of the new namespace exits immediately and stays a zombie, which keeps its namespace until it is reaped.
// So no process can be left behind if this one is killed. CLONE_VM makes the call cheap; the parent waits for the exit.
int create_id_mapping(const FileOwner& files, const FileOwner& job) {
  alignas(std::max_align_t) char stack[16384];
  const pid_t pid =
      ::clone(exit_at_once, stack + sizeof stack, CLONE_NEWUSER | CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr);
  if (pid < 0) return -errno;
  const int fd = open_mapped_namespace(pid, files, job);
  ::waitpid(pid, nullptr, 0);
  return fd;
}

}  // namespace mycojobs::sandbox
