// The tables of filter.h: which calls a job may make, and with which arguments.
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#if __has_include(<asm/prctl.h>)
#include <asm/prctl.h>  // exists on x86 only
#endif

#include "sandbox/messages.h"
#include "sandbox/seccomp/filter.h"

namespace mycojobs::sandbox {
namespace {

// Calls on files, memory, threads and time of a single process. Calls with effects outside are checked by their
// arguments below, or are missing.
// clang-format off
constexpr const char* kAllowed[] = {
    // descriptors and data
    "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2", "lseek",
    "close", "dup", "dup2", "dup3", "pipe", "pipe2", "poll", "ppoll", "select", "pselect6",
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait", "epoll_pwait2", "eventfd", "eventfd2",
    "timerfd_create", "timerfd_settime", "timerfd_gettime", "signalfd", "signalfd4",
    "copy_file_range", "flock", "fadvise64", "readahead",
    // files
    "stat", "lstat", "fstat", "newfstatat", "statx", "statfs", "fstatfs",
    "access", "faccessat", "faccessat2", "getdents", "getdents64", "getcwd", "chdir", "fchdir",
    "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat",
    "readlink", "readlinkat", "truncate", "ftruncate", "chown", "fchown",
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
    // sockets: a job has only stream pairs, on which the address of a message has no effect
    "shutdown", "getsockname", "getpeername", "recvfrom", "recvmsg", "recvmmsg",
    // further restrictions of the job by itself
    "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",
};
// clang-format on

// Calls on sockets of a family that the rules for socket() allow.
constexpr const char* kAllowedWithSockets[] = {"bind", "connect", "accept", "accept4"};

constexpr const char* kAllowedWithExec[] = {"fork", "vfork", "execve", "execveat"};

// No legitimate script makes these calls: the attempt itself is a violation.
// clang-format off
constexpr const char* kForbiddenCalls[] = {
    "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise", "bpf", "keyctl",
    "add_key", "request_key", "unshare", "setns", "mount", "umount", "umount2", "pivot_root", "move_mount", "open_tree",
    "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "open_by_handle_at", "perf_event_open", "userfaultfd",
    "fanotify_init", "fanotify_mark", "lookup_dcookie", "kexec_load", "kexec_file_load", "init_module", "finit_module",
    "delete_module", "reboot", "swapon", "swapoff", "acct", "iopl", "ioperm",
};
// clang-format on

// Calls that are harmless, or have a fallback in libc or the language. Calls that are in no table fail with EPERM.
constexpr RefusedCall kRefused[] = {
    {"clone3", ENOSYS},          // the flags are behind a pointer; libc falls back to clone
    {"fchmodat2", ENOSYS},       // newer than the oldest supported libseccomp; libc falls back to fchmodat
    {"openat2", ENOSYS},         // flags and mode are behind a pointer; programs fall back to openat
    {"io_uring_setup", ENOSYS},  // would open sockets that the filter does not check
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
    // These calls move pages between files and pipes without copying, which the Dirty Pipe vulnerability used.
    // EINVAL as for files that cannot be spliced: programs such as grep copy then, and they do not expect ENOSYS.
    {"splice", EINVAL},
    {"tee", EINVAL},
    {"vmsplice", EINVAL},
    {"sendfile", EINVAL},  // the same as splice if the target is a pipe
    {"setxattr", EOPNOTSUPP},
    {"lsetxattr", EOPNOTSUPP},
    {"fsetxattr", EOPNOTSUPP},
    {"removexattr", EOPNOTSUPP},
    {"lremovexattr", EOPNOTSUPP},
    {"fremovexattr", EOPNOTSUPP},
    {"name_to_handle_at", EOPNOTSUPP},
    // Fail as on kernels without NUMA or asynchronous I/O, for which databases and Java have a fallback.
    {"io_setup", ENOSYS},
    {"move_pages", ENOSYS},
    {"migrate_pages", ENOSYS},
    {"mbind", ENOSYS},
    {"set_mempolicy", ENOSYS},
    // flush the host's disks; a job's own files are in memory, so the calls pretend success
    {"sync", 0},
    {"syncfs", 0},
    {"fsync", 0},
    {"fdatasync", 0},
    {"sync_file_range", 0},
};

// Calls that depend on their arguments. Every rule is (argument & mask) == value; a call that matches no rule fails
// with EPERM.

constexpr std::uint64_t kAll = ~0ULL;
constexpr std::uint64_t kLow32 = 0xffffffffULL;  // the kernel ignores the upper half of an int; so must the filter
constexpr std::uint64_t kTypeAndSetIds = S_IFMT | kSetIds;

// A file with a set-id bit that a job creates on the host, in a granted folder, would run with the rights of the owner
// of the job's files for every user of the host. The rules of one call are alternatives.
constexpr ArgumentRule kModeRules[] = {
    {"chmod", {1, kSetIds, 0}},   {"fchmod", {1, kSetIds, 0}},  {"fchmodat", {2, kSetIds, 0}},
    {"mkdir", {1, kSetIds, 0}},   {"mkdirat", {2, kSetIds, 0}}, {"creat", {1, kSetIds, 0}},
    {"open", {2, kSetIds, 0}},    {"open", {1, kCreates, 0}},   {"openat", {3, kSetIds, 0}},
    {"openat", {2, kCreates, 0}},
};

constexpr ArgumentRule allow_value(const char* name, unsigned index, std::uint64_t value) {
  return {name, {index, kLow32, value & kLow32}};
}

constexpr ArgumentRule allow_option(std::uint64_t option) {
  return {"getsockopt", {1, kLow32, SOL_SOCKET}, {2, kLow32, option}};
}

constexpr ArgumentRule set_option(std::uint64_t level, std::uint64_t option) {
  return {"setsockopt", {1, kLow32, level}, {2, kLow32, option}};
}

// Allows a process to set its own limit; the pid of another process is refused.
constexpr ArgumentRule set_limit(std::uint64_t resource) {
  return {"prlimit64", {0, kLow32, 0}, {1, kLow32, resource}};
}

// Flags of clone. CLONE_NEWTIME shares its bit with the exit signal: it exists for clone3 and unshare only.
constexpr std::uint64_t kNamespaces =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
// Threads share their descriptors: the limit of open files is counted per table.
constexpr std::uint64_t kThread = CLONE_THREAD | CLONE_VM | CLONE_SIGHAND | CLONE_FILES;
constexpr std::uint64_t kCloneChecked = kNamespaces | kThread | CLONE_PTRACE | CLONE_PARENT;

constexpr std::uint64_t kWriteExec = PROT_WRITE | PROT_EXEC;
constexpr std::uint64_t kStreamFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;

constexpr ArgumentRule kRules[] = {
    {"clone", {0, kCloneChecked, kThread}},
    {"clone", {0, CLONE_NEWNS, CLONE_NEWNS}, {}, {}, SyscallAction::notify},
    {"clone", {0, CLONE_NEWCGROUP, CLONE_NEWCGROUP}, {}, {}, SyscallAction::notify},
    {"clone", {0, CLONE_NEWUTS, CLONE_NEWUTS}, {}, {}, SyscallAction::notify},
    {"clone", {0, CLONE_NEWIPC, CLONE_NEWIPC}, {}, {}, SyscallAction::notify},
    {"clone", {0, CLONE_NEWUSER, CLONE_NEWUSER}, {}, {}, SyscallAction::notify},
    {"clone", {0, CLONE_NEWPID, CLONE_NEWPID}, {}, {}, SyscallAction::notify},
    {"clone", {0, CLONE_NEWNET, CLONE_NEWNET}, {}, {}, SyscallAction::notify},

    // memory is writable or executable, never both
    {"mmap", {2, kWriteExec, 0}, {3, MAP_HUGETLB, 0}},  // huge pages of the pool are outside the memory limit
    {"mmap", {2, kWriteExec, PROT_WRITE}, {3, MAP_HUGETLB, 0}},
    {"mmap", {2, kWriteExec, PROT_EXEC}, {3, MAP_HUGETLB, 0}},
    {"memfd_create", {1, MFD_HUGETLB, 0}},
    {"mprotect", {2, kWriteExec, 0}},
    {"mprotect", {2, kWriteExec, PROT_WRITE}},
    {"mprotect", {2, kWriteExec, PROT_EXEC}},
    {"pkey_mprotect", {2, kWriteExec, 0}},
    {"pkey_mprotect", {2, kWriteExec, PROT_WRITE}},
    {"pkey_mprotect", {2, kWriteExec, PROT_EXEC}},
    {"personality", {0, kLow32, 0xffffffff}},  // queries without a change

    // a stream pair for asyncio
    {"socketpair", {0, kLow32, AF_UNIX}, {1, kLow32 & ~kStreamFlags, SOCK_STREAM}},

    // device nodes are not allowed
    {"mknod", {1, kTypeAndSetIds, S_IFREG}},
    {"mknod", {1, kTypeAndSetIds, 0}},
    {"mknod", {1, kTypeAndSetIds, S_IFIFO}},
    {"mknodat", {2, kTypeAndSetIds, S_IFREG}},
    {"mknodat", {2, kTypeAndSetIds, 0}},
    {"mknodat", {2, kTypeAndSetIds, S_IFIFO}},

    // A process may set only its own limits, CPU affinity and priority. Init has the same uid: slowed down or moved to
    // a busy CPU, init could not end the job.
    {"prlimit64", {0, kLow32, 0}, {2, kAll, 0}},  // queries without a change
    // RLIMIT_CORE stays 1, because 0 would start the host's core_pattern program when a program that the job has
    // executed crashes. Setting it pretends success: gpg and programs with -fsanitize=address end at an error. The
    // filter cannot write the old limit, so prlimit64 with a place for it stays EPERM.
    {"setrlimit", {0, kLow32, RLIMIT_CORE}, {}, {}, SyscallAction::refuse, 0},
    {"prlimit64", {0, kLow32, 0}, {1, kLow32, RLIMIT_CORE}, {3, kAll, 0}, SyscallAction::refuse, 0},
    set_limit(RLIMIT_CPU),
    set_limit(RLIMIT_FSIZE),
    set_limit(RLIMIT_DATA),
    set_limit(RLIMIT_STACK),
    set_limit(RLIMIT_RSS),
    set_limit(RLIMIT_NPROC),
    set_limit(RLIMIT_NOFILE),
    set_limit(RLIMIT_MEMLOCK),
    set_limit(RLIMIT_AS),
    allow_value("setrlimit", 0, RLIMIT_CPU),
    allow_value("setrlimit", 0, RLIMIT_FSIZE),
    allow_value("setrlimit", 0, RLIMIT_DATA),
    allow_value("setrlimit", 0, RLIMIT_STACK),
    allow_value("setrlimit", 0, RLIMIT_RSS),
    allow_value("setrlimit", 0, RLIMIT_NPROC),
    allow_value("setrlimit", 0, RLIMIT_NOFILE),
    allow_value("setrlimit", 0, RLIMIT_MEMLOCK),
    allow_value("setrlimit", 0, RLIMIT_AS),
    {"sched_setaffinity", {0, kLow32, 0}},
    {"setpriority", {0, kLow32, PRIO_PROCESS}, {1, kLow32, 0}},

    {"close_range",
     {2, kLow32 & ~std::uint64_t{CLOSE_RANGE_CLOEXEC},
      0}},  // CLOSE_RANGE_UNSHARE would create another table of descriptors

    // A page fault in a range that is being punched out of a file in memory waits until all of it is freed. The kernel
    // holds the lock of a pipe during a fault of a read or write, so the agent would wait with it. The errno is that of
    // a file system without holes.
    {"fallocate", {1, FALLOC_FL_PUNCH_HOLE, 0}},
    {"fallocate", {1, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_PUNCH_HOLE}, {}, {}, SyscallAction::refuse, EOPNOTSUPP},
    {"madvise", {2, kLow32, MADV_REMOVE}, {}, {}, SyscallAction::refuse, EOPNOTSUPP},

    allow_value("madvise", 2, MADV_NORMAL),
    allow_value("madvise", 2, MADV_RANDOM),
    allow_value("madvise", 2, MADV_SEQUENTIAL),
    allow_value("madvise", 2, MADV_WILLNEED),
    allow_value("madvise", 2, MADV_DONTNEED),
    allow_value("madvise", 2, MADV_FREE),
    allow_value("madvise", 2, MADV_DONTFORK),
    allow_value("madvise", 2, MADV_DOFORK),
    allow_value("madvise", 2, MADV_HUGEPAGE),
    allow_value("madvise", 2, MADV_NOHUGEPAGE),
    allow_value("madvise", 2, MADV_DONTDUMP),
    allow_value("madvise", 2, MADV_DODUMP),
    allow_value("madvise", 2, MADV_WIPEONFORK),
    allow_value("madvise", 2, MADV_KEEPONFORK),
    allow_value("madvise", 2, MADV_COLD),
    allow_value("madvise", 2, MADV_PAGEOUT),
    allow_value("madvise", 2, MADV_POPULATE_READ),
    allow_value("madvise", 2, MADV_POPULATE_WRITE),

    allow_value("ioctl", 1, TCGETS),
    allow_value("ioctl", 1, TIOCGWINSZ),
    allow_value("ioctl", 1, TIOCGPGRP),
    allow_value("ioctl", 1, FIONREAD),
    allow_value("ioctl", 1, FIONBIO),
    allow_value("ioctl", 1, FIOCLEX),
    allow_value("ioctl", 1, FIONCLEX),
    {"ioctl", {1, kLow32, FICLONE}, {}, {}, SyscallAction::refuse, EOPNOTSUPP},
    {"ioctl", {1, kLow32, FS_IOC_GETFLAGS& kLow32}, {}, {}, SyscallAction::refuse, ENOTTY},

    allow_value("fcntl", 1, F_DUPFD),
    allow_value("fcntl", 1, F_DUPFD_CLOEXEC),
    allow_value("fcntl", 1, F_GETFD),
    allow_value("fcntl", 1, F_SETFD),
    allow_value("fcntl", 1, F_GETFL),
    allow_value("fcntl", 1, F_SETFL),
    allow_value("fcntl", 1, F_GETLK),
    allow_value("fcntl", 1, F_OFD_GETLK),
    allow_value("fcntl", 1, F_GETPIPE_SZ),
    allow_value("fcntl", 1, F_ADD_SEALS),
    allow_value("fcntl", 1, F_GET_SEALS),

    allow_value("prctl", 0, PR_SET_NAME),
    allow_value("prctl", 0, PR_GET_NAME),
    allow_value("prctl", 0, PR_GET_DUMPABLE),
    allow_value("prctl", 0, PR_GET_PDEATHSIG),
    allow_value("prctl", 0, PR_GET_SECCOMP),
    allow_value("prctl", 0, PR_GET_NO_NEW_PRIVS),
    allow_value("prctl", 0, PR_SET_NO_NEW_PRIVS),
    allow_value("prctl", 0, PR_GET_KEEPCAPS),
    allow_value("prctl", 0, PR_GET_SECUREBITS),
    allow_value("prctl", 0, PR_CAPBSET_READ),
    allow_value("prctl", 0, PR_GET_TIMERSLACK),
    allow_value("prctl", 0, PR_SET_TIMERSLACK),
    allow_value("prctl", 0, PR_GET_SPECULATION_CTRL),
    allow_value("prctl", 0, PR_GET_THP_DISABLE),
    allow_value("prctl", 0, PR_SET_THP_DISABLE),
    allow_value("prctl", 0, PR_SET_VMA),

#ifdef ARCH_SET_FS
    allow_value("arch_prctl", 0, ARCH_SET_FS),
    allow_value("arch_prctl", 0, ARCH_GET_FS),
#endif
};

// An attempt to run a program fails with EPERM (PermissionError in Python). execveat with AT_EMPTY_PATH runs a file
// without a name and is a violation.
constexpr ArgumentRule kWithoutExec[] = {
    {"execveat", {4, 0x1000, 0x1000}, {}, {}, SyscallAction::notify},  // AT_EMPTY_PATH
};

constexpr ArgumentRule kWithExec[] = {
    {"clone", {0, kCloneChecked, 0}},         // fork
    {"clone", {0, kCloneChecked, CLONE_VM}},  // vfork, posix_spawn
};

// Calls of init for the next job: fork, load the last filter, and report the end of the job.
constexpr ArgumentRule kOfInit[] = {
    {"clone", {0, kCloneChecked, 0}},
    {"seccomp", {0, kLow32, SECCOMP_SET_MODE_FILTER}, {1, kAll, 0}},
    {"sendmsg", {0, kLow32, kStatusFd}},  // to the launcher; a job may have another socket with this number
};

// Stream pairs are the only sockets.
constexpr ArgumentRule kWithoutSockets[] = {
    {"socket", {}, {}, {}, SyscallAction::refuse, EAFNOSUPPORT},
    {"sendto", {4, kAll, 0}, {3, MSG_OOB | MSG_MORE, 0}},  // no address and no urgent data; MSG_MORE is explained below
    allow_option(SO_TYPE),
    allow_option(SO_DOMAIN),
    allow_option(SO_PROTOCOL),
    allow_option(SO_ERROR),
    allow_option(SO_SNDBUF),
    allow_option(SO_RCVBUF),
    allow_option(SO_SNDTIMEO),
    allow_option(SO_RCVTIMEO),
    allow_option(SO_ACCEPTCONN),
    {"setsockopt", {1, kLow32, SOL_SOCKET}, {2, kLow32, SO_SNDBUF}},
    {"setsockopt", {1, kLow32, SOL_SOCKET}, {2, kLow32, SO_RCVBUF}},
    {"setsockopt", {1, kLow32, SOL_SOCKET}, {2, kLow32, SO_SNDTIMEO}},
    {"setsockopt", {1, kLow32, SOL_SOCKET}, {2, kLow32, SO_RCVTIMEO}},
    {"setsockopt", {1, kLow32, SOL_SOCKET}, {2, kLow32, SO_PASSCRED}},
};

// Internet sockets in a network that is the job's alone: plain TCP and UDP, and the options of those that programs set.
// Every further family, protocol or option exposes more kernel code.
#define MJ_SOCKET(family, type, protocol)                                                     \
  {                                                                                           \
    "socket", {0, kLow32, family}, {1, kLow32 & ~kStreamFlags, type}, { 2, kLow32, protocol } \
  }
constexpr ArgumentRule kWithSockets[] = {
    // A datagram that waits for more data (MSG_MORE, UDP_CORK) is charged to no group.
    {"sendto", {3, MSG_MORE, 0}},
    {"sendmsg", {2, MSG_MORE, 0}},
    {"sendmmsg", {3, MSG_MORE, 0}},
    {"sendto", {3, MSG_MORE, MSG_MORE}, {}, {}, SyscallAction::refuse, EOPNOTSUPP},
    {"sendmsg", {2, MSG_MORE, MSG_MORE}, {}, {}, SyscallAction::refuse, EOPNOTSUPP},
    {"sendmmsg", {3, MSG_MORE, MSG_MORE}, {}, {}, SyscallAction::refuse, EOPNOTSUPP},
    MJ_SOCKET(AF_INET, SOCK_STREAM, 0),
    MJ_SOCKET(AF_INET, SOCK_STREAM, IPPROTO_TCP),
    MJ_SOCKET(AF_INET, SOCK_DGRAM, 0),
    MJ_SOCKET(AF_INET, SOCK_DGRAM, IPPROTO_UDP),
    MJ_SOCKET(AF_INET6, SOCK_STREAM, 0),
    MJ_SOCKET(AF_INET6, SOCK_STREAM, IPPROTO_TCP),
    MJ_SOCKET(AF_INET6, SOCK_DGRAM, 0),
    MJ_SOCKET(AF_INET6, SOCK_DGRAM, IPPROTO_UDP),
    set_option(SOL_SOCKET, SO_REUSEADDR),
    set_option(SOL_SOCKET, SO_REUSEPORT),
    set_option(SOL_SOCKET, SO_KEEPALIVE),
    // The last close of a socket that lingers blocks for up to 299 s, and it need not be the job's own close: the last
    // reference may be dropped by a worker thread of the kernel that serves the whole host (a descriptor in a message
    // that was never received). The call pretends success; unsent data is still sent after close.
    {"setsockopt", {1, kLow32, SOL_SOCKET}, {2, kLow32, SO_LINGER}, {}, SyscallAction::refuse, 0},
    set_option(SOL_SOCKET, SO_BROADCAST),
    set_option(SOL_SOCKET, SO_OOBINLINE),
    set_option(SOL_SOCKET, SO_SNDBUF),
    // Data of a connection that is not accepted yet is charged to no group. The call pretends success; the buffer size
    // stays as set in sandbox/zygote/confine.cpp.
    {"setsockopt", {1, kLow32, SOL_SOCKET}, {2, kLow32, SO_RCVBUF}, {}, SyscallAction::refuse, 0},
    set_option(SOL_SOCKET, SO_SNDTIMEO),
    set_option(SOL_SOCKET, SO_RCVTIMEO),
    set_option(SOL_SOCKET, SO_PASSCRED),
    set_option(IPPROTO_TCP, TCP_NODELAY),
    set_option(IPPROTO_TCP, TCP_CORK),
    set_option(IPPROTO_TCP, TCP_KEEPIDLE),
    set_option(IPPROTO_TCP, TCP_KEEPINTVL),
    set_option(IPPROTO_TCP, TCP_KEEPCNT),
    set_option(IPPROTO_TCP, TCP_USER_TIMEOUT),
    set_option(IPPROTO_TCP, TCP_QUICKACK),
    set_option(IPPROTO_IP, IP_TTL),
    set_option(IPPROTO_IP, IP_TOS),
    set_option(IPPROTO_IPV6, IPV6_V6ONLY),
    set_option(IPPROTO_IPV6, IPV6_UNICAST_HOPS),
    {"getsockopt", {1, kLow32, SOL_SOCKET}},
    {"getsockopt", {1, kLow32, IPPROTO_TCP}},
    {"getsockopt", {1, kLow32, IPPROTO_IP}, {2, kLow32, IP_TTL}},
    {"getsockopt", {1, kLow32, IPPROTO_IPV6}, {2, kLow32, IPV6_V6ONLY}},
};
#undef MJ_SOCKET

}  // namespace

std::span<const char* const> allowed_calls() { return kAllowed; }
std::span<const char* const> allowed_calls_with_exec() { return kAllowedWithExec; }
std::span<const char* const> allowed_calls_with_sockets() { return kAllowedWithSockets; }
std::span<const char* const> forbidden_calls() { return kForbiddenCalls; }
std::span<const RefusedCall> refused_calls() { return kRefused; }

std::span<const ArgumentRule> argument_rules_without_sockets() { return kWithoutSockets; }
std::span<const ArgumentRule> argument_rules_with_sockets() { return kWithSockets; }
std::span<const ArgumentRule> argument_rules_of_init() { return kOfInit; }
std::span<const ArgumentRule> argument_rules() { return kRules; }
std::span<const ArgumentRule> mode_rules() { return kModeRules; }
std::span<const ArgumentRule> argument_rules_without_exec() { return kWithoutExec; }
std::span<const ArgumentRule> argument_rules_with_exec() { return kWithExec; }

bool sets_mode(std::string_view syscall) {
  return syscall == "mknod" || syscall == "mknodat" ||
         std::any_of(std::begin(kModeRules), std::end(kModeRules),
                     [&](const ArgumentRule& rule) { return rule.syscall == syscall; });
}

const FileOpenCall* find_file_open_call(std::string_view syscall) {
  static constexpr FileOpenCall kCalls[] = {{"open", 0, 1, 2}, {"openat", 1, 2, 3}, {"creat", 0, 6, 1}};
  const auto* found = std::find_if(std::begin(kCalls), std::end(kCalls),
                                   [&](const FileOpenCall& row) { return row.syscall == syscall; });
  return found == std::end(kCalls) ? nullptr : found;
}

}  // namespace mycojobs::sandbox
