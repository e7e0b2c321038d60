// Attempts to use interfaces of the kernel, and to regain capabilities or ids.
#include "denied.h"

namespace mycojobs::test {

const std::vector<DeniedRow>& kernel_rows() {
  const char* const kReachedKernel = "=> ok|EFAULT|EINVAL|EPERM|EBADF|ENOSYS";  // The call reached the kernel.
  static const std::vector<DeniedRow> kRows = {
      {"SK7", "call seccomp 1 8 0", {"EPERM"}, "seccomp_allow 8"},
      {"SK7", "seccomp_allow 8", {"EPERM"}},
      {"SK8", "call seccomp 1 0 0", {"EPERM"}, "seccomp_allow 0"},
      {"SK8", "seccomp_allow 0", {"EPERM"}},
      {"SK8", "seccomp_allow 1", {"EPERM"}},
      {"SK8", "call seccomp 0 0 0", {"EPERM"}},
      {"SK9", "ioctl 0x5412", {"EPERM"}, "=> ENOTTY"},  // TIOCSTI
      {"SK9", "ioctl 0x541c", {"EPERM"}, "=> ENOTTY"},  // TIOCLINUX
      {"SK9", "ioctl 0x5423", {"EPERM"}, "=> ENOTTY"},  // TIOCSETD
      {"SK9", "ioctl 0x12300005412", {"EPERM"}, "=> ENOTTY"},
      {"SK13", "call clone3", {"ENOSYS"}, "=> EINVAL"},
      {"SK13", "clone3 0", {"ENOSYS"}},
      {"SK13", "clone3 0x10000000", {"ENOSYS"}, "clone3 0"},
      {"SK13", "pthread", {"ok"}},
      // Init has the uid of the job. The job must not lower the priority of init, change its CPUs, or merge its memory.
      {"init", "call setpriority 0 1 19", {"EPERM"}, kReachedKernel},
      {"init", "call setpriority 2 0 19", {"EPERM"}, kReachedKernel},
      {"SP16", "call sched_setaffinity 1 8 0", {"EPERM"}, "=> EFAULT"},
      {"descriptors", "call close_range 3 4 2", {"EPERM"}},
      {"memory", "call memfd_create 0 4", {"EPERM"}, "=> EFAULT|ENOSYS|EINVAL"},  // MFD_HUGETLB
      {"memory", "call madvise 0 0 12", {"EPERM"}, kReachedKernel},               // MADV_MERGEABLE
      {"disks", "call syncfs 0", {"ok"}},  // The filter returns success without an effect.
      {"newer", "call 471", {"ENOSYS"}, "=> ENOSYS|EFAULT|EINVAL"},
      {"newer", "call 900", {"ENOSYS"}, "=> ENOSYS"},
      {"SK16", "call clock_settime 0 0", {"EPERM"}, "=> EFAULT"},
      {"SK16", "call settimeofday 0 0", {"EPERM"}, "=> EPERM|ok"},
      {"SK16", "call adjtimex 0", {"EPERM"}, "=> EFAULT"},
      {"SK16", "call clock_adjtime 0 0", {"EPERM"}, "=> EFAULT"},
      {"SK16", "call sethostname 0 0", {"EPERM"}},
      {"SK16", "call setdomainname 0 0", {"EPERM"}},
      {"SK20", "call syslog 3 0 0", {"EPERM"}, "=> EINVAL|EPERM|EFAULT"},
      {"SK14", "call getrandom 0 0 0", {"ok"}},
      {"SK14", "call membarrier 0 0 0", {"ok"}},
      {"SK14", "call close_range 900 901 0", {"ok"}},
      {"SK14", "call statx 0 0 0 0 0", {"EFAULT", "EBADF", "EINVAL"}, kReachedKernel},
      {"SK14", "call faccessat2 0 0 0 0", {"EFAULT"}, "=> EFAULT"},
      {"SK14", "call sched_getaffinity 0 0 0", {"EINVAL"}, "=> EINVAL"},
      {"SK14", "call rseq 0 0 0 0", {"EINVAL", "EBUSY", "EFAULT"}, "=> EINVAL|EBUSY|EFAULT"},
      {"SK14", "call set_robust_list 0 24", {"ok"}},
      {"SK14", "call_on pipe2 @ 0", {"ok"}},
      {"SK14", "call epoll_pwait2 0 0 0 0 0 0", {"EINVAL", "EBADF", "EFAULT"}, "=> EINVAL|EBADF|EFAULT"},
      {"SK15", "call modify_ldt 0 0 0", {"EPERM"}},
      {"SK15", "call vm86 0 0", {"EPERM", "ENOSYS", "no such call"}, "=> no such call|ENOSYS"},
      {"SK15", "call uselib 0", {"EPERM"}, "=> ENOSYS|EFAULT"},
      {"SK15", "call sysfs 3", {"EPERM"}, "=> ENOSYS|ok"},
      {"SK17", "call landlock_create_ruleset 0 0 1", {"ok"}},
      {"SK19", "prctl_full 53 0 2", {"EPERM"}, "=> ok|ENXIO|EPERM|EINVAL"},
      {"SK19", "prctl_full 53 1 2", {"EPERM"}, "=> ok|ENXIO|EPERM|EINVAL"},
      {"SP15", "prctl 1 0", {"EPERM"}},
      {"SP15", "prctl 36 1", {"EPERM"}},
      {"SP15", "prctl 4 1", {"EPERM"}},
      {"SP15", "prctl 0x59616d61 1", {"EPERM"}, "=> EINVAL|ok"},
      {"SP15", "prctl 22 2", {"EPERM"}, "=> EFAULT"},
      {"SP15", "prctl 15 0", {"EFAULT"}, "=> EFAULT"},  // PR_SET_NAME is harmless
      {"SP16", "call sched_setscheduler 0 1 0", {"EPERM"}, "=> EFAULT|EINVAL"},
      {"SP16", "call sched_setattr 0 0 0", {"EPERM"}, "=> EINVAL"},
      {"SP16", "nice -20", {"EACCES", "EPERM"}, "nice 0"},
      {"SP16", "call ioprio_set 1 0 0x2000", {"EPERM"}, "=> EPERM|EINVAL|ok"},
      {"w^x", "map_wx", {"EPERM", "EACCES"}},
      {"w^x", "mprotect_wx", {"EPERM", "EACCES"}},
      {"w^x", "map_rx", {"ok"}},
      {"personality", "call personality 0x0040000", {"EPERM"}},
      {"personality", "call personality 0x400000", {"EPERM"}},  // READ_IMPLIES_EXEC
      {"personality", "call personality 0x123ffffffff", {"ok"}},
      {"personality", "call personality 0xffffffff", {"ok"}},
      {"splice", "call splice 0 0 0 0 0 0", {"EINVAL"}},
      {"splice", "call tee 0 0 0 0", {"EINVAL"}, "=> ok|EINVAL|EBADF"},
      {"splice", "call vmsplice 0 0 0 0", {"EINVAL"}, "=> ok|EINVAL|EBADF"},
      {"shared", "call inotify_init1 0", {"EMFILE"}},
      {"SQ26", "call shmget 0 4096 0x380", {"ENOSYS"}},
      {"SQ26", "call semget 0 1 0x380", {"ENOSYS"}},
      {"SQ26", "call msgget 0 0x380", {"ENOSYS"}},
      {"SQ26", "call mq_open 0 0 0 0", {"ENOSYS"}, "=> EFAULT"},
      {"SX4", "call shmat 0 0 0", {"EPERM", "ENOSYS"}, "=> EINVAL|EIDRM"},
      {"SX4", "call mq_unlink 0", {"EPERM", "ENOSYS"}, "=> EFAULT"},
      {"SQ23", "call prlimit64 1 7 0 0", {"EPERM"}},  // The call changes limits of another process.
      {"limits of one's own", "call prlimit64 0 7 0 0", {"ok"}},
      {"chroot", "call chroot 0", {"EPERM"}, "=> EFAULT"},
  };
  return kRows;
}

const std::vector<DeniedRow>& capability_rows() {
  static const std::vector<DeniedRow> kRows = {
      // Only calls without an effect succeed.
      {"SR2", "set_ids setuid other", {"EPERM"}, "set_ids setuid own"},
      {"SR2", "set_ids setuid -1", {"EPERM", "EINVAL"}, "=> EINVAL"},
      {"SR2", "set_ids setgid other", {"EPERM"}, "set_ids setgid own"},
      {"SR2", "set_ids setgid -1", {"EPERM", "EINVAL"}, "=> EINVAL"},
      {"SR2", "set_ids setreuid other other", {"EPERM"}, "set_ids setreuid own own"},
      {"SR2", "set_ids setreuid own other", {"EPERM"}, "set_ids setreuid own -1"},
      {"SR2", "set_ids setregid other -1", {"EPERM"}, "set_ids setregid -1 own"},
      {"SR2", "set_ids setresuid other other other", {"EPERM"}, "set_ids setresuid own own own"},
      {"SR2", "set_ids setresuid -1 -1 other", {"EPERM"}, "set_ids setresuid -1 -1 own"},
      {"SR2", "set_ids setresuid own other own", {"EPERM"}, "set_ids setresuid own -1 own"},
      {"SR2", "set_ids setresgid other own own", {"EPERM"}, "set_ids setresgid -1 own own"},
      {"SR2", "set_ids setresgid -1 other -1", {"EPERM"}, "set_ids setresgid -1 -1 -1"},
      {"SR2", "set_ids setuid own", {"ok"}},
      {"SR2", "set_ids setuid own+high", {"ok"}},
      {"SR2", "set_ids setgid own", {"ok"}},
      {"SR2", "set_ids setreuid -1 own", {"ok"}},
      {"SR2", "set_ids setregid own own", {"ok"}},
      {"SR2", "set_ids setresuid -1 -1 -1", {"ok"}},
      {"SR2", "set_ids setresuid own own own", {"ok"}},
      {"SR2", "set_ids setresgid own -1 own", {"ok"}},
      {"SR2", "call setgroups 0 0", {"EPERM"}, "=> EPERM|ok"},
      {"SR2", "call setfsuid 0", {"EPERM"}},
      {"SR2", "call setfsgid 0", {"EPERM"}},
      {"SR7", "call capset 0 0", {"EPERM"}, "=> EFAULT"},
      {"SR7", "call setxattr 0 0 0 0 0", {"EOPNOTSUPP"}, "=> EFAULT|EINVAL|ENODATA"},
      {"SQ23", "raise_limit 7", {"EPERM"}, "lower_limit 7 100"},  // NOFILE
      {"SQ23", "raise_limit 8", {"EPERM"}, "lower_limit 8 0"},    // MEMLOCK
      {"SQ23", "raise_limit 1", {"EPERM"}, "lower_limit 1 100"},  // FSIZE
      {"SQ23", "mlockall", {"EPERM", "ENOMEM"}, "=> ok|ENOMEM"},
      {"SQ10", "descriptors", {"EMFILE"}, "fill_pair => EAGAIN"},
  };
  return kRows;
}

}  // namespace mycojobs::test
