// A kernel that answers otherwise: the test's own process tree is traced, and chosen calls get a chosen answer instead
// of the kernel's. So a host without Landlock, without user namespaces, or with an AppArmor that says no, is at hand.
// A seccomp supervisor could not do it: jobs bring their own, and the kernel has one for each process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mycojobs::test {

struct Fault {
  std::string call;  // name
  long answer = 0;   // a value, or -errno
  // Only where (argument & mask) == value; mask 0: whatever the arguments.
  unsigned argument = 0;
  std::uint64_t mask = 0, value = 0;
  // Only where the file has this in its name; which argument holds it, as a path or as a descriptor.
  std::string path = {};
  int path_argument = -1, descriptor_argument = -1;
};

// Runs `body` in a child with all that it starts, and returns what it returned. For any user who may trace its own.
std::string on_kernel_with(const std::vector<Fault>&, const std::function<std::string()>& body);

}  // namespace mycojobs::test
