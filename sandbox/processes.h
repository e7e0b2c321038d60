// What /proc says about processes: one behind a descriptor, and the tree below one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mycojobs::sandbox {

// In a file of /proc, the number behind the word `key`.
std::optional<long> number_after(const std::string& path, const std::string& key);

// The process behind a pidfd, as our own namespace numbers it; -1: it has been reaped.
std::optional<long> pid_of(int pidfd);

// The process and all that live below it, 4096 of them at most.
std::vector<pid_t> tree_of(pid_t root);

// CPU time, for where no cgroup counts it: of the process, all that live below it, and all dead that somebody among
// them has waited for. 0 if it is gone. Microseconds; of the dead to 10 ms each.
std::uint64_t tree_cpu_us(pid_t root);

// For the operator, which processes keep a run from ending: "process 4243 (python, state D)", and so on for the
// processes below init, or init itself if none is seen; a few at most. States as in proc(5): D waits in the kernel, Z
// is dead and held by a tracer.
std::string describe_survivors(pid_t init);

}  // namespace mycojobs::sandbox
