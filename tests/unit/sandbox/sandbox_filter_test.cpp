// The seccomp program of jobs, as libseccomp compiles it for the architecture of this build. The test interprets its
// few instructions, so it needs neither a kernel nor privileges and gives the same results under qemu-user.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/falloc.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "sandbox/seccomp/filter.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint32_t kNoResult = 0xbad;  // No program returns this value.

bool is_jump_taken(std::uint16_t code, std::uint32_t value, std::uint32_t operand) {
  switch (BPF_OP(code)) {
    case BPF_JEQ:
      return value == operand;
    case BPF_JGT:
      return value > operand;
    case BPF_JGE:
      return value >= operand;
    case BPF_JSET:
      return (value & operand) != 0;
    default:
      ADD_FAILURE() << "unsupported jump: " << code;
      return false;
  }
}

std::uint32_t run_filter(const std::vector<sock_filter>& program, const seccomp_data& data) {
  std::uint32_t value = 0;
  for (std::size_t position = 0; position < program.size(); ++position) {
    const sock_filter& instruction = program[position];
    if (instruction.code == (BPF_LD | BPF_W | BPF_ABS)) {
      if (instruction.k + sizeof value > sizeof data) return kNoResult;
      std::memcpy(&value, reinterpret_cast<const char*>(&data) + instruction.k, sizeof value);
    } else if (instruction.code == (BPF_ALU | BPF_AND | BPF_K)) {
      value &= instruction.k;
    } else if (instruction.code == (BPF_RET | BPF_K)) {
      return instruction.k;
    } else if (instruction.code == (BPF_JMP | BPF_JA)) {
      position += instruction.k;
    } else if (BPF_CLASS(instruction.code) == BPF_JMP && BPF_SRC(instruction.code) == BPF_K) {
      position += is_jump_taken(instruction.code, value, instruction.k) ? instruction.jt : instruction.jf;
    } else {
      ADD_FAILURE() << "unsupported instruction: " << instruction.code;
      return kNoResult;
    }
  }
  return kNoResult;
}

constexpr std::uint32_t make_errno_action(int error) { return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error); }

class SandboxFilter : public ::testing::Test {
 protected:
  // libseccomp queries the kernel for the supported return values, and qemu-user supports none. Level 5 is Linux 5.0.
  static void SetUpTestSuite() { ASSERT_EQ(seccomp_api_set(5), 0); }
  static std::vector<sock_filter> compile(const FilterRequest& request) {
    auto program = compile_filter(request);
    EXPECT_TRUE(program) << program.error().message;
    return program ? *program : std::vector<sock_filter>{};
  }
  static seccomp_data make_call(long number, std::initializer_list<std::uint64_t> arguments = {}) {
    seccomp_data data{};
    data.nr = static_cast<int>(number);
    data.arch = seccomp_arch_native();
    std::size_t index = 0;
    for (const std::uint64_t argument : arguments) data.args[index++] = argument;
    return data;
  }
  std::uint32_t run_call(long number, std::initializer_list<std::uint64_t> arguments = {}) const {
    return run_filter(job_program_, make_call(number, arguments));
  }

  const std::vector<sock_filter> job_program_ = compile({});
  const std::vector<sock_filter> exec_program_ = compile({true, false, {}, false});
};

TEST_F(SandboxFilter, AnswersEachCallAsInTheTables) {
  std::size_t call_count = 0;
  for (const char* name : allowed_calls()) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number < 0) continue;  // The call does not exist on this architecture.
    EXPECT_EQ(run_call(number), SECCOMP_RET_ALLOW) << name;
    ++call_count;
  }
  EXPECT_GT(call_count, 150U);
  call_count = 0;
  for (const char* name : forbidden_calls()) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number < 0) continue;
    EXPECT_EQ(run_call(number), SECCOMP_RET_USER_NOTIF) << name;
    EXPECT_EQ(run_filter(exec_program_, make_call(number)), SECCOMP_RET_USER_NOTIF) << name;
    ++call_count;
  }
  EXPECT_GT(call_count, 30U);
  for (const auto& refused_call : refused_calls()) {
    const int number = seccomp_syscall_resolve_name(refused_call.syscall);
    if (number < 0) continue;
    EXPECT_EQ(run_call(number), make_errno_action(refused_call.error)) << refused_call.syscall;
  }
}

