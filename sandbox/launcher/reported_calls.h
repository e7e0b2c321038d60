// Calls that a run's filter reports to the launcher, which answers them: forbidden calls, counted calls, and all calls
// beyond the profile in learning mode.
#pragma once

#include <linux/seccomp.h>
#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sandbox/launcher/host_children.h"
#include "sandbox/outcome.h"
#include "sandbox/sandbox.h"

namespace mycojobs::sandbox {

// Receives the seccomp notification of a call. Requires that the listener is readable. Returns nothing if the caller
// was interrupted or has died; the call is then unknown.
std::optional<seccomp_notif> receive_call(int listener);

// Describes a call that is never innocent. The call is not answered and never continues: the caller is killed.
Violation describe_call(int listener, const std::optional<seccomp_notif>&);

// "denied: keyctl(0x11, 0x0) by pid 7 (python): job killed"
std::string describe(const Violation&);

inline constexpr int kMaxPendingConnections = 32;  // connections that wait to be accepted, of one listener

// Calls for which the kernel allocates memory that is charged to no group. The filter reports them, and the launcher
// limits the number of concurrent locks and listeners of a run:
//
//   fcntl(F_SETLK, F_SETLKW)  continues. Each call counts as one lock, because the requested lock is behind a pointer
//                             and may change until the kernel reads it. Too many: ENOLCK
//   listen                    is made on the caller's own socket, with a short queue. Too many: ENOBUFS
//
// When the limit is reached, the locks or listeners that the run still holds are counted.
//
// The launcher itself never has a descriptor of a job's socket: its last close may block (SO_LINGER), and so may any
// call that locks the socket. A child of the launcher calls listen and counts. Each run that needs such a child has its
// own, so that a run can block only itself.
class CountedCalls {
 public:
  static constexpr std::uint32_t kMaxLocks = 8192, kMaxListeners = 16;  // at a time
  static constexpr std::uint32_t kMaxCallsPer100Ms = 2000;              // calls that are accepted in 100 ms
  static constexpr std::uint32_t kMaxListensPer100Ms = 20;

  static bool can_report(const RunSpec&);  // false if the filter of the run reports none of these calls
  static bool is_counted(const seccomp_notif&);

  // `listener` belongs to the run's filter and outlives this object.
  CountedCalls(HostChildren& children, int listener) : children_(children), listener_(listener) {}
  CountedCalls(const CountedCalls&) = delete;
  CountedCalls& operator=(const CountedCalls&) = delete;
  ~CountedCalls() { children_.kill_silently(child_); }

  // Answers the call now or later; the calling thread waits. `init` is the pid of the run's init in this process's
  // namespace.
  void accept(const seccomp_notif&, pid_t init);
  // Returns when the next call may be accepted, or 0 if it may be accepted now.
  std::uint64_t next_boot_ms(std::uint64_t now_boot_ms);

 private:
  struct Budget {
    std::uint32_t remaining;    // further locks that are allowed before a count
    std::uint32_t refused = 0;  // number of refusals since the last count
  };
  void answer_waiting();
  bool answer_lock(const seccomp_notif&);  // returns false if the locks must be counted first
  void begin_listen(const seccomp_notif&);
  void answer(const seccomp_notif&, int error);
  void on_frame(const RawFrame*);
  int send_to_child(const std::string& frame, std::initializer_list<int> fds);  // returns 0 or an errno

  HostChildren& children_;
  int listener_;
  pid_t init_ = -1;
  std::deque<seccomp_notif> waiting_;  // at most one for each thread, in the order of their arrival
  HostChildren::Child child_ = 0;
  bool is_child_busy_ = false;  // the child works on the first waiting call
  Budget locks_{kMaxLocks};
  std::uint64_t interval_ = 0;  // number of the current interval of 100 ms
  std::uint32_t calls_in_interval_ = 0;
};

// Records the calls of a run beyond its profile, for `policy learn`. The filter reports calls that it would refuse, and
// opened files. Each report is recorded and answered as the filter would have answered. Nothing more is allowed: of the
// reported calls only the opening of files continues, which every job may try.
class PolicyRecorder {
 public:
  // Answers one pending call. Returns false if no call is pending.
  bool answer(int listener);
  // "read /srv/data", "write /srv/out", "exec /bin/ls", "socket inet", "syscall keyctl"; sorted, without repetition.
  std::vector<std::string> records() const;

 private:
  int decide_errno(int listener, const seccomp_notif&);  // errno of the answer, or 0 if the call continues
  void record(std::string line);

  std::set<std::string> records_;
  std::size_t bytes_ = 0;
  bool has_forked_job_ = false;  // init has forked the job: every later fork is the job's
};

}  // namespace mycojobs::sandbox
