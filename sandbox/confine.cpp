// How init gives up its rights for itself and all its jobs, and what a job gives up on top. The order is the point;
// each step says why it is where it is.
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "sandbox/error_if.h"
#include "sandbox/init_steps.h"

namespace mycojobs::sandbox {
namespace {

// The launcher, its zygotes and inits rank higher, so that a job that takes every CPU cannot keep them from ending it.
// A job has the rank that the agent was started with: down to it takes no right.
int ordinary_rank(ChildRun& run) { return error_if(::setpriority(PRIO_PROCESS, 0, run.rank) != 0); }

// The host may have to mend its state after the fork (Python: its locks and its ids).
int tell_host(ChildRun& run) {
  if (run.host->after_fork_job != nullptr) run.host->after_fork_job();
  return 0;
}

int unblock_signals(ChildRun&) {
  sigset_t none;
  ::sigemptyset(&none);
  return error_if(::sigprocmask(SIG_SETMASK, &none, nullptr) != 0);
}

// Securebits, bounding set, groups, gid, uid, ambient set, capabilities: each needs a right that a later one takes.
int give_up_rights(ChildRun& run) {
  const unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
                             SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
                             SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
  if (::prctl(PR_SET_SECUREBITS, bits) != 0) return errno;
  for (unsigned long cap = 0;; ++cap) {
    const int present = ::prctl(PR_CAPBSET_READ, cap);
    if (present < 0) break;
    if (present == 1 && ::prctl(PR_CAPBSET_DROP, cap) != 0) return errno;
  }
  const gid_t id = run.request.uid;
  // With a single id mapped the kernel forbids setgroups; what could not be dropped is told by the layers.
  if (run.request.own_uid && ::syscall(SYS_setgroups, 0, nullptr) != 0) return errno;
  if (::syscall(SYS_setresgid, id, id, id) != 0) return errno;
  if (::syscall(SYS_setresuid, id, id, id) != 0) return errno;
  if (::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0) return errno;
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  return error_if(::syscall(SYS_capset, &header, none) != 0);
}

// After the ids: it counts by uid, here and init. Where jobs share a uid it bounds them together. One above the limit
// of the group, which counts what it refuses.
int limit_processes(ChildRun& run) {
  return limit_resource(RLIMIT_NPROC, run.request.own_uid ? run.request.limits.pids + 2 : 4096);
}

// A credential change clears it, so once more. The zygote is outside of our namespace, and pid 1 of one around it; a
// job needs no such signal, since init is pid 1.
int die_with_zygote(ChildRun&) { return error_if(::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0); }

// No ptrace, no core, /proc/self not ours. Lost again at exec, where the filter and the namespace remain.
int hide_memory(ChildRun&) { return error_if(::prctl(PR_SET_DUMPABLE, 0) != 0); }

// Against reading a sibling's memory by speculation; for good, so that a job cannot take it back. Some processors need
// none of it, and some do not let a process choose.
int mitigate_speculation(ChildRun&) {
  for (const int what : {PR_SPEC_STORE_BYPASS, PR_SPEC_INDIRECT_BRANCH}) {
    const int state = ::prctl(PR_GET_SPECULATION_CTRL, what, 0, 0, 0);
    if (state < 0 || (state & PR_SPEC_PRCTL) == 0 || (state & PR_SPEC_FORCE_DISABLE) != 0) continue;
    if (::prctl(PR_SET_SPECULATION_CTRL, what, PR_SPEC_FORCE_DISABLE, 0, 0) != 0) return errno;
  }
  return 0;
}

int no_new_privileges(ChildRun&) { return error_if(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0); }

// After the mounts, since it forbids mounting.
int landlock(ChildRun& run) {
  run.landlock_abi = landlock_abi();
  if (run.landlock_abi == 0) return 0;
  const int domain = make_job_domain(run.landlock_abi);
  if (domain < 0) return -domain;
  run.job_domain.reset(domain);
  return restrict_with_landlock(run.landlock_abi, run.request.limits.exec, run.request.grants);
}

// A listener and the filter that reports to it, for init and for every job below: there is only one in a tree of
// filters.
int load_filter_with_listener(const std::vector<sock_filter>& program) {
  const sock_fprog raw{static_cast<unsigned short>(program.size()), const_cast<sock_filter*>(program.data())};
  // WAIT_KILLABLE_RECV: once it is reported, a signal that the caller has sent itself does not take the call back.
  unsigned flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
  long fd = ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw);
  if (fd < 0 && errno == EINVAL) {  // older than 5.19
    flags = SECCOMP_FILTER_FLAG_NEW_LISTENER;
    fd = ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw);
  }
  return fd < 0 ? -errno : static_cast<int>(fd);
}

