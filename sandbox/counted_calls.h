// Calls for which the kernel keeps memory that no group is charged for. The filter reports them, and the launcher lets
// a run have so many at a time:
//
//   fcntl(F_SETLK, F_SETLKW)  goes on. Each call counts as one lock: which lock it asks for is behind a pointer, and
//   may
//                             change until the kernel reads it. Too many: ENOLCK
//   listen                    is made here, on the caller's own socket, with a short queue. Too many: ENOBUFS
//
// When the number is used up, what the run still holds is counted anew.
#pragma once

#include <linux/seccomp.h>
#include <sys/types.h>

#include <cstdint>

#include "mycojobs/sandbox.h"

namespace mycojobs::sandbox {

inline constexpr int kMostPending = 32;  // connections that wait to be accepted, of one listener

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

}  // namespace mycojobs::sandbox
