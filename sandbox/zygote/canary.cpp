// Attacks that must fail, tried from inside a canary job before other jobs run.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "sandbox/zygote/child.h"

namespace mycojobs::sandbox {
namespace {

bool can_open(const char* path, int flags) {
  const int fd = ::open(path, flags | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

bool has_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (::syscall(SYS_capget, &header, sets) != 0) return true;
  return (sets[0].effective | sets[0].permitted | sets[0].inheritable | sets[1].effective | sets[1].permitted) != 0 ||
         ::prctl(PR_CAPBSET_READ, CAP_SYS_ADMIN) != 0;
}

struct Attack {
  const char* layer;
  const char* description;
  bool (*try_attack)();  // returns true if the attack succeeded
};

constexpr Attack kAttacks[] = {
    {"mountns", "reads the host's /etc/shadow", [] { return can_open("/etc/shadow", O_RDONLY); }},
    {"mountns", "writes to /usr", [] { return can_open("/usr/mycojobs-canary", O_WRONLY | O_CREAT); }},
    {"mountns", "writes to /", [] { return can_open("/mycojobs-canary", O_WRONLY | O_CREAT); }},
    {"mountns", "reads /proc/sys", [] { return can_open("/proc/sys/kernel/core_pattern", O_RDONLY); }},
    {"pidns", "sees other processes", [] { return ::getppid() != 1 || ::kill(-1, 0) == 0; }},
    {"netns", "opens an internet socket", [] { return ::socket(AF_INET, SOCK_STREAM, 0) >= 0; }},
    {"uid", "becomes another user", [] { return ::syscall(SYS_setresuid, 1, 1, 1) == 0; }},
    {"caps", "holds capabilities", has_capabilities},
    {"nnp", "may gain privileges at exec", [] { return ::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1; }},
    {"dumpable", "is open to ptrace", [] { return ::prctl(PR_GET_DUMPABLE) != 0; }},
    {"seccomp", "forks although fork is denied", [] { return ::fork() >= 0; }},
};

}  // namespace

int run_canary(int out) {
  for (const Attack& attack : kAttacks) {
    if (!attack.try_attack()) continue;
    for (const char* part : {attack.layer, ": a job ", attack.description, "\n"})
      (void)!::write(out, part, std::strlen(part));
  }
  ::syscall(SYS_ptrace, PTRACE_TRACEME, 0, nullptr, nullptr);
  constexpr const char* kAlive = "seccomp: ptrace was not answered by the launcher\n";
  (void)!::write(out, kAlive, std::strlen(kAlive));
  return 1;
}

}  // namespace mycojobs::sandbox
