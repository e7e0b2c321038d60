// Process 1 of a pid namespace, as in a container: whoever is orphaned there becomes its child, and a signal without a
// handler does not reach it.
#pragma once

namespace mycojobs {

// Call it first in main(), before there are threads. In process 1 it forks and returns in the child alone, which goes
// on as a program like any other; nobody's exit status can be taken from it. Process 1 stays behind:
//
//   signals   passes on what it is sent by processes; what a terminal sends goes to the child anyway
//   orphans   reaps each
//   end       leaves with the child's exit code (128 + signal), and the kernel ends what is left in the namespace
//
// Elsewhere it does nothing. If it cannot fork it says so and goes on in process 1, which then reaps nobody.
void leave_first_process_behind();

}  // namespace mycojobs
