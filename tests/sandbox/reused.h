// A launcher with one sandbox, and functions that report whether a run used a sandbox of an earlier run.
#pragma once

#include <string>

#include "fixture.h"

namespace mycojobs::test {

SandboxConfig one_sandbox();
// Reports whether the peak of memory use can be reset. Version 2 of cgroups supports this since Linux 6.12. On older
// kernels, a run that uses more than a little memory is the last run in its sandbox.
bool a_peak_begins_anew();

// The process id of a job that has run "getpid". Ids are not reset between the runs of a sandbox, so a job with an id
// other than 2 is not the first.
int parse_pid(const RunResult&);
bool is_reused(const RunResult&);

RunResult run_in(OwnSandbox&, const std::string& lines);  // runs `lines` and "getpid"
void wait_for_reuse(OwnSandbox&);  // waits until a sandbox is free after a run, so that the next run uses it
bool next_is_in_the_same(OwnSandbox&, const std::string& lines);  // whether the run after `lines` uses the same sandbox

}  // namespace mycojobs::test
