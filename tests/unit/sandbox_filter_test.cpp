// The seccomp program of jobs, as libseccomp compiles it for the architecture of this build: run here by an interpreter
// of its few instructions, so that no kernel and no right is needed. It says the same under qemu-user.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "sandbox/policy.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint32_t kNoAnswer = 0xbad;  // no program says this

bool jumps(std::uint16_t code, std::uint32_t value, std::uint32_t k) {
  switch (BPF_OP(code)) {
    case BPF_JEQ:
      return value == k;
    case BPF_JGT:
      return value > k;
    case BPF_JGE:
      return value >= k;
    case BPF_JSET:
      return (value & k) != 0;
    default:
      ADD_FAILURE() << "a jump that is not known here: " << code;
      return false;
  }
}

std::uint32_t answer(const std::vector<sock_filter>& program, const seccomp_data& data) {
  std::uint32_t value = 0;
  for (std::size_t at = 0; at < program.size(); ++at) {
    const sock_filter& each = program[at];
    if (each.code == (BPF_LD | BPF_W | BPF_ABS)) {
      if (each.k + sizeof value > sizeof data) return kNoAnswer;
      std::memcpy(&value, reinterpret_cast<const char*>(&data) + each.k, sizeof value);
    } else if (each.code == (BPF_ALU | BPF_AND | BPF_K)) {
      value &= each.k;
    } else if (each.code == (BPF_RET | BPF_K)) {
      return each.k;
    } else if (each.code == (BPF_JMP | BPF_JA)) {
      at += each.k;
    } else if (BPF_CLASS(each.code) == BPF_JMP && BPF_SRC(each.code) == BPF_K) {
      at += jumps(each.code, value, each.k) ? each.jt : each.jf;
    } else {
      ADD_FAILURE() << "an instruction that is not known here: " << each.code;
      return kNoAnswer;
    }
  }
  return kNoAnswer;
}

constexpr std::uint32_t refused(int error) { return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error); }

class SandboxFilter : public ::testing::Test {
 protected:
  // libseccomp asks the kernel for the answers that it knows, and qemu-user knows none: this is Linux 5.0.
  static void SetUpTestSuite() { ASSERT_EQ(seccomp_api_set(5), 0); }
  static std::vector<sock_filter> compiled(const FilterRequest& request) {
    auto program = compile_filter(request);
    EXPECT_TRUE(program) << program.error().message;
    return program ? *program : std::vector<sock_filter>{};
  }
  static seccomp_data call(long number, std::initializer_list<std::uint64_t> arguments = {}) {
    seccomp_data data{};
    data.nr = static_cast<int>(number);
    data.arch = seccomp_arch_native();
    std::size_t at = 0;
    for (const std::uint64_t each : arguments) data.args[at++] = each;
    return data;
  }
  std::uint32_t of(long number, std::initializer_list<std::uint64_t> arguments = {}) const {
    return answer(job_, call(number, arguments));
  }

  const std::vector<sock_filter> job_ = compiled({});
  const std::vector<sock_filter> exec_ = compiled({true, false, {}, false});
};

TEST_F(SandboxFilter, AnswersEachCallOfTheTablesAsTheySay) {
  std::size_t here = 0;
  for (const char* name : allowed_calls()) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number < 0) continue;  // not on this architecture
    EXPECT_EQ(of(number), SECCOMP_RET_ALLOW) << name;
    ++here;
  }
  EXPECT_GT(here, 150U);
  here = 0;
  for (const char* name : never_innocent_calls()) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number < 0) continue;
    EXPECT_EQ(of(number), SECCOMP_RET_USER_NOTIF) << name;
    EXPECT_EQ(answer(exec_, call(number)), SECCOMP_RET_USER_NOTIF) << name;
    ++here;
  }
  EXPECT_GT(here, 30U);
  for (const auto& each : refused_calls()) {
    const int number = seccomp_syscall_resolve_name(each.syscall);
    if (number < 0) continue;
    EXPECT_EQ(of(number), refused(each.error)) << each.syscall;
  }
}

// The flags of clone are its first argument here; where they are the second one, the tables would be wrong.
TEST_F(SandboxFilter, CloneIsJudgedByItsFlags) {
  constexpr std::uint64_t kThread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                                    CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  EXPECT_EQ(of(SYS_clone, {kThread}), SECCOMP_RET_ALLOW);
  for (const std::uint64_t space :
       {CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS}) {
    EXPECT_EQ(of(SYS_clone, {space | 17}), SECCOMP_RET_USER_NOTIF) << space;
    EXPECT_EQ(answer(exec_, call(SYS_clone, {space | 17})), SECCOMP_RET_USER_NOTIF) << space;
  }
  // glibc's and musl's vfork.
  EXPECT_EQ(answer(exec_, call(SYS_clone, {CLONE_VM | CLONE_VFORK | 17})), SECCOMP_RET_ALLOW);
  EXPECT_EQ(of(SYS_clone, {CLONE_VM | CLONE_VFORK | 17}), refused(EPERM));
  EXPECT_EQ(of(SYS_clone3), refused(ENOSYS));
}

TEST_F(SandboxFilter, MemoryIsWritableOrExecutable) {
  EXPECT_EQ(of(SYS_mmap, {0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE}), SECCOMP_RET_ALLOW);
  EXPECT_EQ(of(SYS_mmap, {0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE}), SECCOMP_RET_ALLOW);
  EXPECT_EQ(of(SYS_mmap, {0, 4096, PROT_WRITE | PROT_EXEC, MAP_PRIVATE}), refused(EPERM));
  EXPECT_EQ(of(SYS_mmap, {0, 4096, PROT_WRITE, MAP_PRIVATE | MAP_HUGETLB}), refused(EPERM));
  EXPECT_EQ(of(SYS_mprotect, {0, 4096, PROT_WRITE | PROT_EXEC}), refused(EPERM));
}

TEST_F(SandboxFilter, OnlyAPairIsASocket) {
  EXPECT_EQ(of(SYS_socketpair, {AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC}), SECCOMP_RET_ALLOW);
  EXPECT_EQ(of(SYS_socketpair, {AF_UNIX, SOCK_DGRAM}), refused(EPERM));
  EXPECT_EQ(of(SYS_socket, {AF_INET, SOCK_STREAM}), refused(EAFNOSUPPORT));
}

TEST_F(SandboxFilter, NewerNumbersAreMissingAndForeignOnesEndTheProcess) {
  EXPECT_EQ(of(1999), refused(ENOSYS));
  seccomp_data data = call(SYS_getpid);
  data.arch = data.arch == AUDIT_ARCH_X86_64 ? AUDIT_ARCH_AARCH64 : AUDIT_ARCH_X86_64;
  EXPECT_EQ(answer(job_, data), SECCOMP_RET_KILL_PROCESS);
}

}  // namespace
}  // namespace mycojobs::sandbox
