#include "executors/plugin/pluginhost/rights.h"

#include <sys/resource.h>

#include <cerrno>
#include <string>

#include "base/errno_text.h"
#include "sandbox/helper_rights.h"

namespace mycojobs::plugin {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // needs terabytes of addresses
#else
constexpr bool kSanitized = false;
#endif

// Not /etc as a whole: where the agent is no root, its configuration and secrets are readable to this user.
constexpr const char* kReadable[] = {
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives"};

// What reaches other processes, the network or the kernel's rarer parts. Signals to itself are left: abort() needs
// them.
constexpr const char* kRefused[] = {
    "fork",
    "vfork",
    "clone",
    "clone3",
    "execve",
    "execveat",
    "socket",
    "socketpair",
    "connect",
    "bind",
    "listen",
    "accept",
    "accept4",
    "kill",
    "tkill",
    "rt_sigqueueinfo",
    "rt_tgsigqueueinfo",
    "pidfd_open",
    "pidfd_getfd",
    "pidfd_send_signal",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "kcmp",
    "unshare",
    "setns",
    "mount",
    "umount2",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsmount",
    "mount_setattr",
    "pivot_root",
    "chroot",
    "bpf",
    "keyctl",
    "add_key",
    "request_key",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "memfd_create",
    "memfd_secret",
    "shmget",
    "shmat",
    "semget",
    "msgget",
    "mq_open",
    "setpriority",
    "ioprio_set",
    "sched_setscheduler",
    "sched_setattr",
    "sched_setaffinity",
    "setrlimit",
    "inotify_init1",
    "fanotify_init",
};

Result<void> limit(int what, const char* name, rlim_t soft, rlim_t hard) {
  const rlimit wanted{soft, hard};
  if (::setrlimit(static_cast<__rlimit_resource_t>(what), &wanted) == 0) return {};
  return fail(Code::io, std::string("cannot give up rights: ") + name + ": " + errno_text(errno));
}

}  // namespace

Result<void> give_up_rights(int plugin_fd) {
  constexpr rlim_t kMemory = 512ULL << 20;
  if (!kSanitized) MJ_CHECK(limit(RLIMIT_AS, "RLIMIT_AS", kMemory, kMemory));
  MJ_CHECK(limit(RLIMIT_NOFILE, "RLIMIT_NOFILE", 64, 64));
  MJ_CHECK(limit(RLIMIT_FSIZE, "RLIMIT_FSIZE", 0, 0));
  // A hard limit of 1 keeps even a core pipe from being started.
  MJ_CHECK(limit(RLIMIT_CORE, "RLIMIT_CORE", 0, 1));
  MJ_CHECK(sandbox::empty_bounding_set());
  MJ_CHECK(sandbox::leave_root());
  MJ_CHECK(sandbox::drop_capabilities());
  MJ_CHECK(limit(RLIMIT_NPROC, "RLIMIT_NPROC", 0, 0));
  MJ_CHECK(sandbox::hide_and_keep_down());
  MJ_CHECK(sandbox::read_only_below(kReadable, plugin_fd));
  return sandbox::refuse_calls(kRefused);
}

}  // namespace mycojobs::plugin
