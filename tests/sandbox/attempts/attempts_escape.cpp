// Effective forms of the calls that end a job. They show which other layers refuse the calls without the filter.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "attempt_table.h"

namespace mycojobs::test {
namespace {

// Reads or writes the memory of another process. The zygote forked both processes, so the address of `marker` is the
// same in the job and in its init.
std::string access_memory(const Words& words, bool is_write) {
  static int marker = 1;
  int value = 0;
  const iovec local{&value, sizeof value}, remote{&marker, sizeof marker};
  const auto pid = static_cast<pid_t>(parse_number(words, 1));
  return describe_result(is_write ? ::process_vm_writev(pid, &local, 1, &remote, 1, 0)
                                  : ::process_vm_readv(pid, &local, 1, &remote, 1, 0));
}

std::string seize_process(const Words& words) {
  return describe_result(::ptrace(PTRACE_SEIZE, static_cast<pid_t>(parse_number(words, 1)), nullptr, nullptr));
}

std::string copy_descriptor(const Words& words) {
  const long pidfd = ::syscall(SYS_pidfd_open, parse_number(words, 1), 0);
  return pidfd < 0 ? "process: " + get_errno_name()
                   : describe_result(::syscall(SYS_pidfd_getfd, pidfd, parse_number(words, 2), 0));
}

std::string mount_tmpfs(const Words& words) {
  return describe_result(::mount("x", words[1].c_str(), "tmpfs", 0, nullptr));
}
std::string bind_mount_over(const Words& words) {
  return describe_result(::mount(words[1].c_str(), words[2].c_str(), nullptr, MS_BIND, nullptr));
}
std::string make_writable(const Words& words) {
  return describe_result(::mount(nullptr, words[1].c_str(), nullptr, MS_REMOUNT | MS_BIND, nullptr));
}
std::string unmount(const Words& words) { return describe_result(::umount2(words[1].c_str(), MNT_DETACH)); }
std::string change_root(const Words& words) { return describe_result(::chroot(words[1].c_str())); }

std::string join_namespace(const Words& words) {
  const int fd = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  return fd < 0 ? "open: " + get_errno_name() : describe_result(::setns(fd, 0));
}

// Mounts in a new user namespace, in which the process has all capabilities.
std::string mount_in_own_namespaces(const Words& words) {
  return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ? get_errno_name() : mount_tmpfs(words);
}

// A handle opens a file without a path (the "shocker" attack).
std::string open_by_handle(const Words& words) {
  alignas(file_handle) std::array<char, sizeof(file_handle) + MAX_HANDLE_SZ> handle_storage{};
  auto* handle = reinterpret_cast<file_handle*>(handle_storage.data());
  handle->handle_bytes = MAX_HANDLE_SZ;
  int mount_id = 0;
  if (::name_to_handle_at(AT_FDCWD, words[1].c_str(), handle, &mount_id, 0) != 0) return "handle: " + get_errno_name();
  const int folder = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  return folder < 0 ? "folder: " + get_errno_name()
                    : describe_result(::open_by_handle_at(folder, handle, O_RDONLY | O_CLOEXEC));
}

std::string set_host_name(const Words& words) {
  return describe_result(::sethostname(words[1].c_str(), words[1].size()));
}

}  // namespace

const Attempts& escape_attempts() {
  static const Attempts kTable = {
      {"read_memory_of", [](const Words& words) { return access_memory(words, false); }},
      {"write_memory_of", [](const Words& words) { return access_memory(words, true); }},
      {"seize", seize_process},
      {"take_descriptor", copy_descriptor},
      {"mount_tmpfs", mount_tmpfs},
      {"bind_over", bind_mount_over},
      {"make_writable", make_writable},
      {"unmount", unmount},
      {"change_root", change_root},
      {"join_namespace", join_namespace},
      {"mount_in_own_namespaces", mount_in_own_namespaces},
      {"open_by_handle", open_by_handle},
      {"name_host", set_host_name},
  };
  return kTable;
}

}  // namespace mycojobs::test