// On this architecture the flags of clone are the first argument. On an architecture where they are the second, the
// tables would be wrong.
TEST_F(SandboxFilter, CloneIsCheckedByItsFlags) {
  constexpr std::uint64_t kThreadFlags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                                         CLONE_SYSVSEM | CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  EXPECT_EQ(run_call(SYS_clone, {kThreadFlags}), SECCOMP_RET_ALLOW);
  for (const std::uint64_t namespace_flag :
       {CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS}) {
    EXPECT_EQ(run_call(SYS_clone, {namespace_flag | 17}), SECCOMP_RET_USER_NOTIF) << namespace_flag;
    EXPECT_EQ(run_filter(exec_program_, make_call(SYS_clone, {namespace_flag | 17})), SECCOMP_RET_USER_NOTIF)
        << namespace_flag;
  }
  // These are the flags of vfork() in glibc and musl.
  EXPECT_EQ(run_filter(exec_program_, make_call(SYS_clone, {CLONE_VM | CLONE_VFORK | 17})), SECCOMP_RET_ALLOW);
  EXPECT_EQ(run_call(SYS_clone, {CLONE_VM | CLONE_VFORK | 17}), make_errno_action(EPERM));
  EXPECT_EQ(run_call(SYS_clone3), make_errno_action(ENOSYS));
}

TEST_F(SandboxFilter, MemoryIsWritableOrExecutable) {
  EXPECT_EQ(run_call(SYS_mmap, {0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE}), SECCOMP_RET_ALLOW);
  EXPECT_EQ(run_call(SYS_mmap, {0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE}), SECCOMP_RET_ALLOW);
  EXPECT_EQ(run_call(SYS_mmap, {0, 4096, PROT_WRITE | PROT_EXEC, MAP_PRIVATE}), make_errno_action(EPERM));
  EXPECT_EQ(run_call(SYS_mmap, {0, 4096, PROT_WRITE, MAP_PRIVATE | MAP_HUGETLB}), make_errno_action(EPERM));
  EXPECT_EQ(run_call(SYS_mprotect, {0, 4096, PROT_WRITE | PROT_EXEC}), make_errno_action(EPERM));
}

// A fault in a range that is being punched waits in the kernel, with the lock of a pipe held if it is part of a write.
TEST_F(SandboxFilter, HolePunchingIsDenied) {
  constexpr std::uint64_t kUpperHalf = 0x123ULL << 32;  // The kernel ignores this half of an int.
  for (const auto& program : {job_program_, exec_program_}) {
    const auto run = [&](long number, std::initializer_list<std::uint64_t> arguments) {
      return run_filter(program, make_call(number, arguments));
    };
    for (const std::uint64_t mode :
         {std::uint64_t{FALLOC_FL_PUNCH_HOLE}, std::uint64_t{FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE},
          FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE | kUpperHalf})
      EXPECT_EQ(run(SYS_fallocate, {3, mode, 0, 4096}), make_errno_action(EOPNOTSUPP)) << mode;
    for (const std::uint64_t mode : {std::uint64_t{0}, std::uint64_t{FALLOC_FL_KEEP_SIZE}, kUpperHalf})
      EXPECT_EQ(run(SYS_fallocate, {3, mode, 0, 4096}), SECCOMP_RET_ALLOW) << mode;
    EXPECT_EQ(run(SYS_madvise, {0, 4096, MADV_REMOVE}), make_errno_action(EOPNOTSUPP));
    EXPECT_EQ(run(SYS_madvise, {0, 4096, MADV_REMOVE | kUpperHalf}), make_errno_action(EOPNOTSUPP));
    EXPECT_EQ(run(SYS_madvise, {0, 4096, MADV_DONTNEED}), SECCOMP_RET_ALLOW);
  }
}

TEST_F(SandboxFilter, OnlySocketPairsAreAllowed) {
  EXPECT_EQ(run_call(SYS_socketpair, {AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC}), SECCOMP_RET_ALLOW);
  EXPECT_EQ(run_call(SYS_socketpair, {AF_UNIX, SOCK_DGRAM}), make_errno_action(EPERM));
  EXPECT_EQ(run_call(SYS_socket, {AF_INET, SOCK_STREAM}), make_errno_action(EAFNOSUPPORT));
}

