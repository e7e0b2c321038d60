// Support for running as process 1 of a pid namespace, as in a container: orphaned processes become children of process
// 1, and signals without a handler do not reach it.
#pragma once

namespace mycojobs {

// Must be called first in main(), before threads are created. In process 1 it forks and returns only in the child,
// which continues as a normal program: the reaping of orphans does not interfere with the exit status of its children.
// Process 1 handles:
//
//   signals   forwards signals from processes; signals of a terminal reach the child directly
//   orphans   reaps them
//   end       exits with the child's exit code (128 + signal); the kernel then ends the rest of the namespace
//
// In any other process it does nothing. If the fork fails, it reports that and returns in process 1, which then reaps
// no orphans.
void start_as_container_init();

}  // namespace mycojobs
