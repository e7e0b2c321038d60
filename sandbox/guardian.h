// The launcher's parent: waits until every process of every job is gone, and leaves last.
//
//   agent --starts--> guardian --fork--> launcher --> zygotes --> inits --> jobs
//
// A killed launcher leaves its zygotes to the guardian, who waits for them: the kernel reports to nobody the end of a
// pid namespace's init before everything in it is gone. It does not wait for what touches folders in the launcher's
// place (host_children.h), which may hang with its disk, and is no process of a job. So the guardian's end is the proof
// that no process of any job is left: to the agent by its pidfd, to whoever comes after the agent by the lock on
// SandboxConfig::alive_fd. The descriptors of inits and zygotes alone prove less: the kernel closes those of a killed
// init before it kills the rest.
#pragma once

#include <csignal>

namespace mycojobs::sandbox {

inline constexpr int kAgentSocket = 3;    // the launcher's; its end is the end of all
inline constexpr int kGuardianAlive = 4;  // the guardian's alive_fd, if the agent has one
inline constexpr int kGuardianIds = 5;    // the entry of its jobs' ids (idmap.h), if they have any

// To the guardian, from the agent: kill the launcher, which does not leave when it should. Any other signal means
// nothing to it: a service manager's are the agent's to interpret.
inline constexpr int kKillLauncher = SIGUSR2;

// Returns in the child, which is the launcher and dies with its guardian.
void leave_guardian_behind();

}  // namespace mycojobs::sandbox