TEST_F(SandboxFilter, NewCallsAreMissingAndForeignCallsKill) {
  EXPECT_EQ(run_call(1999), make_errno_action(ENOSYS));
  seccomp_data data = make_call(SYS_getpid);
  data.arch = data.arch == AUDIT_ARCH_X86_64 ? AUDIT_ARCH_AARCH64 : AUDIT_ARCH_X86_64;
  EXPECT_EQ(run_filter(job_program_, data), SECCOMP_RET_KILL_PROCESS);
}

// Tests the filters of all kinds of jobs after set_own_id().
class JobIdFilter : public SandboxFilter {
 protected:
  static constexpr std::uint32_t kOwnId = 1007, kOtherId = 1008;
  static constexpr std::uint64_t kMinusOne = 0xffffffff;
  static constexpr std::uint64_t kUpperHalf = 0x123ULL << 32;  // The kernel ignores this half of an int.

  struct Case {
    std::vector<sock_filter> program;
    std::uint32_t refusal;
  };
  static std::vector<Case> list_cases() {
    FilterRequest exec, sockets, learning;
    exec.exec = true;
    sockets.sockets = true;
    learning.learn = true;
    std::vector<Case> cases;
    for (const FilterRequest& request : {FilterRequest{}, exec, sockets, learning}) {
      cases.push_back({compile(request), request.learn ? SECCOMP_RET_USER_NOTIF : make_errno_action(EPERM)});
      set_own_id(cases.back().program, kOwnId);
    }
    return cases;
  }
};

TEST_F(JobIdFilter, IdsCanBeSetOnlyIfNothingChanges) {
  const std::pair<long, unsigned> calls[] = {{SYS_setuid, 1},   {SYS_setgid, 1},    {SYS_setreuid, 2},
                                             {SYS_setregid, 2}, {SYS_setresuid, 3}, {SYS_setresgid, 3}};
  const std::uint64_t ids[] = {kOwnId, kMinusOne, kOtherId, 0, kOwnId | kUpperHalf, kOtherId | kUpperHalf, 65534};
  for (const Case& filter_case : list_cases()) {
    for (const auto& [number, count] : calls) {
      for (std::size_t combination = 0; combination < 7 * 7 * 7; ++combination) {
        const std::uint64_t arguments[] = {ids[combination % 7], ids[combination / 7 % 7], ids[combination / 49]};
        const bool is_unchanged =
            std::all_of(arguments, arguments + count, [&, has_several_ids = count > 1](std::uint64_t id) {
              const auto low_half = static_cast<std::uint32_t>(id);
              return low_half == kOwnId || (has_several_ids && low_half == kMinusOne);
            });
        ASSERT_EQ(run_filter(filter_case.program, make_call(number, {arguments[0], arguments[1], arguments[2]})),
                  is_unchanged ? make_errno_action(0) : filter_case.refusal)
            << number << ": " << arguments[0] << " " << arguments[1] << " " << arguments[2];
      }
    }
  }
}

// A filter without the id of its job refuses every id.
TEST_F(JobIdFilter, WithoutOwnIdEveryIdIsRejected) {
  for (const std::uint64_t id : {std::uint64_t{0}, std::uint64_t{kOwnId}, kMinusOne})
    EXPECT_EQ(run_call(SYS_setuid, {id}), make_errno_action(EPERM)) << id;
}

// The placeholder is compared with ids alone, so setting the id changes the answer to no other call.
TEST_F(JobIdFilter, OwnIdReplacesOnlyComparisonsOfIds) {
  std::vector<sock_filter> with_id = job_program_;
  set_own_id(with_id, kOwnId);
  std::size_t changed_count = 0;
  for (std::size_t i = 0; i < job_program_.size(); ++i) {
    EXPECT_TRUE(job_program_[i].code == with_id[i].code && job_program_[i].jt == with_id[i].jt &&
                job_program_[i].jf == with_id[i].jf)
        << i;
    if (job_program_[i].k == with_id[i].k) continue;
    EXPECT_EQ(job_program_[i].code, BPF_JMP | BPF_JEQ | BPF_K) << i;
    ++changed_count;
  }
  EXPECT_GE(changed_count, 1U + 3U + 7U) << "of setuid, setreuid and setresuid; libseccomp may share those of groups";
}

