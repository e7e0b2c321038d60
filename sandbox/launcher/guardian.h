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

#include <csignal>

namespace mycojobs::sandbox {

inline constexpr int kAgentSocket = 3;    // socket of the launcher; everything ends when it is closed
inline constexpr int kGuardianAlive = 4;  // copy of alive_fd, if the agent has one
inline constexpr int kGuardianIds = 5;    // registry entry of the jobs' ids (id_map.h), if any

// Signal from the agent to the guardian: kill the launcher, which does not exit in time. The guardian ignores other
// signals; those of a service manager are handled by the agent.
inline constexpr int kKillLauncher = SIGUSR2;

// Forks. Returns in the child, which becomes the launcher and dies with the guardian.
void fork_launcher();

}  // namespace mycojobs::sandbox
