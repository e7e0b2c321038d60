// Attempts that make raw system calls, load filters, or create threads.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>

#include "attempt_calls.h"
#include "attempt_table.h"

namespace mycojobs::test {
namespace {

// Readable memory for pointer arguments. Without it, many calls fail with EFAULT before the permission check.
std::array<unsigned long, 64>& get_zero_memory() {
  static std::array<unsigned long, 64> memory{};
  return memory;
}

std::string add_landlock_layers(const Words& words) {
  struct {
    std::uint64_t handled_files, handled_network, scopes;
  } attr{1 << 1, 0, 0};  // LANDLOCK_ACCESS_FS_WRITE_FILE
  std::string last_result = "ok";
  for (unsigned long i = 0; i < parse_number(words, 1) && last_result == "ok"; ++i) {
    const int ruleset = static_cast<int>(::syscall(SYS_landlock_create_ruleset, &attr, 8, 0));
    if (ruleset < 0) return "ruleset: " + get_errno_name();
    last_result = describe_result(::syscall(SYS_landlock_restrict_self, ruleset, 0));
    ::close(ruleset);
  }
  return last_result;
}

std::string load_permissive_filter(const Words& words) {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  sock_filter instructions[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog program{1, instructions};
  return describe_result(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, parse_number(words, 1), &program));
}

// Numbers of the 32-bit kernel interface, in which 20 is getpid and 88 is reboot.
std::string call_32_bit(const Words& words) {
#ifdef __x86_64__
  long result = static_cast<long>(parse_number(words, 1));
  __asm__ volatile("int $0x80" : "+a"(result) : "b"(0), "c"(0), "d"(0) : "memory", "r8", "r9", "r10", "r11");
  return result > 0 ? "ok" : "none";
#else
  return words[0];
#endif
}

void* return_argument(void* value) { return value; }

std::string run_posix_thread(const Words&) {
  pthread_t thread;
  void* returned = nullptr;
  static int marker = 0;
  if (::pthread_create(&thread, nullptr, return_argument, &marker) != 0 || ::pthread_join(thread, &returned) != 0)
    return get_errno_name();
  return returned == &marker ? "ok" : "wrong";
}

std::string call_clone3(const Words& words) {
  std::array<std::uint64_t, 11> args{};
  args[0] = parse_number(words, 1);
  const long pid = ::syscall(SYS_clone3, args.data(), sizeof args);
  if (pid == 0) ::_exit(0);
  return describe_result(pid);
}

// Passes 64-bit arguments: the kernel ignores the upper bits of 32-bit parameters, and a careless filter does not.
std::string call_prctl_full(const Words& words) {
  return describe_result(::syscall(SYS_prctl, parse_number(words, 1), parse_number(words, 2), parse_number(words, 3),
                                   parse_number(words, 4), parse_number(words, 5)));
}

// Makes a system call by name. The argument "@" is the address of memory full of zeros.
std::string call_with_memory(const Words& words) {
  const long call = resolve_call_number(words[1]);
  if (call < 0) return "no such call";
  unsigned long args[6] = {};
  for (std::size_t i = 0; i < 6 && i + 2 < words.size(); ++i) {
    args[i] = words[i + 2] == "@" ? reinterpret_cast<unsigned long>(get_zero_memory().data())
                                  : std::stoul(words[i + 2], nullptr, 0);
  }
  return describe_result(::syscall(call, args[0], args[1], args[2], args[3], args[4], args[5]));
}

}  // namespace

const Attempts& kernel_attempts() {
  static const Attempts kTable = {
      {"call", [](const Words& words) { return call_by_name(words); }},
      {"call_on", call_with_memory},
      {"prctl",
       [](const Words& words) {
         return describe_result(::syscall(SYS_prctl, parse_number(words, 1), parse_number(words, 2), 0, 0, 0));
       }},
      {"prctl_full", call_prctl_full},
      {"ioctl",
       [](const Words& words) {
         return describe_result(::syscall(SYS_ioctl, 0, parse_number(words, 1), get_zero_memory().data()));
       }},
      {"socket_ioctl",
       [](const Words& words) {
         int pair[2];
         if (::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return get_errno_name();
         return describe_result(::syscall(SYS_ioctl, pair[0], parse_number(words, 1), get_zero_memory().data()));
       }},
      {"landlock_layers", add_landlock_layers},
      {"seccomp_allow", load_permissive_filter},
      {"call32", call_32_bit},
      {"pthread", run_posix_thread},
      {"clone3", call_clone3},
  };
  return kTable;
}

}  // namespace mycojobs::test
