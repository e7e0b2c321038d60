// The launcher's parent process: waits until every process of every job has ended, and exits last.
//
//   agent --starts--> guardian --fork--> launcher --> zygotes --> inits --> jobs
//
// If the launcher is killed, its zygotes become children of the guardian, which waits for them: the kernel reports the
// end of a PID namespace's init only after all processes in it have ended. The guardian does not wait for the
// launcher's children that access folders (host_children.h): they may hang with their disk and are not processes of a
// job. The guardian's end therefore proves that no process of any job is left: to the agent by its pidfd, and to later
// agents by the lock on SandboxConfig::alive_fd. The pidfds of inits and zygotes prove less: the kernel closes the
// descriptors of a killed init before it kills the other processes.
#pragma once

namespace mycojobs::sandbox {

// Forks. Returns in the child, which becomes the launcher and dies with the guardian.
void fork_launcher();

}  // namespace mycojobs::sandbox
