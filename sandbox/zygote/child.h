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
  std::atomic<std::uint64_t> ended{0};
  void set(std::uint32_t runs, int code) { ended = std::uint64_t{runs} << 8 | (static_cast<unsigned>(code) & 0xffU); }
  std::uint32_t runs() const { return static_cast<std::uint32_t>(ended.load() >> 8); }
  int code() const { return static_cast<int>(ended.load() & 0xffU); }
};

struct ChildRun {
  Fork request;
  int start = -1, status = -1, fence = -1, alive = -1;
  int filter = -1;           // filter of this run; -1: none
  std::vector<int> mounts;   // detached mounts, in the order of Grants::fs_read, then fs_write
  std::vector<int> cgroups;  // descriptors of cgroup.procs files
  const FilterSet* filters = nullptr;
  std::vector<sock_filter> own_filter;  // empty: the zygote's filter is used
  const ZygoteHost* host = nullptr;
  int rank = 0;  // niceness of the job
  std::string fail_step;
  std::vector<std::string> disabled_steps;
  int landlock_abi = 0;
  Fd job_domain;                   // from make_job_domain(); empty: no Landlock
  WarmStatusPage* warm = nullptr;  // null: the process serves one run
  bool limited = false;            // limit_resources() has set the limits of the run
  std::vector<StepTime> times;
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
int load_first_filter(ChildRun&);  // for init and its descendants; sends Confined; returns 0 or errno

// Process 1 of a sandbox's PID namespace: runs its steps, drops every right, forks a job, enforces its clock and ends
// it; then serves the next job or exits.
[[noreturn]] void run_init(ChildRun&);
// The process of a job, forked by init: drops the remaining rights, waits for its run and runs it.
[[noreturn]] void run_job(ChildRun&);

std::uint64_t microseconds(const timeval&);

// Opens with O_PATH; fails with ELOOP if any component is a symbolic link. Other users may modify granted folders at
// the same time.
Fd open_without_links(const std::string& path);

// Attacks the sandbox from inside, like a job. Writes a line "layer: successful attack" to `out` for each success. The
// last attack must end the process by a violation.
int run_canary(int out);

}  // namespace mycojobs::sandbox
