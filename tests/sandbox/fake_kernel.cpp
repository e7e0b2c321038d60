#include "fake_kernel.h"

#include <elf.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <fstream>

#include "sandbox/attempts/attempt_calls.h"

namespace mycojobs::test {
namespace {

struct NumberedFault {
  long number;
  Fault fault;
};

std::string read_traced_string(pid_t pid, std::uint64_t address) {
  std::string text;
  while (text.size() < PATH_MAX) {
    errno = 0;
    const long word = ::ptrace(PTRACE_PEEKDATA, pid, address + text.size(), nullptr);
    if (errno != 0) break;
    for (std::size_t i = 0; i < sizeof word; ++i) {
      const char c = reinterpret_cast<const char*>(&word)[i];
      if (c == '\0') return text;
      text += c;
    }
  }
  return text;
}

std::string read_descriptor_path(pid_t pid, std::uint64_t descriptor) {
  char target[PATH_MAX];
  const std::string link = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(static_cast<int>(descriptor));
  const ssize_t size = ::readlink(link.c_str(), target, sizeof target);
  return size < 0 ? "" : std::string(target, static_cast<std::size_t>(size));
}

// Returns whether the process is the init of its pid namespace: the last number of "NSpid: 3412 57 1" is 1.
bool is_init(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("NSpid:", 0) == 0) return line.ends_with("\t1");
  }
  return false;
}

bool matches_fault(const NumberedFault& numbered_fault, pid_t pid, const __ptrace_syscall_info& info) {
  const Fault& fault = numbered_fault.fault;
  if (numbered_fault.number != static_cast<long>(info.seccomp.nr)) return false;
  if ((info.seccomp.args[fault.argument] & fault.mask) != fault.value) return false;
  if (fault.path.empty()) return true;
  const std::string path = fault.path_argument >= 0
                               ? read_traced_string(pid, info.seccomp.args[fault.path_argument])
                               : read_descriptor_path(pid, info.seccomp.args[fault.descriptor_argument]);
  return path.find(fault.path) != std::string::npos;
}

// Skips the system call and returns `value` to the caller.
void skip_call(pid_t pid, long value) {
  user_regs_struct registers{};
  iovec registers_buffer{&registers, sizeof registers};
  ::ptrace(PTRACE_GETREGSET, pid, NT_PRSTATUS, &registers_buffer);
#ifdef __x86_64__
  registers.orig_rax = ~0ULL;
  registers.rax = static_cast<unsigned long long>(value);
#else
  int invalid_number = -1;
  iovec number{&invalid_number, sizeof invalid_number};
  ::ptrace(PTRACE_SETREGSET, pid, NT_ARM_SYSTEM_CALL, &number);
  registers.regs[0] = static_cast<unsigned long long>(value);
#endif
  ::ptrace(PTRACE_SETREGSET, pid, NT_PRSTATUS, &registers_buffer);
}

void inject_faults(const std::vector<NumberedFault>& faults) {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, __WALL)) > 0 || errno == EINTR;) {
    if (pid < 0 || !WIFSTOPPED(status)) continue;
    const int event = status >> 16;
    int signal = 0;
    if (event == PTRACE_EVENT_SECCOMP) {
      __ptrace_syscall_info info{};
      ::ptrace(static_cast<__ptrace_request>(PTRACE_GET_SYSCALL_INFO), pid, sizeof info, &info);
      const auto matching_fault = std::find_if(faults.begin(), faults.end(),
                                               [&](const auto& fault) { return matches_fault(fault, pid, info); });
      if (matching_fault != faults.end()) skip_call(pid, matching_fault->fault.result);
    } else if (event == PTRACE_EVENT_STOP && WSTOPSIG(status) != SIGTRAP) {
      ::ptrace(PTRACE_LISTEN, pid, nullptr, nullptr);
      continue;
    } else if (event == 0) {
      signal = WSTOPSIG(status);
      if (signal == SIGSTOP && is_init(pid)) signal = 0;  // Without tracing, init would not receive this signal.
    }
    ::ptrace(PTRACE_CONT, pid, nullptr, signal);
  }
}

bool load_trap_filter(const std::vector<NumberedFault>& faults) {
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const auto& fault : faults) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(fault.number), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog raw{static_cast<unsigned short>(program.size()), program.data()};
  if (::geteuid() != 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  return ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &raw) == 0;
}

}  // namespace

std::string run_with_faults(const std::vector<Fault>& faults, const std::function<std::string()>& body) {
  std::vector<NumberedFault> numbered_faults;
  for (const auto& fault : faults) numbered_faults.push_back({resolve_call_number(fault.call_name), fault});
  int result_pipe[2], start_pipe[2];
  if (::pipe(result_pipe) != 0 || ::pipe(start_pipe) != 0) return "cannot create pipes";
  const pid_t supervisor = ::fork();
  if (supervisor == 0) {
    ::close(result_pipe[0]);
    const pid_t traced = ::fork();
    if (traced == 0) {
      char byte = 0;
      ::close(start_pipe[1]);
      (void)!::read(start_pipe[0], &byte, 1);
      ::close(start_pipe[0]);
      [&]() noexcept {  // An exception must not leave the child.
        const std::string result = load_trap_filter(numbered_faults) ? body() : "cannot load the traps";
        (void)!::write(result_pipe[1], result.data(), result.size());
      }();
      ::_exit(0);
    }
    ::close(result_pipe[1]);
    constexpr long kOptions =
        PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
    if (::ptrace(PTRACE_SEIZE, traced, nullptr, kOptions) != 0) ::_exit(1);
    ::close(start_pipe[1]);
    inject_faults(numbered_faults);
    ::_exit(0);
  }
  for (int fd : {result_pipe[1], start_pipe[0], start_pipe[1]}) ::close(fd);
  std::string result;
  char buffer[4096];
  for (ssize_t size = 0; (size = ::read(result_pipe[0], buffer, sizeof buffer)) > 0;)
    result.append(buffer, static_cast<std::size_t>(size));
  ::close(result_pipe[0]);
  ::waitpid(supervisor, nullptr, 0);
  return result;
}

}  // namespace mycojobs::test
