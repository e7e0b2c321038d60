// Starts helper programs: posix_spawn with an explicit environment and explicit descriptors. No code of this program
// runs between fork and exec, so that processes with threads may call it.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace mycojobs {

struct SpawnSpec {
  std::string program;                   // path of the executable file
  std::vector<std::string> arguments;    // without argv[0]
  std::vector<std::string> environment;  // NAME=value; no variable is inherited
  // Pairs of a descriptor of this process and its number in the child. All other descriptors must be close-on-exec.
  std::vector<std::pair<int, int>> inherited_descriptors;
  std::string argv0;  // if empty, argv[0] is `program`
};

struct Child {
  pid_t pid = -1;
  Fd pidfd;  // readable after the end of the process; the owner reaps it with waitid(P_PIDFD)
};

// Starts a program. Signals of the child are reset and unblocked. The child has a session of its own, so that signals
// of a terminal (Ctrl-C) or timeout(1) reach only the caller's process group; the caller must end the child. Error `io`
// names the program.
Result<Child> spawn(const SpawnSpec&);
// Blocks until the child has ended, and reaps it. Returns the exit code, 128 + signal number, or -1 after an error.
int wait_child(Child&);

}  // namespace mycojobs
