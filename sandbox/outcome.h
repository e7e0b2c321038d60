// Result of a run of a job in its sandbox: a value that is set once. The first recorded reason wins.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mycojobs {

enum class RunStatus {
  ok,            // the main process ended with code 0
  exit,          // the main process ended with another code
  signal,        // a signal that the sandbox did not send ended the main process
  timeout_wall,  // exceeded the wall-clock limit and was killed
  timeout_cpu,
  oom,  // exceeded the memory limit and was killed by the kernel
  output_limit,
  file_limit,
  pids_limit,
  violation,    // a system call that no legitimate program makes; killed
  cancelled,    // killed on request
  lost,         // the launcher, the zygote or the lease was lost; the job is not at fault and can run again
  unkillable,   // SIGKILL had no effect; this is not the end of the run
  setup_error,  // the sandbox could not be built, and the job was not started
};
std::string_view to_string(RunStatus);

// The system call for which a run was killed.
struct Violation {
  std::string syscall;  // name, or "syscall 999"
  std::array<std::uint64_t, 6> args{};
  std::int32_t pid = 0;  // pid in the job's namespace
  std::string comm;
};

// The step at which the set-up of a sandbox failed.
struct SetupError {
  std::string step;    // name in the list of steps
  int error = 0;       // errno
  std::string remedy;  // action for the operator
};

struct StepTime {
  std::string step;
  std::uint32_t us = 0;
};
// Steps of Outcome::setup that report the use of a prepared sandbox or of a warm process in one, with the waiting time.
// The text `prewarmed` is kept for compatibility.
inline constexpr std::string_view kPrewarmedStep = "prewarmed", kWarmStep = "warm";

// Resources that a run has used.
struct Usage {
  std::uint64_t wall_us = 0, user_us = 0, system_us = 0;
  std::uint64_t memory_peak_bytes = 0;  // 0 if not measured
  std::uint32_t pids_peak = 0;          // 0 if not measured
  std::uint64_t stdout_bytes = 0, stderr_bytes = 0;
};

// Layer names as in Outcome::layers (which adds the ABI to landlock after a colon). The first layers are the namespaces
// in which a zygote is started.
inline constexpr const char* kNamespaceLayers[] = {"userns", "pidns", "mountns", "netns", "ipcns", "utsns"};

inline constexpr std::string_view kLayers[] = {"userns",   "pidns",    "mountns",       "netns",      "ipcns",
                                               "utsns",    "cgroupns", "seccomp",       "caps",       "nnp",
                                               "landlock", "uid",      "cgroup:memory", "cgroup:pids"};

struct Outcome {
  RunStatus status = RunStatus::lost;
  // Set with the status lost if the run was not started, and cannot be started until the problem in `reason` is fixed.
  bool never_started = false;
  int exit_code = 0;  // valid for ok, exit
  int signal = 0;     // valid for signal
  std::optional<Violation> violation;
  std::optional<SetupError> setup_error;
  Usage usage;
  std::uint32_t stragglers = 0;  // minimum number of processes that outlived the main process and were killed
  // Active layers of this run: userns pidns mountns netns ipcns utsns cgroupns landlock:7 ...
  std::vector<std::string> layers;
  std::vector<StepTime> setup;
  std::string reason;                        // one line for users; empty for ok
  std::optional<std::uint32_t> reused = {};  // for a warm run: number of runs that the process served before
  // Lines for the job's log: requests that the proxy rejected, findings of a learning run.
  std::vector<std::string> notes;
};

}  // namespace mycojobs
