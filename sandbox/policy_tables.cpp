#include <linux/sched.h>
#include <sys/mman.h>

#include <cerrno>

#include "sandbox/policy.h"

namespace mycojobs::sandbox {
namespace {

// Files, memory, threads, time: a process on its own. What reaches out is checked in policy_arguments.cpp, or is
// missing.
// clang-format off
constexpr const char* kAllowed[] = {
    // descriptors and data
    "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2", "lseek",
    "close", "dup", "dup2", "dup3", "pipe", "pipe2", "poll", "ppoll", "select", "pselect6",
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2", "eventfd", "eventfd2",
    "timerfd_create", "timerfd_settime", "timerfd_gettime", "signalfd", "signalfd4",
    "copy_file_range", "flock", "fadvise64", "readahead",     // files
    "open", "openat", "openat2", "creat", "stat", "lstat", "fstat", "newfstatat", "statx", "statfs", "fstatfs",
    "access", "faccessat", "faccessat2", "getdents", "getdents64", "getcwd", "chdir", "fchdir", "mkdir", "mkdirat",
    "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat",
    "readlink", "readlinkat", "truncate", "ftruncate", "fallocate", "chmod", "fchmod", "fchmodat", "chown", "fchown",
    "lchown", "fchownat", "umask", "utime", "utimes", "utimensat", "futimesat", "getxattr", "lgetxattr", "fgetxattr",
    "listxattr", "llistxattr", "flistxattr",
    // memory
    "brk", "munmap", "mremap", "mincore", "msync", "mlock", "mlock2", "munlock", "mlockall", "munlockall",
    "get_mempolicy", "pkey_alloc", "pkey_free", "membarrier",
    // threads, signals, time
    "futex", "futex_waitv", "get_robust_list", "set_robust_list", "set_tid_address", "rseq", "gettid", "sched_yield",
    "sched_getaffinity", "sched_getparam", "sched_getscheduler", "sched_getattr",
    "sched_get_priority_max", "sched_get_priority_min", "sched_rr_get_interval", "getpriority", "getcpu",
    "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigsuspend", "rt_sigtimedwait",
    "rt_sigqueueinfo", "rt_tgsigqueueinfo", "sigaltstack", "restart_syscall", "kill", "tkill", "tgkill", "pidfd_open",
    "pidfd_send_signal", "pause", "alarm", "getitimer", "setitimer", "timer_create", "timer_settime", "timer_gettime",
    "timer_getoverrun", "timer_delete", "time", "gettimeofday", "clock_gettime", "clock_getres", "clock_nanosleep",
    "nanosleep", "times",
    // the process about itself
    "exit", "exit_group", "wait4", "waitid", "getpid", "getppid", "getpgid", "getpgrp", "setpgid", "getsid", "setsid",
    "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "capget", "getrlimit",
    "getrusage", "sysinfo", "uname", "getrandom", "ioprio_get",
    // on a stream pair, the only socket there is; the address of a message on it has no effect
    "shutdown", "getsockname", "getpeername", "recvfrom", "recvmsg", "recvmmsg",     // a job may narrow itself further
    "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",
};
// clang-format on

// Of sockets whose family socket() has let pass.
constexpr const char* kAllowedWithSockets[] = {"bind", "connect", "accept", "accept4", "sendto", "sendmsg", "sendmmsg"};

constexpr const char* kAllowedWithExec[] = {"fork", "vfork", "execve", "execveat"};

// No script that means well makes these calls: the attempt itself is the finding.
// clang-format off
constexpr const char* kNeverInnocent[] = {
    "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise", "bpf", "keyctl",
    "add_key", "request_key", "unshare", "setns", "mount", "umount", "umount2", "pivot_root", "move_mount", "open_tree",
    "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "open_by_handle_at", "perf_event_open", "userfaultfd",
    "fanotify_init", "fanotify_mark", "lookup_dcookie", "kexec_load", "kexec_file_load", "init_module", "finit_module",
    "delete_module", "reboot", "swapon", "swapoff", "acct", "iopl", "ioperm",
};
// clang-format on

// Harmless, or with a fallback in libc or the language. All that no table names is EPERM.
constexpr RefusedCall kRefused[] = {
    {"clone3", ENOSYS},          // its flags are behind a pointer; libc falls back to clone
    {"io_uring_setup", ENOSYS},  // would open sockets behind the filter's back
    {"io_uring_enter", ENOSYS},
    {"io_uring_register", ENOSYS},
    {"memfd_secret", ENOSYS},
    // shared by all jobs of a zygote: one network, one ipc namespace, one set of read-only files
    {"inotify_init", EMFILE},
    {"inotify_init1", EMFILE},
    {"shmget", ENOSYS},
    {"semget", ENOSYS},
    {"msgget", ENOSYS},
    {"mq_open", ENOSYS},
    // moves pages between files and pipes without copying: the family behind Dirty Pipe
    {"splice", ENOSYS},
    {"tee", ENOSYS},
    {"vmsplice", ENOSYS},
    {"sendfile", EINVAL},  // into a pipe it is splice; the answer for files that cannot, so that programs copy
    {"setxattr", EOPNOTSUPP},
    {"lsetxattr", EOPNOTSUPP},
    {"fsetxattr", EOPNOTSUPP},
    {"removexattr", EOPNOTSUPP},
    {"lremovexattr", EOPNOTSUPP},
    {"fremovexattr", EOPNOTSUPP},
    {"name_to_handle_at", EOPNOTSUPP},
    {"mbind", ENOSYS},
    {"set_mempolicy", ENOSYS},
    // flush the host's disks; a job's own files are in memory: pretend
    {"sync", 0},
    {"syncfs", 0},
    {"fsync", 0},
    {"fdatasync", 0},
    {"sync_file_range", 0},
};

}  // namespace

std::span<const char* const> allowed_calls() { return kAllowed; }
std::span<const char* const> allowed_calls_with_exec() { return kAllowedWithExec; }
std::span<const char* const> allowed_calls_with_sockets() { return kAllowedWithSockets; }
std::span<const char* const> never_innocent_calls() { return kNeverInnocent; }
std::span<const RefusedCall> refused_calls() { return kRefused; }

}  // namespace mycojobs::sandbox
