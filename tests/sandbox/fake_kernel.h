// A kernel with injected results: ptrace replaces the results of selected system calls in the process tree of the test.
// This simulates hosts without Landlock, without user namespaces, or with a restrictive AppArmor profile. A seccomp
// supervisor cannot be used: jobs install a supervisor, and the kernel permits one for each process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mycojobs::test {

struct Fault {
  std::string call;  // name of the system call
  long result = 0;   // returned value, or -errno
  // The fault applies only where (argument & mask) == value. With mask 0 it applies to all arguments.
  unsigned argument = 0;
  std::uint64_t mask = 0, value = 0;
  // The fault applies only to files whose name contains `path`. Either `path_argument` or `descriptor_argument` is the
  // index of the argument that refers to the file.
  std::string path = {};
  int path_argument = -1, descriptor_argument = -1;
};

// Runs `body` and all its processes in a traced child, and returns the result of `body`. Works for every user who may
// trace their own processes.
std::string run_on_kernel_with(const std::vector<Fault>&, const std::function<std::string()>& body);

}  // namespace mycojobs::test
