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

struct ObservedProcess {
  pid_t pid = 0;
  Component component = Component::other;
  std::uint64_t start_ticks = 0;  // start time in clock ticks; pid and start time together are unique
  std::string comm;
  pid_t parent = 0;
  // The agent and the launcher that are ancestors of the process, or the process itself; 0 if there is none.
  pid_t agent_pid = 0, launcher_pid = 0;
  char state = '?';
  std::int64_t before_us = 0, after_us = 0;  // CLOCK_BOOTTIME: seen alive between these times
  std::int64_t real_us = 0;                  // CLOCK_REALTIME at before_us
  std::string to_text() const;               // text for error messages
  bool is_dead() const { return state == 'Z' || state == 'X'; }
};

// Lists the processes. Thread-safe.
class ProcessTree {
 public:
  // Names a process started by this test. Other processes are identified by their place in the tree.
  void set_component(pid_t, Component);
  // Returns all living processes below this process, parents first. Reaps ended orphans.
  std::vector<ObservedProcess> list_processes();

 private:
  Component classify(const ObservedProcess& parent, const ObservedProcess&);
  void collect_descendants(const ObservedProcess& parent, std::vector<ObservedProcess>& observed, int depth);

  std::mutex mutex_;
  std::map<pid_t, Component> components_;
};

void adopt_orphans();
// Sends the signal if the pid still belongs to that process. Returns false if the process has ended.
bool signal_process(const ObservedProcess&, int number);
std::int64_t boot_time_us();

}  // namespace mycojobs::test
