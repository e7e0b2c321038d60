// The child's side of a run: what init and the job's process know, and their steps. Linked by every script host.
// All of it runs after fork in a single-threaded process; a step returns 0 or an errno.
#pragma once

#include <sys/time.h>

#include <atomic>
#include <cerrno>
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
inline constexpr int kStartFd = 3;      // init, and a job until it starts: the socket that receives Start
inline constexpr int kStatusFd = 4;     // this and higher descriptors: init only; a job closes them before it waits
inline constexpr int kFenceFd = 5;      // the clock of its fence, which the launcher sets
inline constexpr int kAliveFd = 6;      // if there is one
inline constexpr int kChannelFd = 3;    // a started job: JobChannel::up
inline constexpr int kRequestsFd = 4;   // a started job: JobChannel::down
inline constexpr int kWarmStartFd = 5;  // a warm process: receives the next Start

// What a warm process says to its init, in a page that they share: that so many runs have ended, and how the last one
// has. Only with the stop that follows does it mean anything.
struct WarmWord {
  std::atomic<std::uint64_t> ended{0};
  void set(std::uint32_t runs, int code) { ended = std::uint64_t{runs} << 8 | (static_cast<unsigned>(code) & 0xffU); }
  std::uint32_t runs() const { return static_cast<std::uint32_t>(ended.load() >> 8); }
  int code() const { return static_cast<int>(ended.load() & 0xffU); }
};

struct ChildRun {
  Fork request;
  int start = -1, status = -1, fence = -1, alive = -1;
  int filter = -1;           // of its own; -1: none
  std::vector<int> mounts;   // detached trees, in the order of Grants::fs_read, then fs_write
  std::vector<int> cgroups;  // each an open cgroup.procs
  const FilterSet* filters = nullptr;
  std::vector<sock_filter> own_filter;  // empty: the zygote's
  const ZygoteHost* host = nullptr;
  int rank = 0;  // of a job: its niceness
  std::string fail_step;
  std::vector<std::string> leave_out;
  int landlock_abi = 0;
  Fd job_domain;             // of make_job_domain(); none: no Landlock
  WarmWord* warm = nullptr;  // null: its process serves one run
  bool limited = false;      // limit_resources() has set the limits of the run
  std::vector<StepTime> times;
};

// Its name appears in Outcome::setup and SetupError.
struct Step {
  const char* name;
  int (*run)(ChildRun&);
};
inline int error_if(bool failed) { return failed ? errno : 0; }
// Runs them in order and notes their times, if they are wanted. At the first that fails: reports to the launcher
// which and why, and leaves.
void take_steps(ChildRun&, std::span<const Step>, std::vector<StepTime>* times);
bool left_out(const std::vector<std::string>& names, std::string_view name);
std::uint64_t monotonic_us();

// The lists (confine.cpp): what init does with rights, and how it gives them up.
std::span<const Step> init_steps();
std::span<const Step> confine_steps();
int load_first_filter(ChildRun&);  // of init, and of all below it; sends Confined. 0 or errno

// pid 1 of a sandbox's namespace: takes its steps, gives up every right, forks a job, keeps its clock, ends it; then
// the next job or its own end.
[[noreturn]] void run_init(ChildRun&);
// A job's process, forked by init: gives up the rest, waits for its run, runs it.
[[noreturn]] void run_job(ChildRun&);

std::uint64_t microseconds(const timeval&);

// O_PATH; ELOOP if a symbolic link is anywhere on the way. Others may write some granted folders at the same time.
Fd open_without_links(const std::string& path);

// Attacks the sandbox from inside, as a job. Writes "layer: what succeeded" lines to `out`, nothing if all is well; the
// last attack must end the process by a violation.
int run_canary(int out);

}  // namespace mycojobs::sandbox
