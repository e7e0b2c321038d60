// What init does before it forks the job, as a list that reads from top to bottom.
#include <fcntl.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "sandbox/error_if.h"
#include "sandbox/init_steps.h"

namespace mycojobs::sandbox {
namespace {

// The zygote is pid 1 of the namespace around ours: if it is gone, so are we. The signal is one more string.
int die_with_parent(ChildRun&) { return error_if(::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0); }

// A script host may have handlers, an alarm and blocked signals; they are its own.
int reset_signals(ChildRun&) {
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &usual, nullptr);  // KILL, STOP refuse: fine
  const itimerval off{};
  for (int which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF})
    ::setitimer(static_cast<__itimer_which>(which), &off, nullptr);
  stack_t no_stack{};
  no_stack.ss_flags = SS_DISABLE;
  ::sigaltstack(&no_stack, nullptr);
  ::umask(022);
  // Init hears of its children from a descriptor. All others have no handler, so that the kernel drops for pid 1 what
  // comes from inside; what is blocked would be queued, and count against the user's limit for as long as init lives.
  sigset_t children;
  ::sigemptyset(&children);
  ::sigaddset(&children, SIGCHLD);
  return error_if(::sigprocmask(SIG_SETMASK, &children, nullptr) != 0);
}

int own_session(ChildRun&) { return error_if(::setsid() < 0); }

// First of all that costs memory, so that it is charged to the run. The launcher opened the files and has the right to
// write them; the kernel asks whoever opened, not whoever writes.
int join_cgroups(ChildRun& run) {
  for (int fd : run.cgroups) {
    if (::write(fd, "0", 1) != 1) return errno;
  }
  return 0;
}

int read_own_filter(ChildRun& run) { return run.filter < 0 ? 0 : read_filter(run.filter, run.own_filter); }

// A real close_range, not close-on-exec: a script host never execs.
int arrange_descriptors(ChildRun& run) {
  const int in = ::open("/dev/null", O_RDONLY), out = ::open("/dev/null", O_WRONLY);
  const int sources[] = {in, out, out, run.start, run.status, run.alive};
  const int count = run.alive < 0 ? kAliveFd : kAliveFd + 1;
  int moved[kAliveFd + 1];
  for (int i = 0; i < count; ++i) {
    moved[i] = ::fcntl(sources[i], F_DUPFD, 64);  // away from the targets
    if (moved[i] < 0) return errno;
  }
  for (int i = 0; i < count; ++i) {
    if (::dup3(moved[i], i, i >= kChannelFd ? O_CLOEXEC : 0) < 0) return errno;
  }
  run.status = kStatusFd;
  run.start = kChannelFd;
  if (run.alive >= 0) run.alive = kAliveFd;
  return error_if(::close_range(static_cast<unsigned>(count), ~0U, 0) != 0);
}

// What is shared with the zygote's other jobs is out of their reach but for calls that no profile has: with such a call
// granted it is not shared. Network: grants.cpp.
int own_namespaces(ChildRun& run) {
  const int ipc = run.request.grants.syscalls.empty() ? 0 : CLONE_NEWIPC;
  return error_if(::unshare(CLONE_NEWNS | CLONE_NEWCGROUP | ipc) != 0);
}

int own_keyring(ChildRun&) {
  const long ring = ::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr);
  return ring < 0 && errno != ENOSYS ? errno : 0;  // no keys in this kernel: nothing to separate
}

constexpr std::uint64_t kOfItsUser = 2;  // files, each of less than a page, that count for nobody

int mount_tmpfs(const ChildRun& run, const char* path, const char* mode) {
  const Fork& r = run.request;
  // An inode costs kernel memory that the size does not count: about one a page, and never without end.
  const std::uint64_t inodes = std::clamp<std::uint64_t>(r.limits.tmp_bytes / 4096, 1024, 65536) + kOfItsUser;
  char options[160];
  std::snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=%s,uid=%u,gid=%u",
                static_cast<unsigned long long>(r.limits.tmp_bytes + kOfItsUser * 4096),
                static_cast<unsigned long long>(inodes), mode, r.uid, r.uid);
  const unsigned long flags = MS_NOSUID | MS_NODEV | (r.limits.exec ? 0 : MS_NOEXEC);
  return error_if(::mount("tmpfs", path, "tmpfs", flags, options) != 0);
}

