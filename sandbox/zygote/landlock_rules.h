// The Landlock rules of a job: the domain that confines it, and the domain that separates it from init. The system
// calls are in sandbox/landlock.h; the rules of the product's own programs are in sandbox/privilege_drop.cpp. All
// functions affect only the calling process.
#pragma once

#include "sandbox/sandbox.h"

namespace mycojobs::sandbox {

// Restricts the calling process permanently: it may read the system, write the sandbox's own folders and the granted
// paths, and execute files if `exec` is set. Rights that do not exist in the kernel's `abi` are not restricted. Returns
// 0 or an errno.
int restrict_with_landlock(int abi, bool exec, const Grants& grants);

// Creates the domain of a job below the domain of init, so that the job can neither trace nor signal init. Returns a
// ruleset descriptor that the caller owns, or -errno. The domain forbids nothing that is not forbidden already; only
// the separation matters.
int make_job_domain(int abi);

}  // namespace mycojobs::sandbox
