// The processes below this one, found by walking the children of what it started: nothing else on the machine is seen.
//
//   this test -> redis-server
//             -> mycojobs agent -> guardian -> launcher -> zygote -> init -> job and what it forks
//
// adopt_orphans() makes this process the parent of whatever outlives an agent, so that it stays in sight.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace mycojobs::test {

enum class Component { agent, guardian, launcher, zygote, init, job, redis, other };
const char* word(Component);

struct ProcessSeen {
  pid_t pid = 0;
  Component what = Component::other;
  std::uint64_t started = 0;  // clock ticks: with the pid, a name that is not used again
  std::string comm;
  pid_t parent = 0;
  pid_t agent = 0, launcher = 0;  // above it, or itself; 0: none
  char state = '?';
  std::int64_t before_us = 0, after_us = 0;  // CLOCK_BOOTTIME: it was seen alive between these two
  std::int64_t real_us = 0;                  // CLOCK_REALTIME at before_us
  std::string shown() const;                 // for people
  bool dead() const { return state == 'Z' || state == 'X'; }
};

// Any thread.
class ProcessTree {
 public:
  // What this process has started by itself. The rest is known by its place.
  void name(pid_t, Component);
  // All that lives below this process, parents first. Buries orphans that have ended.
  std::vector<ProcessSeen> walk();

 private:
  Component role_of(const ProcessSeen& parent, const ProcessSeen&);
  void descend(const ProcessSeen& parent, std::vector<ProcessSeen>& seen, int depth);

  std::mutex mutex_;
  std::map<pid_t, Component> named_;
};

void adopt_orphans();
// Sends the signal if the pid is still that process. False: it has gone.
bool signal_process(const ProcessSeen&, int number);
std::int64_t boot_us();

}  // namespace mycojobs::test
