#include "sandbox/egress/confinement.h"

#include <fcntl.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <memory>
#include <string>

#include "sandbox/privilege_drop.h"

namespace mycojobs::egress {
namespace {

constexpr rlim_t kMaxDescriptors = 65536;
constexpr rlim_t kMaxAddressSpaceBytes = 2ULL << 30;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // needs terabytes of address space, and tests with a pipe if memory is readable
#else
constexpr bool kSanitized = false;
#endif

constexpr const char* kAllowedCalls[] = {
    "read",        "write",           "readv",      "writev",        "close",        "lseek",          "fcntl",
    "ioctl",       "fstat",           "newfstatat", "stat",          "statx",        "access",         "faccessat",
    "accept4",     "connect",         "bind",       "getsockname",   "getpeername",  "getsockopt",     "setsockopt",
    "shutdown",    "sendto",          "sendmsg",    "recvfrom",      "recvmsg",      "epoll_create1",  "epoll_ctl",
    "epoll_wait",  "epoll_pwait",     "poll",       "ppoll",         "brk",          "munmap",         "mremap",
    "madvise",     "futex",           "getrandom",  "clock_gettime", "gettimeofday", "time",           "uname",
    "getpid",      "gettid",          "tgkill",     "rt_sigreturn",  "rt_sigaction", "rt_sigprocmask", "sigaltstack",
    "sched_yield", "restart_syscall", "exit",       "exit_group",
};

tl::unexpected<Error> make_step_error(const char* step, int error) {
  return fail(Code::io, "egress: " + sandbox::describe_failed_step(step, error));
}

Result<std::size_t> limit_resources() {
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return make_step_error("RLIMIT_NOFILE", errno);
  descriptors.rlim_cur = descriptors.rlim_max = std::min(descriptors.rlim_max, kMaxDescriptors);
  if (::setrlimit(RLIMIT_NOFILE, &descriptors) != 0) return make_step_error("RLIMIT_NOFILE", errno);
  if (!kSanitized) MJ_CHECK(sandbox::limit_resource(RLIMIT_AS, "RLIMIT_AS", kMaxAddressSpaceBytes));
  MJ_CHECK(sandbox::forbid_core_dumps());
  return descriptors.rlim_cur;
}

using Filter = std::unique_ptr<void, decltype(&seccomp_release)>;

Result<void> allow_call(const Filter& filter, const char* name, std::initializer_list<scmp_arg_cmp> tests = {}) {
  const int number = seccomp_syscall_resolve_name(name);
  if (number < 0) return {};  // not on this architecture
  const int code =
      seccomp_rule_add_array(filter.get(), SCMP_ACT_ALLOW, number, static_cast<unsigned>(tests.size()), tests.begin());
  return code == 0 ? Result<void>() : make_step_error(name, -code);
}

Result<void> allow_with_arguments(const Filter& filter) {
  constexpr int kType = ~(SOCK_NONBLOCK | SOCK_CLOEXEC) & 0xffffffff;
  const auto allow_socket = [&](int domain, int type) {
    return allow_call(
        filter, "socket",
        {SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(domain)),
         SCMP_A1(SCMP_CMP_MASKED_EQ, static_cast<std::uint32_t>(kType), static_cast<scmp_datum_t>(type))});
  };
  for (int domain : {AF_INET, AF_INET6}) {
    MJ_CHECK(allow_socket(domain, SOCK_STREAM));
    MJ_CHECK(allow_socket(domain, SOCK_DGRAM));
  }
  MJ_CHECK(allow_socket(AF_NETLINK, SOCK_RAW));
  MJ_CHECK(allow_call(filter, "openat", {SCMP_A2(SCMP_CMP_MASKED_EQ, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY)}));
  MJ_CHECK(allow_call(filter, "mmap", {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)}));
  MJ_CHECK(allow_call(filter, "mprotect", {SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)}));
  return {};
}

Result<void> load_filter() {
  const Filter filter(seccomp_init(SCMP_ACT_ERRNO(EPERM)), &seccomp_release);
  if (!filter) return make_step_error("seccomp_init", ENOMEM);
  if (int code = seccomp_attr_set(filter.get(), SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS); code != 0) {
    return make_step_error("seccomp: other architectures", -code);
  }
  for (const char* name : kAllowedCalls) MJ_CHECK(allow_call(filter, name));
  if (kSanitized) MJ_CHECK(allow_call(filter, "pipe"));
  if (kSanitized) MJ_CHECK(allow_call(filter, "pipe2"));
  MJ_CHECK(allow_with_arguments(filter));
  if (int code = seccomp_load(filter.get()); code != 0) return make_step_error("seccomp_load", -code);
  return {};
}

}  // namespace

Result<std::size_t> drop_privileges() {
  MJ_TRY(descriptors, limit_resources());
  MJ_CHECK(sandbox::empty_bounding_set());
  MJ_CHECK(sandbox::drop_root());
  MJ_CHECK(sandbox::drop_capabilities());
  MJ_CHECK(sandbox::forbid_ptrace_and_new_privileges());
  MJ_CHECK(load_filter());
  return descriptors;
}

}  // namespace mycojobs::egress
