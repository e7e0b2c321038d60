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
  std::string program;                           // a path
  std::vector<std::string> arguments;            // without argv[0]
  std::vector<std::string> environment;          // NAME=value; no variable is inherited
  std::vector<std::pair<int, int>> descriptors;  // {number here, number in the child}; all others must be close-on-exec
  std::string argv0;                             // default: program
};

struct Child {
  pid_t pid = -1;
  Fd pidfd;  // readable after the end of the process; the owner reaps it with waitid(P_PIDFD)
};

// Starts a program. Signals of the child are reset and unblocked. The child has a session of its own, so that signals
// of a terminal (Ctrl-C) or timeout(1) reach only the caller's process group; the caller must end the child. Error `io`
// names the program.
Result<Child> spawn(const SpawnSpec&);
// Returns the exit code, or 128 + signal. Blocks.
int wait_child(Child&);

}  // namespace mycojobs
