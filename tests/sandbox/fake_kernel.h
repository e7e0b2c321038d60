// Simulates a kernel that lacks features: ptrace replaces the results of selected system calls in the process tree of
// the test. Tests use it for hosts without Landlock, without user namespaces, or with a restrictive AppArmor profile.
// ptrace is used instead of a seccomp supervisor, because jobs install a supervisor and the kernel permits only one for
// each process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mycojobs::test {

struct Fault {
  std::string call_name;
  long result = 0;  // Returned value, or -errno.
  // The fault applies only to calls with (argument & mask) == value. Mask 0 and value 0 select all calls. `argument` is
  // the index of the argument.
  unsigned argument = 0;
  std::uint64_t mask = 0, value = 0;
  // The fault applies only to files whose name contains `path`. Either `path_argument` or `descriptor_argument` is the
  // index of the argument that refers to the file.
  std::string path = {};
  int path_argument = -1, descriptor_argument = -1;
};

// Runs `body` and all its processes in a traced child, and returns the result of `body`. Requires the permission to
// trace own processes.
std::string run_with_faults(const std::vector<Fault>&, const std::function<std::string()>& body);

}  // namespace mycojobs::test
