// A script host's job as a plain process of the test, without a sandbox: what drivers of several hosts have in common.
#pragma once

#include "mycojobs/outcome.h"

namespace mycojobs::test {

// In the child: these become its descriptors 1 to 3, nothing is read from 0, and nothing else stays open.
void take_places(int out, int err, int channel);
// What a sandbox would say of a process that has ended so.
Outcome outcome_of(int wait_status);

}  // namespace mycojobs::test
