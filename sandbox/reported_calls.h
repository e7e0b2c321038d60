// Calls that a run's filter reports to the launcher, which answers them: forbidden ones, counted ones, and what a run
// uses that learns.
#pragma once

#include <linux/seccomp.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "mycojobs/outcome.h"
#include "mycojobs/sandbox.h"

namespace mycojobs::sandbox {

// What seccomp's user notification says about a call.
//
// Called when the listener is readable: somebody did call. Nothing: the caller was interrupted or died meanwhile, and
// which call it was is not known any more.
std::optional<seccomp_notif> receive_call(int listener);

// Of a call that is never innocent. There is no answer to it: whoever made it is killed, it never continues.
Violation describe_call(int listener, const std::optional<seccomp_notif>&);

// "denied: keyctl(0x11, 0x0) by pid 7 (python): job killed"
std::string describe(const Violation&);

inline constexpr int kMostPending = 32;  // connections that wait to be accepted, of one listener

// Calls for which the kernel keeps memory that no group is charged for. The filter reports them, and the launcher lets
// a run have so many at a time:
//
//   fcntl(F_SETLK, F_SETLKW)  goes on. Each call counts as one lock: which one it asks for is behind a pointer, and
//                             may change until the kernel reads it. Too many: ENOLCK
//   listen                    is made here, on the caller's own socket, with a short queue. Too many: ENOBUFS
//
// When the number is used up, what the run still holds is counted anew.
class CountedCalls {
 public:
  static constexpr std::uint32_t kMostLocks = 8192, kMostListeners = 16;  // at a time
  static constexpr std::uint32_t kMostInATenth = 2000;                    // answers in 100 ms

  static bool may_be_made(const RunSpec&);  // else its filter reports none of them
  static bool is_one(const seccomp_notif&);

  // init: of the run, as our namespace numbers it.
  void answer(int listener, const seccomp_notif&, pid_t init);
  // When the next may be answered; 0: at once.
  std::uint64_t next_boot_ms(std::uint64_t now_boot_ms);

 private:
  struct Budget {
    std::uint32_t left, refused = 0;  // refused: since it was counted last
  };
  static constexpr std::uint32_t kCounting = 500;  // answers that counting anew is worth
  int judge_lock(pid_t init);
  int listen_for(int listener, const seccomp_notif&);

  Budget locks_{kMostLocks}, listeners_{kMostListeners};
  std::uint64_t tenth_ = 0;
  std::uint32_t in_tenth_ = 0;
};

// Calls that are reported though they are allowed.
bool is_observed(const char* syscall);

// What a run uses beyond its profile, for `policy learn`. Its filter reports what it would refuse, and files that are
// opened. Here each report is noted and answered as the filter would have answered. Nothing more is allowed: of the
// reported calls only the opening of files goes on, which every job may try.
class Learning {
 public:
  // One call, if there is one. False: the listener has nothing more to say.
  bool answer(int listener);
  // "read /srv/data", "write /srv/out", "exec /bin/ls", "socket inet", "syscall keyctl"; sorted, without repetition.
  std::vector<std::string> lines() const;

 private:
  int judge(int listener, const seccomp_notif&);  // errno to answer with; 0: it goes on
  void note(std::string line);

  std::set<std::string> lines_;
  std::size_t bytes_ = 0;
  bool forked_ = false;  // init has forked the job: every later fork is the job's
};

}  // namespace mycojobs::sandbox