TEST_F(JobIdFilter, CoreLimitPretendsSuccessWithoutOldLimit) {
  constexpr std::uint64_t kPointer = 0x7fff00001000;
  for (const Case& filter_case : list_cases()) {
    const auto run = [&](long number, std::initializer_list<std::uint64_t> arguments) {
      return run_filter(filter_case.program, make_call(number, arguments));
    };
    EXPECT_EQ(run(SYS_setrlimit, {RLIMIT_CORE, kPointer}), make_errno_action(0));
    EXPECT_EQ(run(SYS_setrlimit, {RLIMIT_CORE | kUpperHalf, kPointer}), make_errno_action(0));
    EXPECT_EQ(run(SYS_prlimit64, {0, RLIMIT_CORE, kPointer, 0}), make_errno_action(0));
    EXPECT_EQ(run(SYS_prlimit64, {kUpperHalf, RLIMIT_CORE | kUpperHalf, kPointer, 0}), make_errno_action(0));
    // A buffer for the old limit or another process is refused.
    EXPECT_EQ(run(SYS_prlimit64, {0, RLIMIT_CORE, kPointer, kPointer}), filter_case.refusal);
    EXPECT_EQ(run(SYS_prlimit64, {0, RLIMIT_CORE, kPointer, kUpperHalf}), filter_case.refusal);
    EXPECT_EQ(run(SYS_prlimit64, {1, RLIMIT_CORE, kPointer, 0}), filter_case.refusal);
    EXPECT_EQ(run(SYS_prlimit64, {1, RLIMIT_CORE, 0, kPointer}), filter_case.refusal);
    // Queries are allowed, and other limits have rules of their own.
    EXPECT_EQ(run(SYS_prlimit64, {0, RLIMIT_CORE, 0, kPointer}), SECCOMP_RET_ALLOW);
    EXPECT_EQ(run(SYS_prlimit64, {0, RLIMIT_NOFILE, kPointer, kPointer}), SECCOMP_RET_ALLOW);
    EXPECT_EQ(run(SYS_prlimit64, {1, RLIMIT_NOFILE, kPointer, 0}), filter_case.refusal);
    for (const std::uint64_t other_resource :
         {__RLIMIT_MSGQUEUE, __RLIMIT_NICE, __RLIMIT_RTPRIO, __RLIMIT_SIGPENDING}) {
      EXPECT_EQ(run(SYS_prlimit64, {0, other_resource, kPointer, 0}), filter_case.refusal) << other_resource;
      EXPECT_EQ(run(SYS_setrlimit, {other_resource, kPointer}), filter_case.refusal) << other_resource;
    }
  }
}

// After EINVAL, grep, cat and cp copy with read and write; after ENOSYS, grep fails.
TEST_F(SandboxFilter, SpliceFamilyAnswersAsForUnsupportedFiles) {
  for (const long number : {SYS_splice, SYS_tee, SYS_vmsplice, SYS_sendfile})
    EXPECT_EQ(run_call(number), make_errno_action(EINVAL)) << number;
}

// In learning mode the refusals that depend on arguments still apply and are not recorded, since no call is missing.
TEST_F(SandboxFilter, LearningKeepsRefusalsThatDependOnArguments) {
  FilterRequest learning;
  learning.learn = true;
  const auto program = compile(learning);
  constexpr std::uint64_t kFiClone = 0x40049409;
  EXPECT_EQ(run_filter(program, make_call(SYS_ioctl, {3, kFiClone})), make_errno_action(EOPNOTSUPP));
  EXPECT_EQ(run_filter(program, make_call(SYS_socket, {AF_INET, SOCK_STREAM, 0})), SECCOMP_RET_USER_NOTIF);
  EXPECT_EQ(run_filter(program, make_call(SYS_execveat, {3, 0, 0, 0, 0x1000})), SECCOMP_RET_USER_NOTIF);
}

}  // namespace
}  // namespace mycojobs::sandbox