// To measure the other layers only: it refuses nothing.
const std::vector<sock_filter>& no_filter() {
  static const std::vector<sock_filter> kProgram{BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  return kProgram;
}

const std::vector<sock_filter>& filter_of(const ChildRun& run) {
  if (left_out(run.leave_out, "seccomp")) return no_filter();
  if (!run.own_filter.empty()) return run.own_filter;
  return (*run.filters)[run.request.limits.exec ? FilterKind::job_exec : FilterKind::job];
}

int own_domain(ChildRun& run) {
  return error_if(run.job_domain && ::syscall(SYS_landlock_restrict_self, run.job_domain.get(), 0) != 0);
}

// What the filter leaves to init, a job gives up: more filters, and processes if it may have none. A run that learns
// has its forks noted by the first filter.
int last_filter(ChildRun& run) {
  if (left_out(run.leave_out, "seccomp")) return 0;
  const Fork& request = run.request;
  const bool sockets = request.grants.network != Network::none || !request.grants.syscalls.empty();
  const auto& program = (*run.filters)[last_kind(request.limits.exec || request.learn, sockets)];
  const sock_fprog raw{static_cast<unsigned short>(program.size()), const_cast<sock_filter*>(program.data())};
  return error_if(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw) != 0);
}

constexpr Step kConfineSteps[] = {
    {"rights", give_up_rights}, {"parent_again", die_with_zygote},
    {"dumpable", hide_memory},  {"no_new_privs", no_new_privileges},
    {"landlock", landlock},     {"speculation", mitigate_speculation},
};

constexpr Step kJobSteps[] = {
    {"rank", ordinary_rank},    {"host", tell_host},    {"unblock", unblock_signals},
    {"nproc", limit_processes}, {"domain", own_domain}, {"last_filter", last_filter},
};

// All rights are given up by now: a child that waits in the pool is no more than a job that sleeps. What it receives
// becomes its stdout, stderr and channel, and the socket that they came on is gone.
void wait_for_start(ChildRun& run) {
  RawFrame frame;
  Start start;
  if (receive_raw(run.start, frame) != Received::frame || !decode(frame, start) || frame.fds.size() != 3) ::_exit(1);
  for (int target = 1; target <= kChannelFd; ++target) {
    const int source = frame.fds[static_cast<std::size_t>(target - 1)].get();
    if (::dup3(source, target, target == kChannelFd ? O_CLOEXEC : 0) < 0) ::_exit(1);
  }
}

}  // namespace

std::span<const Step> confine_steps() { return kConfineSteps; }

// Last: from here on only what a job needs is allowed, and what init needs to fork one. Sending the listener away and
// closing it is part of that.
int load_first_filter(ChildRun& run) {
  const std::uint64_t before = monotonic_us();
  const Fd listener(load_filter_with_listener(filter_of(run)));
  if (listener.get() < 0) return -listener.get();
  if (run.fail_step == "seccomp") return EIO;
  Confined confined{run.landlock_abi, std::move(run.times)};
  confined.setup.push_back({"seccomp", static_cast<std::uint32_t>(monotonic_us() - before)});
  return send_message(run.status, confined, {listener.get()});
}

void run_job(ChildRun& run) {
  ::prctl(PR_SET_NAME, run.host->name);
  take_steps(run, kJobSteps, nullptr);
  ::close_range(kStatusFd, ~0U, 0);  // init's: its status, its clock, the lock that says that a job lives
  // Its own, since locks and flags belong to an open file, and would outlive the job in init's.
  ::close(STDIN_FILENO);
  if (::open("/dev/null", O_RDONLY) != STDIN_FILENO) ::_exit(1);
  wait_for_start(run);
  const int code = run.request.canary ? run_canary(kChannelFd) : run.host->run(kChannelFd);
  std::fflush(nullptr);
  ::_exit(code & 0xff);
}

}  // namespace mycojobs::sandbox
