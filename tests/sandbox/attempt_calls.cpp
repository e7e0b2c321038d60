#include "attempt_calls.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>

namespace mycojobs::test {
namespace {

#define CALL(name) \
  { #name, SYS_##name }
const std::map<std::string, long> kCalls = {
    CALL(ptrace),
    CALL(setpriority),
    CALL(sched_setaffinity),
    CALL(sendmsg),
    CALL(sendmmsg),
    CALL(getsockopt),
    CALL(memfd_create),
    CALL(madvise),
    CALL(syncfs),
    CALL(process_vm_readv),
    CALL(process_vm_writev),
    CALL(kcmp),
    CALL(bpf),
    CALL(keyctl),
    CALL(add_key),
    CALL(request_key),
    CALL(unshare),
    CALL(setns),
    CALL(mount),
    CALL(umount2),
    CALL(pivot_root),
    CALL(move_mount),
    CALL(open_tree),
    CALL(fsopen),
    CALL(fsmount),
    CALL(fspick),
    CALL(fsconfig),
    CALL(mount_setattr),
    CALL(chroot),
    CALL(open_by_handle_at),
    CALL(perf_event_open),
    CALL(userfaultfd),
    CALL(fanotify_init),
    CALL(kexec_load),
    CALL(kexec_file_load),
    CALL(init_module),
    CALL(finit_module),
    CALL(delete_module),
    CALL(reboot),
    CALL(swapon),
    CALL(swapoff),
    CALL(acct),
    CALL(pidfd_getfd),
    CALL(process_madvise),
    CALL(clone3),
    CALL(clone),
    CALL(io_uring_setup),
    CALL(seccomp),
    CALL(clock_settime),
    CALL(settimeofday),
    CALL(adjtimex),
    CALL(sethostname),
    CALL(setdomainname),
    CALL(syslog),
    CALL(personality),
    CALL(setuid),
    CALL(setgid),
    CALL(setgroups),
    CALL(setresuid),
    CALL(setresgid),
    CALL(setfsuid),
    CALL(setfsgid),
    CALL(capset),
    CALL(sched_setscheduler),
    CALL(ioprio_set),
    CALL(bind),
    CALL(connect),
    CALL(listen),
    CALL(accept),
    CALL(accept4),
    CALL(sendto),
    CALL(splice),
    CALL(tee),
    CALL(vmsplice),
    CALL(inotify_init1),
    CALL(shmget),
    CALL(semget),
    CALL(msgget),
    CALL(mq_open),
    CALL(prlimit64),
    CALL(ioctl),
    CALL(statx),
    CALL(rseq),
    CALL(membarrier),
    CALL(getrandom),
    CALL(close_range),
    CALL(faccessat2),
    CALL(epoll_pwait2),
    CALL(pipe2),
    CALL(sched_getaffinity),
    CALL(landlock_create_ruleset),
    CALL(quotactl),
    CALL(setxattr),
    CALL(sync),
    CALL(execveat),
    CALL(pidfd_open),
    CALL(memfd_secret),
    CALL(name_to_handle_at),
    CALL(fanotify_mark),
    CALL(set_robust_list),
#ifdef SYS_iopl
    CALL(iopl),
    CALL(ioperm),
    CALL(modify_ldt),
    CALL(lookup_dcookie),
    CALL(uselib),
    CALL(sysfs),
    CALL(ustat),
#endif
};
#undef CALL

}  // namespace

long call_number(const std::string& name) {
  if (!name.empty() && name[0] >= '0' && name[0] <= '9') return std::stol(name, nullptr, 0);
  const auto found = kCalls.find(name);
  return found == kCalls.end() ? -1 : found->second;
}

std::string call_by_name(const std::vector<std::string>& words) {
  const long number = words.size() > 1 ? call_number(words[1]) : -1;
  if (number < 0) return "no such call";
  unsigned long args[6] = {};
  for (std::size_t i = 0; i < 6 && i + 2 < words.size(); ++i) args[i] = std::stoul(words[i + 2], nullptr, 0);
  return ::syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]) >= 0 ? "ok" : ::strerrorname_np(errno);
}

}  // namespace mycojobs::test
