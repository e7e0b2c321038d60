// System calls that no policy and no ceiling can add by name. Checked where policies are parsed, and again where the
// sandbox compiles its filter. Uses only the standard library, because the launcher includes it, too.
#pragma once

#include <algorithm>
#include <string_view>

namespace mycojobs {

// Each of these calls would lead out of the sandbox independently of its other restrictions: it creates namespaces or
// mounts, accesses other processes, makes the kernel load or start parts of the host (request_key: a program, as root),
// or makes calls that no filter checks (io_uring).
// clang-format off
inline constexpr std::string_view kNeverGranted[] = {
    "bpf", "delete_module", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module",
    "io_uring_enter", "io_uring_register", "io_uring_setup", "kexec_file_load", "kexec_load", "mount",
    "mount_setattr", "move_mount", "open_by_handle_at", "open_tree", "pidfd_getfd", "pivot_root",
    "process_vm_writev", "reboot", "request_key", "seccomp", "setns", "umount2", "unshare", "userfaultfd",
};
// The sandbox refuses the set-id bits of a file's mode. It cannot check them in these calls: the mode of openat2 is
// behind a pointer, and older versions of libseccomp do not know fchmodat2. Both answer ENOSYS, so that programs use
// another call.
inline constexpr std::string_view kUncheckedMode[] = {"fchmodat2", "openat2"};
// Without these calls a job is one process that runs one program, regardless of its other calls.
inline constexpr std::string_view kGrantedByExec[] = {"clone", "clone3", "execve", "execveat", "fork", "vfork"};
// clang-format on
static_assert(std::is_sorted(std::begin(kNeverGranted), std::end(kNeverGranted)));
static_assert(std::is_sorted(std::begin(kGrantedByExec), std::end(kGrantedByExec)));

constexpr bool is_never_granted(std::string_view syscall) {
  return std::binary_search(std::begin(kNeverGranted), std::end(kNeverGranted), syscall);
}

// Returns whether the field exec grants the call (new processes and programs); `syscalls.add` never does.
constexpr bool is_granted_by_exec(std::string_view syscall) {
  return std::binary_search(std::begin(kGrantedByExec), std::end(kGrantedByExec), syscall);
}

// Returns the reason, to be printed after the name of the call, or an empty text if the call can be added.
constexpr std::string_view never_granted_reason(std::string_view syscall) {
  if (is_granted_by_exec(syscall)) return "is never granted by name: exec = true grants new processes and programs";
  if (is_never_granted(syscall)) return "is never granted: it allows an escape from any sandbox";
  if (std::find(std::begin(kUncheckedMode), std::end(kUncheckedMode), syscall) != std::end(kUncheckedMode))
    return "is never granted: the sandbox cannot check its arguments; programs use an older call instead";
  return {};
}

}  // namespace mycojobs
