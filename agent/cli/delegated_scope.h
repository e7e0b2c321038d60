// Jobs are limited by control groups, but on a machine with systemd and cgroup v2 a shell has no delegated group.
// Commands that start a sandbox therefore move into a systemd scope with `Delegate=yes`.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cli/invocation.h"

namespace mycojobs {

// Returns true if groups with limits of memory and processes can probably be created below the group of this process.
// proc_self_cgroup: the content of /proc/self/cgroup. mount: mount point of cgroup v2. Returns true for cgroup v1 and
// for a process in the root group (a container), which the launcher handles.
bool has_delegated_cgroup(std::string_view proc_self_cgroup, const std::filesystem::path& mount, bool is_root);

// Returns the arguments with systemd-run and its own arguments as a prefix. The scope of an ordinary user belongs to
// the user's manager.
std::vector<std::string> prepend_scope_command(std::vector<std::string> arguments, bool is_root);
// Returns the arguments of prepend_scope_command() as a shell command line.
std::string format_scope_command(const std::vector<std::string>& arguments, bool is_root);

// Executes this program again, with the same arguments, in a delegated scope. Does so only if the command starts a
// sandbox that needs limits, this process has no delegated group, and systemd permits such a scope. Otherwise returns.
// REQUIRES: this process has no other threads and no open files.
void enter_delegated_scope(std::string_view command, const Invocation&, char** argv);

// Returns a hint for an error of a sandbox that lacks a control group: the command to type. Empty: the error has
// another cause, or this machine was not booted with systemd.
std::string make_scope_remedy(const std::string& error, const std::vector<std::string>& arguments);

}  // namespace mycojobs
