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

constexpr std::size_t kBufferBytes = 1U << 16;
constexpr unsigned long kMaxCallNumber = 480;

const char* const kPaths[] = {"/",           "/tmp",           "/tmp/x",  "/job/y",     "/dev/null", "/dev/shm/z",
                              "/etc/passwd", "/proc/self/fd",  "/proc/1", "/proc/1/ns", "/usr",      "../../..",
                              "/host",       "/proc/self/mem", "",        "/dev/full"};

unsigned long choose_argument(Random& random, char* buffer) {
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
      return reinterpret_cast<unsigned long>(buffer) + (random() % kBufferBytes & ~7UL);
    case 4:
      return kValues[random() % kValues.size()] | kValues[random() % kValues.size()];
    default:
      return kValues[random() % kValues.size()];
  }
}

std::set<long> get_call_numbers(std::initializer_list<const char*> names) {
  std::set<long> numbers;
  for (const char* name : names) numbers.insert(resolve_call_number(name));
  return numbers;
}

// Calls that end the job by their normal effect.
const std::set<long>& calls_that_end_the_job() {
  static const std::set<long> kNumbers = [] {
    std::set<long> numbers = get_call_numbers({"exit", "exit_group", "rt_sigreturn", "vfork", "execve"});
    // uretprobe and uprobe of x86-64 bypass the filter, and a direct call causes SIGILL.
    numbers.insert({335, 336});
    return numbers;
  }();
  return kNumbers;
}
// Each of these calls ends the job, so they are made seldom.
const std::set<long>& calls_that_are_violations() {
  static const std::set<long> kNumbers = [] {
    std::set<long> numbers = get_call_numbers({"clone", "fork", "execveat"});
    for (const char* name : sandbox::forbidden_calls()) numbers.insert(resolve_call_number(name));
    return numbers;
  }();
  return kNumbers;
}

// Each of these calls can end the thread or the process, or makes later calls less useful, so they are made seldom.
const std::set<long>& rare_calls() {
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
  auto* buffer = static_cast<char*>(
      ::mmap(nullptr, 64 * kBufferBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (buffer == MAP_FAILED || ::mprotect(buffer, kBufferBytes, PROT_READ | PROT_WRITE) != 0) return;
  for (unsigned long count = 0;; ++count) {
    if (count % 64 == 0) {
      for (std::size_t offset = 0; offset < kBufferBytes; offset += 8) {
        const unsigned long value = random() % 4 == 0 ? choose_argument(random, buffer) : 0;
        std::char_traits<char>::copy(buffer + offset, reinterpret_cast<const char*>(&value), sizeof value);
      }
    }
    long call = static_cast<long>(random() % kMaxCallNumber);
    if (random() % (1 << 17) == 0) call = static_cast<long>(random());
    if (calls_that_end_the_job().contains(call)) continue;
    if (calls_that_are_violations().contains(call) && random() % 512 != 0) continue;
    if (rare_calls().contains(call) && random() % 64 != 0) continue;
    ::syscall(call, choose_argument(random, buffer), choose_argument(random, buffer), choose_argument(random, buffer),
              choose_argument(random, buffer), choose_argument(random, buffer), choose_argument(random, buffer));
  }
}

// fuzz SEED MILLISECONDS: uses several threads, because a call can block without limit.
std::string fuzz(const Words& words) {
  (void)calls_that_end_the_job();
  (void)calls_that_are_violations();
  (void)rare_calls();
  const std::uint64_t seed = parse_number(words, 1);
  for (std::uint64_t i = 0; i < 6; ++i) std::thread(call_at_random, seed * 16 + i).detach();
  const timespec pause{static_cast<time_t>(parse_number(words, 2) / 1000),
                       static_cast<long>(parse_number(words, 2) % 1000) * 1000000};
  ::nanosleep(&pause, nullptr);
  ::_exit(0);
}

}  // namespace

const Attempts& random_attempts() {
  static const Attempts kTable = {{"fuzz", fuzz}};
  return kTable;
}

}  // namespace mycojobs::test
