// What happened to a run of a job in its sandbox: a value, set once. The first recorded reason wins.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mycojobs {

enum class RunStatus {
  ok,            // the main process ended with 0
  exit,          // it ended with another code
  signal,        // a signal ended it that we did not send
  timeout_wall,  // over the wall-clock limit: killed
  timeout_cpu,
  oom,  // over the memory limit: killed by the kernel
  output_limit,
  file_limit,
  pids_limit,
  violation,    // a system call that is never innocent: killed
  cancelled,    // killed on request
  lost,         // launcher, zygote or lease went away: says nothing about the job; run it again
  unkillable,   // SIGKILL had no effect: not an end
  setup_error,  // the sandbox could not be built: the job never started
};
std::string_view word(RunStatus);

struct Violation {
  std::string syscall;  // name, or "syscall 999"
  std::array<std::uint64_t, 6> args{};
  std::int32_t pid = 0;  // as the job sees it
  std::string comm;
};

struct SetupError {
  std::string step;    // as named in the list of steps
  int error = 0;       // errno
  std::string remedy;  // what an operator can do
};

struct StepTime {
  std::string step;
  std::uint32_t us = 0;
};
// The steps of Outcome::setup that say that the run was given a sandbox that had been set up before, or a warm process
// in one: how long it waited for it. The name `prewarmed` is older than the word.
inline constexpr std::string_view kPrewarmedStep = "prewarmed", kWarmStep = "warm";

struct Usage {
  std::uint64_t wall_us = 0, user_us = 0, system_us = 0;
  std::uint64_t memory_peak_bytes = 0;  // 0: not measured
  std::uint32_t pids_peak = 0;          // 0: not measured
  std::uint64_t stdout_bytes = 0, stderr_bytes = 0;
};

struct Outcome {
  RunStatus status = RunStatus::lost;
  bool unstarted = false;  // lost: nothing of it has run, and nothing will before what `reason` names is there
  int exit_code = 0;       // valid for ok, exit
  int signal = 0;          // valid for signal
  std::optional<Violation> violation;
  std::optional<SetupError> setup_error;
  Usage usage;
  std::uint32_t stragglers = 0;  // processes still alive when the main one ended, then killed; at least so many
  std::vector<std::string>
      layers;  // in force for this run: userns pidns mountns netns ipcns utsns cgroupns landlock:7 ...
  std::vector<StepTime> setup;
  std::string reason;                        // one line for a person; empty for ok
  std::optional<std::uint32_t> reused = {};  // of a warm run: how many its process had served before
  std::vector<std::string> notes;  // lines for the job's log: what the proxy refused, what a learning run used
};

}  // namespace mycojobs
