// System calls that no policy and no ceiling adds by name: where policies are read, and once more where the sandbox
// compiles its filter. Nothing but the standard library, since the launcher includes it too.
#pragma once

#include <algorithm>
#include <string_view>

namespace mycojobs {

// Each would lead out of the sandbox whatever its other walls are: it makes namespaces or mounts, reaches into other
// processes, has the kernel load or start what is the host's (request_key: a program, as root), or makes calls that no
// filter sees (io_uring).
// clang-format off
inline constexpr std::string_view kGrantedToNobody[] = {
    "bpf", "delete_module", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module",
    "io_uring_enter", "io_uring_register", "io_uring_setup", "kexec_file_load", "kexec_load", "mount",
    "mount_setattr", "move_mount", "open_by_handle_at", "open_tree", "pidfd_getfd", "pivot_root",
    "process_vm_writev", "reboot", "request_key", "seccomp", "setns", "umount2", "unshare", "userfaultfd",
};
// Without these a job is one process that runs one program, whatever else it may call.
inline constexpr std::string_view kGrantedByExec[] = {"clone", "clone3", "execve", "execveat", "fork", "vfork"};
// clang-format on
static_assert(std::is_sorted(std::begin(kGrantedToNobody), std::end(kGrantedToNobody)));
static_assert(std::is_sorted(std::begin(kGrantedByExec), std::end(kGrantedByExec)));

constexpr bool is_granted_to_nobody(std::string_view syscall) {
  return std::binary_search(std::begin(kGrantedToNobody), std::end(kGrantedToNobody), syscall);
}

// New processes and programs: the field exec grants them, `syscalls.add` never.
constexpr bool is_granted_by_exec(std::string_view syscall) {
  return std::binary_search(std::begin(kGrantedByExec), std::end(kGrantedByExec), syscall);
}

// Behind the name of the call. Empty: it can be added.
constexpr std::string_view why_never_added(std::string_view syscall) {
  if (is_granted_by_exec(syscall)) return "is never granted by name: exec = true grants new processes and programs";
  if (is_granted_to_nobody(syscall)) return "is granted to nobody: it leads out of any sandbox";
  return {};
}

}  // namespace mycojobs
