// Random calls with random arguments, biased to values that are meaningful to the kernel.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <ctime>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "attempt_calls.h"
#include "attempt_table.h"
#include "sandbox/seccomp/filter.h"

namespace mycojobs::test {
namespace {

using Random = std::mt19937_64;

constexpr std::size_t kRoom = 1U << 16;
constexpr unsigned long kNewest = 480;

const char* const kPaths[] = {"/",           "/tmp",           "/tmp/x",  "/job/y",     "/dev/null", "/dev/shm/z",
                              "/etc/passwd", "/proc/self/fd",  "/proc/1", "/proc/1/ns", "/usr",      "../../..",
                              "/host",       "/proc/self/mem", "",        "/dev/full"};

unsigned long argument(Random& random, char* room) {
  constexpr std::array<unsigned long, 40> kValues = {
      0,         1,         2,         3,          4,         5,         6,          7,
      8,         9,         16,        17,         31,        64,        100,        255,
      256,       1000,      4095,      4096,       65535,     65536,     1UL << 20,  1UL << 24,
      1UL << 27, 1UL << 28, 1UL << 29, 1UL << 30,  1UL << 31, 1UL << 32, 0x7fffffff, 0xffffffff,
      ~0UL,      ~0UL - 1,  ~0UL - 99, 0x40000000, 1UL << 62, 1UL << 63, 0x5412,     0x1234567890UL};
  switch (random() % 8) {
    case 0:
      return random();
    case 1:
      return reinterpret_cast<unsigned long>(kPaths[random() % std::size(kPaths)]);
    case 2:
    case 3:
      return reinterpret_cast<unsigned long>(room) + (random() % kRoom & ~7UL);
    case 4:
      return kValues[random() % kValues.size()] | kValues[random() % kValues.size()];
    default:
      return kValues[random() % kValues.size()];
  }
}

std::set<long> get_call_numbers(std::initializer_list<const char*> names) {
  std::set<long> numbers;
  for (const char* name : names) numbers.insert(call_number(name));
  return numbers;
}

// Calls that end the job by their normal effect.
const std::set<long>& ends_the_job() {
  static const std::set<long> kNumbers = [] {
    std::set<long> numbers = get_call_numbers({"exit", "exit_group", "rt_sigreturn", "vfork", "execve"});
    // uretprobe and uprobe of x86-64 bypass the filter, and a direct call causes SIGILL.
    numbers.insert({335, 336});
    return numbers;
  }();
  return kNumbers;
}
// Each of these calls ends the job, so they are made seldom.
const std::set<long>& ends_by_violation() {
  static const std::set<long> kNumbers = [] {
    std::set<long> numbers = get_call_numbers({"clone", "fork", "execveat"});
    for (const char* name : sandbox::forbidden_calls()) numbers.insert(call_number(name));
    return numbers;
  }();
  return kNumbers;
}

// Each of these calls can end the thread or the process, or makes later calls less useful, so they are made seldom.
const std::set<long>& seldom() {
  static const std::set<long> kNumbers = get_call_numbers({"munmap",
                                                           "mprotect",
                                                           "pkey_mprotect",
                                                           "mremap",
                                                           "madvise",
                                                           "brk",
                                                           "mmap",
                                                           "arch_prctl",
                                                           "kill",
                                                           "tkill",
                                                           "tgkill",
                                                           "rt_sigqueueinfo",
                                                           "rt_tgsigqueueinfo",
                                                           "pidfd_send_signal",
                                                           "alarm",
                                                           "setitimer",
                                                           "timer_create",
                                                           "prlimit64",
                                                           "setrlimit",
                                                           "sigaltstack",
                                                           "rt_sigaction",
                                                           "rt_sigprocmask",
                                                           "set_robust_list",
                                                           "rt_sigsuspend",
                                                           "pause",
                                                           "rt_sigtimedwait",
                                                           "nanosleep",
                                                           "clock_nanosleep",
                                                           "futex",
                                                           "futex_waitv",
                                                           "wait4",
                                                           "waitid",
                                                           "mlockall",
                                                           "read",
                                                           "close_range",
                                                           "chdir",
                                                           "fchdir",
                                                           "landlock_restrict_self"});
  return kNumbers;
}

void call_at_random(std::uint64_t seed) {
  Random random(seed);
  // The memory after the buffer is not writable. Otherwise a call with a large size could overwrite the stack of this
  // thread.
  auto* room =
      static_cast<char*>(::mmap(nullptr, 64 * kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (room == MAP_FAILED || ::mprotect(room, kRoom, PROT_READ | PROT_WRITE) != 0) return;
  for (unsigned long count = 0;; ++count) {
    if (count % 64 == 0) {
      for (std::size_t at = 0; at < kRoom; at += 8) {
        const unsigned long value = random() % 4 == 0 ? argument(random, room) : 0;
        std::char_traits<char>::copy(room + at, reinterpret_cast<const char*>(&value), sizeof value);
      }
    }
    long nr = static_cast<long>(random() % kNewest);
    if (random() % (1 << 17) == 0) nr = static_cast<long>(random());
    if (ends_the_job().contains(nr)) continue;
    if (ends_by_violation().contains(nr) && random() % 512 != 0) continue;
    if (seldom().contains(nr) && random() % 64 != 0) continue;
    ::syscall(nr, argument(random, room), argument(random, room), argument(random, room), argument(random, room),
              argument(random, room), argument(random, room));
  }
}

// fuzz SEED MILLISECONDS: uses several threads, because a call can block without limit.
std::string fuzz(const Words& words) {
  (void)ends_the_job();
  (void)ends_by_violation();
  (void)seldom();
  const std::uint64_t seed = number(words, 1);
  for (std::uint64_t i = 0; i < 6; ++i) std::thread(call_at_random, seed * 16 + i).detach();
  const timespec pause{static_cast<time_t>(number(words, 2) / 1000),
                       static_cast<long>(number(words, 2) % 1000) * 1000000};
  ::nanosleep(&pause, nullptr);
  ::_exit(0);
}

}  // namespace

const Attempts& attempts_at_random() {
  static const Attempts kTable = {{"fuzz", fuzz}};
  return kTable;
}

}  // namespace mycojobs::test
