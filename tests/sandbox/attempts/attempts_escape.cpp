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

// Reads or writes the memory of another process. The zygote forked both processes, so the address of `mark` is the
// same in the job and in its init.
std::string access_memory(const Words& words, bool write) {
  static int mark = 1;
  int copy = 0;
  const iovec here{&copy, sizeof copy}, there{&mark, sizeof mark};
  const auto pid = static_cast<pid_t>(parse_number(words, 1));
  return describe_result(write ? ::process_vm_writev(pid, &here, 1, &there, 1, 0)
                               : ::process_vm_readv(pid, &here, 1, &there, 1, 0));
}

std::string seize(const Words& words) {
  return describe_result(::ptrace(PTRACE_SEIZE, static_cast<pid_t>(parse_number(words, 1)), nullptr, nullptr));
}

std::string take_descriptor(const Words& words) {
  const long process = ::syscall(SYS_pidfd_open, parse_number(words, 1), 0);
  return process < 0 ? "process: " + errno_name()
                     : describe_result(::syscall(SYS_pidfd_getfd, process, parse_number(words, 2), 0));
}

std::string mount_tmpfs(const Words& words) {
  return describe_result(::mount("x", words[1].c_str(), "tmpfs", 0, nullptr));
}
std::string bind_over(const Words& words) {
  return describe_result(::mount(words[1].c_str(), words[2].c_str(), nullptr, MS_BIND, nullptr));
}
std::string make_writable(const Words& words) {
  return describe_result(::mount(nullptr, words[1].c_str(), nullptr, MS_REMOUNT | MS_BIND, nullptr));
}
std::string unmount(const Words& words) { return describe_result(::umount2(words[1].c_str(), MNT_DETACH)); }
std::string change_root(const Words& words) { return describe_result(::chroot(words[1].c_str())); }

std::string join_namespace(const Words& words) {
  const int fd = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  return fd < 0 ? "open: " + errno_name() : describe_result(::setns(fd, 0));
}

// Mounts in a new user namespace, in which the process has all capabilities.
std::string mount_in_own_namespaces(const Words& words) {
  return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ? errno_name() : mount_tmpfs(words);
}

// A handle opens a file without a path (the "shocker" attack).
std::string open_by_handle(const Words& words) {
  alignas(file_handle) std::array<char, sizeof(file_handle) + MAX_HANDLE_SZ> room{};
  auto* handle = reinterpret_cast<file_handle*>(room.data());
  handle->handle_bytes = MAX_HANDLE_SZ;
  int mount = 0;
  if (::name_to_handle_at(AT_FDCWD, words[1].c_str(), handle, &mount, 0) != 0) return "handle: " + errno_name();
  const int folder = ::open(words[1].c_str(), O_RDONLY | O_CLOEXEC);
  return folder < 0 ? "folder: " + errno_name()
                    : describe_result(::open_by_handle_at(folder, handle, O_RDONLY | O_CLOEXEC));
}

std::string name_host(const Words& words) { return describe_result(::sethostname(words[1].c_str(), words[1].size())); }

}  // namespace

const Attempts& attempts_to_escape() {
  static const Attempts kTable = {
      {"read_memory_of", [](const Words& w) { return access_memory(w, false); }},
      {"write_memory_of", [](const Words& w) { return access_memory(w, true); }},
      {"seize", seize},
      {"take_descriptor", take_descriptor},
      {"mount_tmpfs", mount_tmpfs},
      {"bind_over", bind_over},
      {"make_writable", make_writable},
      {"unmount", unmount},
      {"change_root", change_root},
      {"join_namespace", join_namespace},
      {"mount_in_own_namespaces", mount_in_own_namespaces},
      {"open_by_handle", open_by_handle},
      {"name_host", name_host},
  };
  return kTable;
}

}  // namespace mycojobs::test
