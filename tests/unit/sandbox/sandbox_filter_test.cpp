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

constexpr std::uint32_t kNoAnswer = 0xbad;  // no program returns this value

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
  // libseccomp queries the kernel for the supported return values, and qemu-user supports none. Level 5 is Linux 5.0.
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

TEST_F(SandboxFilter, AnswersEachCallAsInTheTables) {
  std::size_t here = 0;
  for (const char* name : allowed_calls()) {
    const int number = seccomp_syscall_resolve_name(name);
    if (number < 0) continue;  // not on this architecture
    EXPECT_EQ(of(number), SECCOMP_RET_ALLOW) << name;
    ++here;
  }
  EXPECT_GT(here, 150U);
  here = 0;
  for (const char* name : forbidden_calls()) {
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

// On this architecture the flags of clone are the first argument. On an architecture where they are the second, the
// tables would be wrong.
TEST_F(SandboxFilter, CloneIsCheckedByItsFlags) {
  constexpr std::uint64_t kThread = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                                    CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  EXPECT_EQ(of(SYS_clone, {kThread}), SECCOMP_RET_ALLOW);
  for (const std::uint64_t space :
       {CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS}) {
    EXPECT_EQ(of(SYS_clone, {space | 17}), SECCOMP_RET_USER_NOTIF) << space;
    EXPECT_EQ(answer(exec_, call(SYS_clone, {space | 17})), SECCOMP_RET_USER_NOTIF) << space;
  }
  // vfork of glibc and musl.
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

// A fault in a range that is being punched waits in the kernel, with the lock of a pipe held if it is part of a write.
TEST_F(SandboxFilter, HolePunchingIsDenied) {
  constexpr std::uint64_t kUpperHalf = 0x123ULL << 32;  // which the kernel ignores in an int
  for (const auto& program : {job_, exec_}) {
    const auto is = [&](long number, std::initializer_list<std::uint64_t> arguments) {
      return answer(program, call(number, arguments));
    };
    for (const std::uint64_t mode :
         {std::uint64_t{FALLOC_FL_PUNCH_HOLE}, std::uint64_t{FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE},
          FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE | kUpperHalf})
      EXPECT_EQ(is(SYS_fallocate, {3, mode, 0, 4096}), refused(EOPNOTSUPP)) << mode;
    for (const std::uint64_t mode : {std::uint64_t{0}, std::uint64_t{FALLOC_FL_KEEP_SIZE}, kUpperHalf})
      EXPECT_EQ(is(SYS_fallocate, {3, mode, 0, 4096}), SECCOMP_RET_ALLOW) << mode;
    EXPECT_EQ(is(SYS_madvise, {0, 4096, MADV_REMOVE}), refused(EOPNOTSUPP));
    EXPECT_EQ(is(SYS_madvise, {0, 4096, MADV_REMOVE | kUpperHalf}), refused(EOPNOTSUPP));
    EXPECT_EQ(is(SYS_madvise, {0, 4096, MADV_DONTNEED}), SECCOMP_RET_ALLOW);
  }
}

TEST_F(SandboxFilter, OnlySocketPairsAreAllowed) {
  EXPECT_EQ(of(SYS_socketpair, {AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC}), SECCOMP_RET_ALLOW);
  EXPECT_EQ(of(SYS_socketpair, {AF_UNIX, SOCK_DGRAM}), refused(EPERM));
  EXPECT_EQ(of(SYS_socket, {AF_INET, SOCK_STREAM}), refused(EAFNOSUPPORT));
}

TEST_F(SandboxFilter, NewCallsAreMissingAndForeignCallsKill) {
  EXPECT_EQ(of(1999), refused(ENOSYS));
  seccomp_data data = call(SYS_getpid);
  data.arch = data.arch == AUDIT_ARCH_X86_64 ? AUDIT_ARCH_AARCH64 : AUDIT_ARCH_X86_64;
  EXPECT_EQ(answer(job_, data), SECCOMP_RET_KILL_PROCESS);
}

// The filters for each kind of rights, after the id of the job was set.
class JobIdFilter : public SandboxFilter {
 protected:
  static constexpr std::uint32_t kOwn = 1007, kOther = 1008;
  static constexpr std::uint64_t kMinusOne = 0xffffffff;
  static constexpr std::uint64_t kUpperHalf = 0x123ULL << 32;  // the kernel ignores this half of an int

  struct Case {
    std::vector<sock_filter> program;
    std::uint32_t refusal;
  };
  static std::vector<Case> cases() {
    FilterRequest exec, sockets, learning;
    exec.exec = true;
    sockets.sockets = true;
    learning.learn = true;
    std::vector<Case> all;
    for (const FilterRequest& request : {FilterRequest{}, exec, sockets, learning}) {
      all.push_back({compiled(request), request.learn ? SECCOMP_RET_USER_NOTIF : refused(EPERM)});
      set_own_id(all.back().program, kOwn);
    }
    return all;
  }
};

TEST_F(JobIdFilter, IdsCanBeSetOnlyIfNothingChanges) {
  const std::pair<long, unsigned> calls[] = {{SYS_setuid, 1},   {SYS_setgid, 1},    {SYS_setreuid, 2},
                                             {SYS_setregid, 2}, {SYS_setresuid, 3}, {SYS_setresgid, 3}};
  const std::uint64_t ids[] = {kOwn, kMinusOne, kOther, 0, kOwn | kUpperHalf, kOther | kUpperHalf, 65534};
  for (const Case& each : cases()) {
    for (const auto& [number, count] : calls) {
      for (std::size_t combination = 0; combination < 7 * 7 * 7; ++combination) {
        const std::uint64_t arguments[] = {ids[combination % 7], ids[combination / 7 % 7], ids[combination / 49]};
        const bool unchanged = std::all_of(arguments, arguments + count, [&, several = count > 1](std::uint64_t id) {
          const auto low = static_cast<std::uint32_t>(id);
          return low == kOwn || (several && low == kMinusOne);
        });
        ASSERT_EQ(answer(each.program, call(number, {arguments[0], arguments[1], arguments[2]})),
                  unchanged ? refused(0) : each.refusal)
            << number << ": " << arguments[0] << " " << arguments[1] << " " << arguments[2];
      }
    }
  }
}

// A filter without the id of its job refuses every id.
TEST_F(JobIdFilter, WithoutOwnIdEveryIdIsRejected) {
  for (const std::uint64_t id : {std::uint64_t{0}, std::uint64_t{kOwn}, kMinusOne})
    EXPECT_EQ(of(SYS_setuid, {id}), refused(EPERM)) << id;
}

// The placeholder is compared with ids alone, so setting the id changes the answer to no other call.
TEST_F(JobIdFilter, OwnIdReplacesOnlyComparisonsOfIds) {
  std::vector<sock_filter> with_id = job_;
  set_own_id(with_id, kOwn);
  std::size_t changed = 0;
  for (std::size_t i = 0; i < job_.size(); ++i) {
    EXPECT_TRUE(job_[i].code == with_id[i].code && job_[i].jt == with_id[i].jt && job_[i].jf == with_id[i].jf) << i;
    if (job_[i].k == with_id[i].k) continue;
    EXPECT_EQ(job_[i].code, BPF_JMP | BPF_JEQ | BPF_K) << i;
    ++changed;
  }
  EXPECT_GE(changed, 1U + 3U + 7U) << "of setuid, setreuid and setresuid; libseccomp may share those of groups";
}

TEST_F(JobIdFilter, CoreLimitPretendsSuccessWithoutOldLimit) {
  constexpr std::uint64_t kPointer = 0x7fff00001000;
  for (const Case& each : cases()) {
    const auto is = [&](long number, std::initializer_list<std::uint64_t> arguments) {
      return answer(each.program, call(number, arguments));
    };
    EXPECT_EQ(is(SYS_setrlimit, {RLIMIT_CORE, kPointer}), refused(0));
    EXPECT_EQ(is(SYS_setrlimit, {RLIMIT_CORE | kUpperHalf, kPointer}), refused(0));
    EXPECT_EQ(is(SYS_prlimit64, {0, RLIMIT_CORE, kPointer, 0}), refused(0));
    EXPECT_EQ(is(SYS_prlimit64, {kUpperHalf, RLIMIT_CORE | kUpperHalf, kPointer, 0}), refused(0));
    // With a buffer for the old limit, or for another process.
    EXPECT_EQ(is(SYS_prlimit64, {0, RLIMIT_CORE, kPointer, kPointer}), each.refusal);
    EXPECT_EQ(is(SYS_prlimit64, {0, RLIMIT_CORE, kPointer, kUpperHalf}), each.refusal);
    EXPECT_EQ(is(SYS_prlimit64, {1, RLIMIT_CORE, kPointer, 0}), each.refusal);
    EXPECT_EQ(is(SYS_prlimit64, {1, RLIMIT_CORE, 0, kPointer}), each.refusal);
    // Queries, and other limits.
    EXPECT_EQ(is(SYS_prlimit64, {0, RLIMIT_CORE, 0, kPointer}), SECCOMP_RET_ALLOW);
    EXPECT_EQ(is(SYS_prlimit64, {0, RLIMIT_NOFILE, kPointer, kPointer}), SECCOMP_RET_ALLOW);
    EXPECT_EQ(is(SYS_prlimit64, {1, RLIMIT_NOFILE, kPointer, 0}), each.refusal);
    for (const std::uint64_t other : {__RLIMIT_MSGQUEUE, __RLIMIT_NICE, __RLIMIT_RTPRIO, __RLIMIT_SIGPENDING}) {
      EXPECT_EQ(is(SYS_prlimit64, {0, other, kPointer, 0}), each.refusal) << other;
      EXPECT_EQ(is(SYS_setrlimit, {other, kPointer}), each.refusal) << other;
    }
  }
}

// After EINVAL, grep, cat and cp copy with read and write; after ENOSYS, grep fails.
TEST_F(SandboxFilter, SpliceFamilyAnswersAsForUnsupportedFiles) {
  for (const long number : {SYS_splice, SYS_tee, SYS_vmsplice, SYS_sendfile})
    EXPECT_EQ(of(number), refused(EINVAL)) << number;
}

// In learning mode the refusals that depend on arguments still apply and are not recorded, since no call is missing.
TEST_F(SandboxFilter, LearningKeepsRefusalsThatDependOnArguments) {
  FilterRequest learning;
  learning.learn = true;
  const auto program = compiled(learning);
  constexpr std::uint64_t kFiClone = 0x40049409;
  EXPECT_EQ(answer(program, call(SYS_ioctl, {3, kFiClone})), refused(EOPNOTSUPP));
  EXPECT_EQ(answer(program, call(SYS_socket, {AF_INET, SOCK_STREAM, 0})), SECCOMP_RET_USER_NOTIF);
  EXPECT_EQ(answer(program, call(SYS_execveat, {3, 0, 0, 0, 0x1000})), SECCOMP_RET_USER_NOTIF);
}

}  // namespace
}  // namespace mycojobs::sandbox
