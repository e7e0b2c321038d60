// A library for LD_PRELOAD that shifts the wall clock of a process. CLOCK_MONOTONIC and CLOCK_BOOTTIME are unchanged.
// The file named by MJ_SKEW_FILE contains the shift in seconds as an 8-byte integer. The file is mapped, so a write to
// it is a jump of the clock.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

const std::atomic<std::int64_t>* map_shift() {
  static const std::atomic<std::int64_t> kNone = 0;
  const char* path = std::getenv("MJ_SKEW_FILE");
  const int file = path == nullptr ? -1 : ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return &kNone;
  void* mapped = ::mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, file, 0);
  ::close(file);
  return mapped == MAP_FAILED ? &kNone : static_cast<const std::atomic<std::int64_t>*>(mapped);
}

std::int64_t shift() {
  static const std::atomic<std::int64_t>* const kShift = map_shift();
  return kShift->load(std::memory_order_relaxed);
}

bool is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) {
  static auto* const real = next<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, now);
  if (result == 0 && is_wall(clock)) now->tv_sec += shift();
  return result;
}

int gettimeofday(timeval* now, void* zone) {
  static auto* const real = next<int(timeval*, void*)>("gettimeofday");
  const int result = real(now, zone);
  if (result == 0) now->tv_sec += shift();
  return result;
}

time_t time(time_t* now) {
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  if (now != nullptr) *now = wall.tv_sec;
  return wall.tv_sec;
}

}  // extern "C"
