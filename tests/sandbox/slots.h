// A launcher with one slot, and whether a run was in one that had served before.
#pragma once

#include <string>

#include "fixture.h"

namespace mycojobs::test {

SandboxConfig one_slot();
// Where memory is counted by version 2, the kernel must be able to begin a peak anew: from 6.12 on.
bool slots_are_used_again();

// Process numbers in a slot go on: a job that is not process 2 has one before it. Of a run that has asked "getpid".
int pid_of(const Ran&);
bool reused(const Ran&);

Ran run_in(OwnSandbox&, const std::string& lines);  // and "getpid"
void wait_for_reuse(OwnSandbox&);  // until a slot has come back from a run, so that the next run is in it
bool next_is_in_the_same(OwnSandbox&, const std::string& lines);  // after `lines`: is the next run in the same slot?

}  // namespace mycojobs::test
