// Functions with which a helper process that is not a job (the proxy, a plugin's host) drops its rights permanently.
// Each helper calls the functions that it needs. Error: io, naming the step; the helper must then exit.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace mycojobs::sandbox {

// Returns the text of the errors of these functions, for further steps of a helper.
std::string describe_failed_step(const std::string& step, int error);

// Sets both limits of a resource (RLIMIT_...) to `max`, or to the present hard limit if that is lower: a process
// without capabilities cannot raise it. `name` is used in the error.
Result<void> limit_resource(int resource, const char* name, rlim_t max);
// Keeps the kernel from writing a core file and from starting the core_pattern program of the host. For the latter the
// limit must be 1, since 0 does not prevent it.
Result<void> forbid_core_dumps();

// Must be called before the capabilities are dropped, since it needs CAP_SETPCAP.
Result<void> empty_bounding_set();
// As root: removes all groups and changes user and group to 65534. If that id is not mapped (a container without
// subordinate ids), or root lacks the capability (the coordinator's unit), the process stays root, without
// capabilities. Other users keep their ids.
Result<void> drop_root();
Result<void> drop_capabilities();

// Forbids ptrace and core dumps, and gaining rights by exec. A change of ids makes a process dumpable again, so this
// must be called after drop_root().
Result<void> forbid_ptrace_and_new_privileges();

// Allows reading files below these folders and reopening `file`; forbids writing, and ptrace and signals to other
// processes. Missing folders are skipped. Has no effect without Landlock in the kernel. Call after
// forbid_ptrace_and_new_privileges().
Result<void> restrict_to_reading(std::span<const char* const> folders, int file);

// Enters new, empty namespaces: network, mounts, UTS, IPC, cgroups; without root within a user namespace. Has no effect
// if the kernel or its settings forbid this, which is harmless for helpers whose seccomp filter (allow_only_calls())
// excludes the related calls. Call before empty_bounding_set().
void enter_empty_namespaces();

// Forbids opening and changing any file; like restrict_to_reading() without folders.
Result<void> forbid_file_access();

// Allows only these system calls, with mmap and mprotect restricted to non-executable memory; any other call kills the
// process. Unknown names are skipped. Call last, after forbid_ptrace_and_new_privileges().
Result<void> allow_only_calls(std::span<const char* const> names);

// Refuses these system calls with EPERM for any arguments; calls of another architecture kill the process. Unknown
// names are skipped. Call after forbid_ptrace_and_new_privileges().
Result<void> refuse_calls(std::span<const char* const> names);

}  // namespace mycojobs::sandbox
