// A launcher with one sandbox, and functions that report whether a run used a sandbox of an earlier run.
#pragma once

#include <string>

#include "fixture.h"

namespace mycojobs::test {

SandboxConfig make_single_sandbox_config();  // Permits at most one prewarmed sandbox.
// Reports whether the peak of memory use can be reset. Version 2 of cgroups supports this since Linux 6.12. On older
// kernels, a run that uses more than a little memory is the last run in its sandbox.
bool can_reset_memory_peak();

// Returns the process id of a job that has run "getpid". Ids are not reset between the runs of a sandbox, so the first
// job has id 2 and later jobs have higher ids.
int parse_pid(const RunResult&);
bool is_reused(const RunResult&);

RunResult run_with_getpid(DedicatedSandbox&, const std::string& lines);  // Runs `lines` and "getpid".
// Waits until a sandbox is free after a run, so that the next run uses it.
void wait_for_reuse(DedicatedSandbox&);
// Runs `lines` in a reused sandbox. Reports whether the next run uses the same sandbox.
bool next_run_uses_same_sandbox(DedicatedSandbox&, const std::string& lines);

}  // namespace mycojobs::test
