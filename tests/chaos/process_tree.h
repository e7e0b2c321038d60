// The processes below this process, found through the children of the processes that it started. No other process of
// the machine is included.
//
//   this test -> redis-server
//             -> mycojobs agent -> guardian -> launcher -> zygote -> init -> job and its forks
//
// adopt_orphans() makes this process the parent of processes that outlive an agent, so they stay in the tree.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace mycojobs::test {

enum class Component { agent, guardian, launcher, zygote, init, job, redis, other };
const char* to_string(Component);

struct ProcessSeen {
  pid_t pid = 0;
  Component what = Component::other;
  std::uint64_t started = 0;  // clock ticks; pid and start time together are unique
  std::string comm;
  pid_t parent = 0;
  pid_t agent = 0, launcher = 0;  // the agent and launcher above it, or itself; 0: none
  char state = '?';
  std::int64_t before_us = 0, after_us = 0;  // CLOCK_BOOTTIME: seen alive between these times
  std::int64_t real_us = 0;                  // CLOCK_REALTIME at before_us
  std::string to_text() const;               // text for error messages
  bool dead() const { return state == 'Z' || state == 'X'; }
};

// Thread-safe.
class ProcessTree {
 public:
  // Names a process started by this test. Other processes are identified by their place in the tree.
  void name(pid_t, Component);
  // Returns all living processes below this process, parents first. Reaps ended orphans.
  std::vector<ProcessSeen> walk();

 private:
  Component classify(const ProcessSeen& parent, const ProcessSeen&);
  void descend(const ProcessSeen& parent, std::vector<ProcessSeen>& seen, int depth);

  std::mutex mutex_;
  std::map<pid_t, Component> named_;
};

void adopt_orphans();
// Sends the signal if the pid still belongs to that process. Returns false if the process has ended.
bool signal_process(const ProcessSeen&, int number);
std::int64_t boot_us();

}  // namespace mycojobs::test
