// What a run uses beyond its profile, for `policy learn`. Its filter reports what it would refuse, and files that are
// opened. Here each report is noted and answered as the filter would have answered. Nothing more is allowed: of the
// reported calls only the opening of files goes on, which every job may try.
#pragma once

#include <linux/seccomp.h>

#include <set>
#include <string>
#include <vector>

namespace mycojobs::sandbox {

// Calls that are reported though they are allowed.
bool is_observed(const char* syscall);

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
