// CPU time of a tree of processes, for where no cgroup counts it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace mycojobs::sandbox {

// Of the process, all that live below it, and all dead that somebody among them has waited for. 0 if it is gone.
// Microseconds; of the dead to 10 ms each.
std::uint64_t tree_cpu_us(pid_t root);

// The process and all that live below it, 4096 of them at most.
std::vector<pid_t> tree_of(pid_t root);

}  // namespace mycojobs::sandbox
