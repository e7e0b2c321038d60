// Starts helper programs: posix_spawn with an explicit environment and explicit descriptors. None of our code runs
// between fork and exec, so that a threaded process may call it.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "mycojobs/result.h"

namespace mycojobs {

struct SpawnSpec {
  std::string program;                           // a path
  std::vector<std::string> arguments;            // without argv[0]
  std::vector<std::string> environment;          // NAME=value; nothing is inherited
  std::vector<std::pair<int, int>> descriptors;  // {ours, theirs}; all others must be close-on-exec
  std::string argv0;                             // default: program
};

struct Child {
  pid_t pid = -1;
  Fd pidfd;  // readable when it has ended; the owner waits for it with waitid(P_PIDFD)
};

// Signals of the child are reset and unblocked. It has a session of its own: what a terminal (Ctrl-C) or timeout(1)
// sends to our process group is for us alone, and we end it when we are done with it. Error: io, naming the program.
Result<Child> spawn(const SpawnSpec&);
// Exit code, or 128 + signal. Blocks.
int wait_child(Child&);

}  // namespace mycojobs
