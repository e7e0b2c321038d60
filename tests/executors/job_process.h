// A job of a script host as a plain process of the test, without a sandbox. Shared by the drivers of several hosts.
#pragma once

#include "sandbox/outcome.h"

namespace mycojobs::test {

// Called in the child process. Makes the arguments descriptors 1 to 3, connects descriptor 0 to an empty input, and
// closes all other descriptors.
void redirect_descriptors(int out, int err, int channel);
// Returns the outcome that a sandbox would report for this wait status.
Outcome to_outcome(int wait_status);

}  // namespace mycojobs::test
