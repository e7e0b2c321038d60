// A launcher with one sandbox, and whether a run was in one that had served before.
#pragma once

#include <string>

#include "fixture.h"

namespace mycojobs::test {

SandboxConfig one_sandbox();
// That of memory. In version 2 from Linux 6.12 on: before, a run that uses more than a little is the last in its
// sandbox.
bool a_peak_begins_anew();

// Process numbers in a sandbox go on: a job that is not process 2 has one before it. Of a run that has asked "getpid".
int pid_of(const Ran&);
bool reused(const Ran&);

Ran run_in(OwnSandbox&, const std::string& lines);  // and "getpid"
void wait_for_reuse(OwnSandbox&);  // until a sandbox has come back from a run, so that the next run is in it
bool next_is_in_the_same(OwnSandbox&, const std::string& lines);  // after `lines`: is the next run in the same sandbox?

}  // namespace mycojobs::test
