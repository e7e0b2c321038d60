// Rows of the manual's list of attempts that must fail, as tables: attempt -> what must come of it.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "attempts.h"
#include "fixture.h"

namespace mycojobs::test {
namespace {

struct Row {
  const char* row;
  std::string attempt;
  std::vector<std::string> accepted;  // results, as attempt() gives them
};

// All of a table in one job: an attempt that is denied harms no other.
void expect_rows(const std::vector<Row>& rows, bool exec = false) {
  std::string lines;
  for (const auto& row : rows) lines += row.attempt + "\n";
  const Ran ran = exec ? run_with_exec(lines) : run_attempts(lines);
  EXPECT_EQ(word(ran.outcome.status), "ok") << ran.outcome.reason;
  for (const auto& row : rows) {
    const std::string result = ran.answer(row.attempt);
    std::string accepted;
    bool fits = false;
    for (const auto& each : row.accepted) {
      fits = fits || each == result;
      accepted += each + " ";
    }
    EXPECT_TRUE(fits) << row.row << ": " << row.attempt << " -> " << result << ", expected " << accepted;
  }
}

// The twin: outside the sandbox the same attempt gets through.
std::string attempt_outside(const std::string& line) {
  int pipe[2];
  EXPECT_EQ(::pipe(pipe), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const std::string result = attempt(line);
    (void)!::write(pipe[1], result.data(), result.size());
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string result(256, '\0');
  const ssize_t size = ::read(pipe[0], result.data(), result.size());
  result.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  ::close(pipe[0]);
  ::waitpid(pid, nullptr, 0);
  return result;
}

TEST(Denied, SystemIsReadOnly) {
  expect_rows({
      {"SF1", "open_create /x", {"EROFS", "EACCES"}},
      {"SF1", "open_create /etc/x", {"EROFS", "EACCES"}},
      {"SF1", "open_create /usr/x", {"EROFS", "EACCES"}},
      {"SF1", "open_create /bin/x", {"EROFS", "EACCES"}},
      {"SF1", "open_create /lib/x", {"EROFS", "EACCES"}},
      {"SF1", "mkdir /usr/lib/x", {"EROFS", "EACCES"}},
      {"SF1", "unlink /etc/passwd", {"EROFS", "EACCES"}},
      {"SF2", "open_write /etc/hosts", {"EROFS", "EACCES"}},
      {"SF2", "open_write /etc/ssl/openssl.cnf", {"EROFS", "EACCES", "ENOENT"}},
      {"SF7", "rename /etc/passwd /tmp/passwd", {"EROFS", "EXDEV", "EACCES"}},
      {"SF8", "open_truncate /etc/passwd", {"EROFS", "EACCES"}},
      {"SF6", "hardlink /etc/passwd /tmp/link", {"EXDEV", "EACCES", "EPERM", "EROFS"}},
      {"SF17", "open_write /proc/self/exe", {"ETXTBSY", "EACCES", "EROFS"}},
      {"SF10", "mknod /tmp/null 0x2000", {"EPERM"}},
      {"SF10", "mknod /tmp/disk 0x6000", {"EPERM"}},
  });
}

TEST(Denied, HostFilesAreNotThere) {
  char secret[] = "/tmp/mycojobs-secret-XXXXXX";
  const int fd = ::mkstemp(secret);
  ASSERT_GE(fd, 0);
  ::close(fd);
  EXPECT_EQ(attempt_outside("open_read " + std::string(secret)), "ok");
  expect_rows({
      {"SF3", "open_read " + std::string(secret), {"ENOENT"}},
      {"SF3", "open_read /etc/shadow", {"ENOENT", "EACCES"}},
      {"SF3", "open_read /root/.ssh/id_rsa", {"ENOENT", "EACCES"}},
      {"SF3", "list /home", {"ENOENT", "EACCES"}},
      {"SF4", "open_read /tmp/../../.." + std::string(secret), {"ENOENT"}},
      {"SF4", "open_read //job/.././/etc/shadow", {"ENOENT", "EACCES"}},
      {"SF6", "symlink /etc/shadow /tmp/s", {"ok"}},
      {"SF6", "open_read /tmp/s", {"ENOENT", "EACCES"}},
      {"SF13", "open_read /proc/kcore", {"ENOENT", "EACCES"}},
      {"SF13", "open_read /proc/keys", {"ENOENT", "EACCES"}},
      {"SF13", "open_read /proc/timer_list", {"ENOENT", "EACCES"}},
      {"SF13", "open_read /proc/sys/kernel/core_pattern", {"ENOENT", "EACCES"}},
      {"SF13", "list /sys", {"ENOENT", "EACCES"}},
      {"SF14", "open_write /proc/self/oom_score_adj", {"EACCES", "EPERM"}},
      {"SF14", "open_write /proc/self/setgroups", {"EACCES", "EPERM"}},
      {"SF14", "open_write /proc/self/uid_map", {"EACCES", "EPERM"}},
      {"SF16", "open_read /proc/1/root/etc/shadow", {"ENOENT", "EACCES"}},
      {"SF16", "list /proc/self/cwd/../../../root", {"ENOENT", "EACCES"}},
      {"SF30", "list /oldroot", {"ENOENT"}},
      {"SF11", "list /dev", {"fd full null random shm stderr stdin stdout urandom zero"}},
      {"SP5", "open_read /proc/1/mem", {"ENOENT", "EACCES"}},
      {"SK20", "open_read /dev/kmsg", {"ENOENT"}},
      {"SX1", "list /tmp", {"s"}},
      {"SX1", "list /job", {""}},
      {"SF12", "list /dev/shm", {""}},
  });
  ::unlink(secret);
}

TEST(Denied, NothingCanBeExecutedUnlessGranted) {
  EXPECT_EQ(attempt_outside("run /bin/true"), "ok");
  expect_rows({
      {"SF15", "exec_copy /tmp/true", {"EPERM", "EACCES"}},
      {"exec off", "exec /bin/true", {"EPERM"}},
      {"exec off", "fork", {"EPERM"}},
      {"exec off", "run /bin/true", {"EPERM"}},
      {"threads", "thread", {"ok"}},
  });
  EXPECT_EQ(violation_of(run_attempts("exec_memfd")), "execveat");  // SF15
  expect_rows({{"exec on", "run /bin/true", {"ok"}}, {"exec on", "fork", {"ok"}}, {"threads", "thread", {"ok"}}}, true);
}

TEST(Denied, NetworkIsNotThere) {
  EXPECT_EQ(attempt_outside("socket 2 1"), "ok");
  EXPECT_EQ(attempt_outside("socketpair 1 2"), "ok");
  const std::vector<std::string> no = {"EAFNOSUPPORT", "EPERM", "ENETUNREACH"};
  std::vector<Row> rows = {
      {"SN1", "connect_tcp 1.1.1.1 80", no},
      {"SN1", "connect_tcp 169.254.169.254 80", no},
      {"SN2", "connect_tcp 127.0.0.1 6379", no},
      {"SN3", "connect_unix /run/dbus/system_bus_socket", no},
      {"SN6", "socket 2 3", no},  // raw
      {"SN6", "socket 10 3", no},
      {"SN9", "call bind 0 0 0", {"EPERM"}},
      {"SN9", "call listen 0 1", {"EPERM"}},
      {"SN9", "call accept 0 0 0", {"EPERM"}},
      {"SN9", "call connect 0 0 0", {"EPERM"}},
      {"SN9", "call sendto 0 0 0 0 4096 16", {"EPERM"}},
      {"SN10", "ioctl 0x8914", {"EPERM"}},  // SIOCSIFFLAGS
      {"SN14", "call io_uring_setup 1 0", {"ENOSYS"}},
      {"asyncio", "socketpair 1 1", {"ok"}},
      {"asyncio", "socketpair 1 0x80801", {"ok"}},
      {"datagram pair", "socketpair 1 2", {"EPERM"}},
      {"seqpacket pair", "socketpair 1 5", {"EPERM"}},
  };
  for (int family = 0; family < 48; ++family) {  // SN5
    rows.push_back({"SN5", "socket " + std::to_string(family) + " 1", no});
    rows.push_back({"SN5", "socket " + std::to_string(family) + " 2", no});
  }
  expect_rows(rows);
}

TEST(Denied, KernelInterfacesAnswerAsLibcExpects) {
  expect_rows({
      {"SK7", "call seccomp 1 8 0", {"EPERM"}},
      {"SK8", "call seccomp 1 0 0", {"EPERM"}},
      {"SK9", "ioctl 0x5412", {"EPERM"}},  // TIOCSTI
      {"SK9", "ioctl 0x541c", {"EPERM"}},  // TIOCLINUX
      {"SK9", "ioctl 0x5423", {"EPERM"}},  // TIOCSETD
      {"SK9", "ioctl 0x12300005412", {"EPERM"}},
      {"SK13", "call clone3", {"ENOSYS"}},
      // Init has the job's uid: it must not be slowed down, moved, or have its memory merged with others'.
      {"init", "call setpriority 0 1 19", {"EPERM"}},
      {"init", "call setpriority 2 0 19", {"EPERM"}},
      {"init", "call sched_setaffinity 1 8 0", {"EPERM"}},
      {"descriptors", "call close_range 3 4 2", {"EPERM"}},
      {"descriptors", "call sendmsg 3 0 0", {"EPERM"}},
      {"descriptors", "call sendmmsg 3 0 0 0", {"EPERM"}},
      {"descriptors", "call getsockopt 3 1 77", {"EPERM"}},  // SO_PEERPIDFD
      {"memory", "call memfd_create 0 4", {"EPERM"}},        // MFD_HUGETLB
      {"memory", "call madvise 0 0 12", {"EPERM"}},          // MADV_MERGEABLE
      {"disks", "call syncfs 0", {"ok"}},                    // pretended
      {"newer", "call 471", {"ENOSYS"}},
      {"newer", "call 900", {"ENOSYS"}},
      {"SK16", "call clock_settime 0 0", {"EPERM"}},
      {"SK16", "call settimeofday 0 0", {"EPERM"}},
      {"SK16", "call adjtimex 0", {"EPERM"}},
      {"SK16", "call sethostname 0 0", {"EPERM"}},
      {"SK20", "call syslog 3 0 0", {"EPERM"}},
      {"SK14", "call getrandom 0 0 0", {"ok"}},
      {"SK14", "call membarrier 0 0 0", {"ok"}},
      {"SK14", "call close_range 900 901 0", {"ok"}},
      {"SK14", "call statx 0 0 0 0 0", {"EFAULT", "EBADF", "EINVAL"}},
      {"SK14", "call faccessat2 0 0 0 0", {"EFAULT"}},
      {"SK14", "call sched_getaffinity 0 0 0", {"EINVAL"}},
      {"SK15", "call modify_ldt 0 0 0", {"EPERM"}},
      {"SK15", "call uselib 0", {"EPERM"}},
      {"SK15", "call sysfs 3", {"EPERM"}},
      {"SK17", "call landlock_create_ruleset 0 0 1", {"ok"}},
      {"SK19", "prctl 53 1", {"EPERM"}},
      {"SP15", "prctl 1 0", {"EPERM"}},
      {"SP15", "prctl 36 1", {"EPERM"}},
      {"SP15", "prctl 4 1", {"EPERM"}},
      {"SP15", "prctl 0x59616d61 1", {"EPERM"}},
      {"SP15", "prctl 22 2", {"EPERM"}},
      {"SP15", "prctl 15 0", {"EFAULT"}},  // PR_SET_NAME is harmless
      {"SP16", "call sched_setscheduler 0 1 0", {"EPERM"}},
      {"SP16", "call ioprio_set 1 0 0x2000", {"EPERM"}},
      {"w^x", "map_wx", {"EPERM", "EACCES"}},
      {"w^x", "mprotect_wx", {"EPERM", "EACCES"}},
      {"w^x", "map_rx", {"ok"}},
      {"personality", "call personality 0x0040000", {"EPERM"}},
      {"personality", "call personality 0xffffffff", {"ok"}},
      {"splice", "call splice 0 0 0 0 0 0", {"ENOSYS"}},
      {"shared", "call inotify_init1 0", {"EMFILE"}},
      {"SQ26", "call shmget 0 4096 0x380", {"ENOSYS"}},
      {"SQ26", "call mq_open 0 0 0 0", {"ENOSYS"}},
      {"limits of others", "call prlimit64 1 7 0 0", {"EPERM"}},
      {"limits of one's own", "call prlimit64 0 7 0 0", {"ok"}},
      {"chroot", "call chroot 0", {"EPERM"}},
  });
}

TEST(Denied, RightsCannotBeWonBack) {
  expect_rows({
      {"SR2", "call setuid 0", {"EPERM"}},
      {"SR2", "call setgid 0", {"EPERM"}},
      {"SR2", "call setgroups 0 0", {"EPERM"}},
      {"SR2", "call setresuid 0 0 0", {"EPERM"}},
      {"SR2", "call setfsuid 0", {"EPERM"}},
      {"SR7", "call capset 0 0", {"EPERM"}},
      {"SR5", "call setxattr 0 0 0 0 0", {"EOPNOTSUPP"}},
      {"SQ23", "raise_limit 7", {"EPERM"}},  // NOFILE
      {"SQ23", "raise_limit 8", {"EPERM"}},  // MEMLOCK
      {"SQ23", "raise_limit 1", {"EPERM"}},  // FSIZE
      {"SQ23", "mlockall", {"EPERM", "ENOMEM"}},
      {"SQ10", "descriptors", {"EMFILE"}},
  });
}

// SK4, SK5, SK6, SK11, SP4, SP5, SF19, SF20, SR4, SR6, SR9
TEST(Denied, NeverInnocentCallsEndTheJob) {
  const char* const calls[] = {
      "ptrace",
      "process_vm_readv",
      "process_vm_writev",
      "kcmp",
      "bpf",
      "keyctl",
      "add_key",
      "request_key",
      "unshare",
      "setns",
      "mount",
      "umount2",
      "pivot_root",
      "move_mount",
      "open_tree",
      "fsopen",
      "fsmount",
      "fspick",
      "fsconfig",
      "mount_setattr",
      "open_by_handle_at",
      "perf_event_open",
      "userfaultfd",
      "fanotify_init",
      "fanotify_mark",
      "kexec_load",
      "kexec_file_load",
      "init_module",
      "finit_module",
      "delete_module",
      "reboot",
      "swapon",
      "swapoff",
      "acct",
      "pidfd_getfd",
      "process_madvise",
#ifdef __x86_64__
      "iopl",
      "ioperm",
      "lookup_dcookie",
#endif
  };
  for (const char* call : calls) {
    EXPECT_EQ(violation_of(run_attempts(std::string("call ") + call)), call);
  }
}

// SR4
TEST(Denied, CloneOfANamespaceEndsTheJob) {
  for (const char* flag :
       {"0x10000000", "0x00020000", "0x20000000", "0x40000000", "0x02000000", "0x08000000", "0x04000000"}) {
    EXPECT_EQ(violation_of(run_attempts(std::string("call clone ") + flag)), "clone") << flag;
    RunSpec spec = spec_with();
    spec.limits.exec = true;
    EXPECT_EQ(violation_of(run_attempts(shared_sandbox(), spec, std::string("call clone ") + flag)), "clone") << flag;
  }
}

TEST(Denied, TwinsGetThroughOutside) {
  for (const char* line : {"call keyctl 0 0xfffffffd 0", "call unshare 0", "prctl 36 1", "map_wx", "mprotect_wx",
                           "fork", "run /bin/true", "call personality 0xffffffff", "call inotify_init1 0"}) {
    EXPECT_EQ(attempt_outside(line), "ok") << line;
  }
}

}  // namespace
}  // namespace mycojobs::test
