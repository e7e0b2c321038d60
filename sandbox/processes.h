// Information about processes from /proc: the process of a pidfd, and process trees.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mycojobs::sandbox {

// Returns the number after the word `key` in a file of /proc.
std::optional<long> read_number_after(const std::string& path, const std::string& key);

// Returns the pid of a pidfd's process in this namespace, or -1 if the process was reaped.
std::optional<long> read_pid(int pidfd);

// Returns the process and its descendants, at most 4096.
std::vector<pid_t> list_process_tree(pid_t root);

// Returns the CPU time of a process tree in microseconds, if no cgroup counts it: of the process, its descendants, and
// ended processes that one of them has waited for (with a resolution of 10 ms). 0 if the process does not exist.
std::uint64_t read_tree_cpu_us(pid_t root);

// Describes for the operator the processes because of which a run does not end: "process 4243 (python, state D)", for a
// few processes below init, or for init itself if no other process is left. States are those of proc(5): D waits in the
// kernel, Z is dead but held by a tracer.
std::string describe_survivors(pid_t init);

}  // namespace mycojobs::sandbox
