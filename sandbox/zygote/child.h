// The child's side of a run: state and steps of init and the job's process. Linked by every script host. All functions
// run after fork in a single-threaded process; a step returns 0 or an errno.
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
#include "sandbox/seccomp/filter_programs.h"
#include "sandbox/zygote/zygote.h"

namespace mycojobs::sandbox {

// A warm process reports to its init in a shared page how many runs have ended, and the exit code of the last one.
// Valid only after the process has stopped itself.
struct WarmStatusPage {
  std::atomic<std::uint64_t> packed{0};  // number of ended runs and exit code in one value
  void store(std::uint32_t ended_run_count, int code) {
    packed = std::uint64_t{ended_run_count} << 8 | (static_cast<unsigned>(code) & 0xffU);
  }
  std::uint32_t ended_runs() const { return static_cast<std::uint32_t>(packed.load() >> 8); }
  int exit_code() const { return static_cast<int>(packed.load() & 0xffU); }
};

struct ChildRun {
  ForkRequest request;
  int start_fd = -1;              // socket that receives Start
  int status_fd = -1;             // socket to the launcher
  int fence_timer_fd = -1;        // timerfd of the fence (RunSpec::fence_boot_ms)
  int alive_fd = -1;              // copy of SandboxConfig::alive_fd, or -1
  int filter_file = -1;           // file with the filter of this run, or -1
  std::vector<int> mounts;        // detached mounts, in the order of Grants::fs_read, fs_write, volumes, packages
  std::vector<int> cgroup_files;  // descriptors of cgroup.procs files
  const FilterSet* filters = nullptr;
  std::vector<sock_filter> run_filter;  // read from filter_file; empty if the zygote's filter is used
  const ZygoteHost* script_host = nullptr;
  int job_niceness = 0;
  std::string fail_step;
  std::vector<std::string> disabled_steps;
  int landlock_abi = 0;
  Fd job_domain;                          // from make_job_domain(); empty without Landlock
  WarmStatusPage* warm_status = nullptr;  // null if the process serves one run
  bool are_limits_set = false;            // limit_resources() has set the limits of the run
  std::vector<StepTime> step_times;
};

// A step of the set-up. Its name appears in Outcome::setup and SetupError.
struct SetupStep {
  const char* name;
  int (*run)(ChildRun&);
};
inline int error_if(bool failed) { return failed ? errno : 0; }
// Runs the steps in order and records their times if `times` is not null. If a step fails, reports it to the launcher
// and exits.
void run_steps(ChildRun&, std::span<const SetupStep>, std::vector<StepTime>* times);
bool is_disabled(const std::vector<std::string>& names, std::string_view name);
std::uint64_t monotonic_us();

// Steps in confine.cpp: those that need rights, and those that drop them.
std::span<const SetupStep> init_steps();
std::span<const SetupStep> confine_steps();
int load_first_filter(ChildRun&);  // for init and its descendants; sends RunConfined; returns 0 or errno

// Process 1 of a sandbox's PID namespace: runs its steps, drops every right, forks a job, enforces its clock and ends
// it; then serves the next job or exits.
[[noreturn]] void run_init(ChildRun&);
// The process of a job, forked by init: drops the remaining rights, waits for its run and runs it.
[[noreturn]] void run_job(ChildRun&);

std::uint64_t microseconds(const timeval&);

// Attacks the sandbox from inside, like a job. Writes a line "layer: successful attack" to `out` for each success. The
// last attack must end the process by a violation.
int run_canary(int out);

}  // namespace mycojobs::sandbox
