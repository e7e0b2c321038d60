// How a helper process that is no job (the proxy, a plugin's host) gives up its rights. Each function is one part; each
// helper calls those that it needs. They hold for this process, for good. Error: io, naming the step; the helper must
// not run then.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "mycojobs/result.h"

namespace mycojobs::sandbox {

// In this order: dropping from the bounding set needs a capability.
Result<void> empty_bounding_set();
// As root: no groups, group and user 65534. Where that id is not mapped (a container without subordinate ids), or root
// has no capability for it (the coordinator's unit), root stays, without capabilities: as an ordinary user stays what
// it is.
Result<void> leave_root();
Result<void> drop_capabilities();

// No ptrace of it, no core (a credential change makes it dumpable again, so after the ids); nothing gained at exec.
Result<void> hide_and_keep_down();

// Reads files below these folders, and this one open file again; writes nothing; no ptrace and no signal to others.
// Folders that do not exist are passed over. Where the kernel has no Landlock nothing happens. After
// hide_and_keep_down().
Result<void> read_only_below(std::span<const char* const> folders, int file);

// Namespaces of its own, with nothing in them: network, mounts, names, objects of IPC, control groups; as an ordinary
// user, within a user namespace. Where the kernel or its settings refuse that, nothing happens: what needs no call that
// reaches those (allow_only_calls()) loses nothing. Before the bounding set.
void leave_namespaces();

// Nothing below any folder can be opened or changed. As read_only_below() without a folder.
Result<void> reach_no_files();

// Of all calls these alone are left, mmap and mprotect without PROT_EXEC; any other one kills the process. Names that
// this architecture does not know are passed over. After hide_and_keep_down(); the last of all.
Result<void> allow_only_calls(std::span<const char* const> names);

// Each of these calls is EPERM from here on, whatever the arguments; another architecture's calls kill. Names that this
// architecture does not know are passed over. After hide_and_keep_down().
Result<void> refuse_calls(std::span<const char* const> names);

}  // namespace mycojobs::sandbox
