// The child's side of a run: what init and the job's process know, and their steps. Linked by every script host.
// All of it runs after fork in a single-threaded process; a step returns 0 or an errno.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sandbox/messages.h"
#include "sandbox/programs.h"
#include "sandbox/zygote.h"

namespace mycojobs::sandbox {

// Where a run's descriptors are once its `descriptors` step has run. Nothing else is open.
inline constexpr int kChannelFd = 3;  // until the job starts: the socket that Start comes on
inline constexpr int kStatusFd = 4;   // init only: the job closes it before it runs
inline constexpr int kAliveFd = 5;    // init only, if there is one: the job's first step closes it

struct ChildRun {
  Fork request;
  int start = -1, status = -1, alive = -1;
  int filter = -1;           // of its own; -1: none
  std::vector<int> mounts;   // detached trees, in the order of Grants::fs_read, then fs_write
  std::vector<int> cgroups;  // each an open cgroup.procs
  const FilterSet* filters = nullptr;
  std::vector<sock_filter> own_filter;  // empty: the zygote's
  const ZygoteHost* host = nullptr;
  std::string fail_step;
  std::vector<std::string> leave_out;
  int landlock_abi = 0;
  std::vector<StepTime> times;
};

struct Step {
  const char* name;
  int (*run)(ChildRun&);
};
// Runs them in order and notes their times. At the first that fails: tells the launcher which and why, and leaves.
void take_steps(ChildRun&, std::span<const Step>);
bool left_out(const std::vector<std::string>& names, std::string_view name);
std::uint64_t monotonic_us();

// pid 1 of the job's namespace: takes its steps, forks the job, keeps its clock, ends with it.
[[noreturn]] void run_init(ChildRun&);
// The job's process: gives up every right, then runs. In this order, which is the reason why it is one list.
[[noreturn]] void run_job(ChildRun&);

// For init and job alike: securebits, bounding set, groups, gid, uid, ambient set, capabilities.
int drop_privileges(const ChildRun&);
int load_filter(const std::vector<sock_filter>&);                // 0 or errno
int load_filter_with_listener(const std::vector<sock_filter>&);  // descriptor, or -errno

int landlock_abi();  // 0: none
// Confines the calling process: reads the system, writes its own folders and what is granted; executes if `exec`.
int restrict_with_landlock(int abi, bool exec, const Grants&);

// grants.cpp. Steps of init.
int own_network(ChildRun&);
int mount_grants(ChildRun&);
// O_PATH; ELOOP if a symbolic link is anywhere on the way. Others may write some granted folders at the same time.
Fd open_without_links(const std::string& path);

// Attacks the sandbox from inside, as a job. Writes "layer: what succeeded" lines to `out`, nothing if all is well; the
// last attack must end the process by a violation.
int run_canary(int out);

}  // namespace mycojobs::sandbox