// A file of the slot in front of one of the root's. `own` is covered before a job runs.
int put_before(const char* own, const char* path, const std::string& text) {
  const Fd file(::open(own, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
  if (!file) return errno;
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) return errno;
  if (::mount(own, path, nullptr, MS_BIND, nullptr) != 0) return errno;
  mount_attr attr{};
  attr.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
  return error_if(::mount_setattr(AT_FDCWD, path, 0, &attr, sizeof attr) != 0);
}

// Whoever asks for the job's user by its id, or by its name, finds it; for an ordinary user's agent it is 0.
int name_its_user(std::uint32_t uid) {
  const std::string id = std::to_string(uid);
  const std::string root = uid == 0 ? "" : "root:x:0:0:root:/:/usr/sbin/nologin\n";
  const std::string user = "job:x:" + id + ":" + id + ":job:/job:/bin/sh\n";
  if (int error =
          put_before("/job/passwd", "/etc/passwd", root + user + "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n");
      error != 0)
    return error;
  const std::string groups = (uid == 0 ? "" : "root:x:0:\n") + ("job:x:" + id) + ":\nnogroup:x:65534:\n";
  return put_before("/job/group", "/etc/group", groups);
}

// /tmp and /job share one file system, hence one limit. Its root is covered by one of its own folders, so that nothing
// has to be unmounted. No path here was ever within a job's reach: the root is the zygote's and read-only.
int own_folders(ChildRun& run) {
  if (int error = mount_tmpfs(run, "/job", "700"); error != 0) return error;
  if (int error = name_its_user(run.request.uid); error != 0) return error;
  for (const char* folder : {"/job/tmp", "/job/job"}) {
    if (::mkdir(folder, 0700) != 0 || ::chown(folder, run.request.uid, run.request.uid) != 0) return errno;
  }
  if (::chmod("/job/tmp", 01777) != 0) return errno;
  if (const char* name = run.host->folder; name != nullptr) {
    const std::string folder = std::string("/job/job/") + name;
    if (::mkdir(folder.c_str(), 0755) != 0 || ::chown(folder.c_str(), run.request.uid, run.request.uid) != 0)
      return errno;
  }
  if (::mount("/job/tmp", "/tmp", nullptr, MS_BIND, nullptr) != 0) return errno;
  if (::mount("/job/job", "/job", nullptr, MS_BIND, nullptr) != 0) return errno;
  return mount_tmpfs(run, "/dev/shm", "1777");
}

// Of the new pid namespace, over the zygote's. Older kernels know neither option in a user namespace: then only the
// namespace hides.
int own_proc(ChildRun&) {
  const unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
  if (::mount("proc", "/proc", "proc", flags, "subset=pid,hidepid=invisible") == 0) return 0;
  return error_if(errno != EINVAL || ::mount("proc", "/proc", "proc", flags, "hidepid=2") != 0);
}

int enter_folder(ChildRun&) {
  if (::chdir("/job") != 0) return errno;
  char here[16];
  // A path that does not start at our root comes back as "(unreachable)...": then this is not the folder we mounted.
  return ::getcwd(here, sizeof here) != nullptr && std::strcmp(here, "/job") == 0 ? 0 : ENOTDIR;
}

// RLIMIT_AS stays unset: it counts address space, and interpreters reserve much that they never touch. CORE is 1, not
// 0: with a pipe as core_pattern 0 still starts the helper, 1 does not.
int limit_resources(ChildRun& run) {
  const Limits& l = run.request.limits;
  const std::pair<__rlimit_resource, std::uint64_t> limits[] = {
      {RLIMIT_NOFILE, l.open_files},
      {RLIMIT_FSIZE, l.file_bytes},
      {RLIMIT_CORE, 1},
      {RLIMIT_MEMLOCK, 0},
      {RLIMIT_MSGQUEUE, 0},
      {RLIMIT_SIGPENDING, 1024},
      {RLIMIT_STACK, 8U << 20},
      {RLIMIT_NICE, 0},
      {RLIMIT_RTPRIO, 0},
  };
  for (auto [resource, value] : limits) {
    if (int error = limit_resource(resource, value); error != 0) return error;
  }
  return run.request.memory_rlimit ? limit_resource(RLIMIT_DATA, l.memory_bytes) : 0;
}

constexpr Step kInitSteps[] = {
    {"parent", die_with_parent}, {"signals", reset_signals},   {"session", own_session},
    {"cgroups", join_cgroups},   {"filter", read_own_filter},  {"namespaces", own_namespaces},
    {"network", own_network},    {"grants", mount_grants},     {"descriptors", arrange_descriptors},
    {"keyring", own_keyring},    {"folders", own_folders},     {"proc", own_proc},
    {"cwd", enter_folder},       {"rlimits", limit_resources},
};

}  // namespace

int limit_resource(int resource, std::uint64_t value) {
  const auto which = static_cast<__rlimit_resource>(resource);
  rlimit now{};
  if (::getrlimit(which, &now) != 0) return errno;
  const rlim_t wanted = std::min<rlim_t>(value, now.rlim_max);  // no right is needed to go down
  const rlimit both{wanted, wanted};
  return error_if(::setrlimit(which, &both) != 0);
}

std::span<const Step> init_steps() { return kInitSteps; }

}  // namespace mycojobs::sandbox
