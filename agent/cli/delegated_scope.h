// Jobs are limited by control groups, and a shell on a machine with systemd and cgroup v2 has no group that it may
// divide. Commands that start a sandbox of their own therefore move into a scope of systemd with `Delegate=yes`.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"

namespace mycojobs {

// Whether groups with limits of memory and processes can be made below this process' own group, as far as can be seen
// without trying. proc_self_cgroup: the content of /proc/self/cgroup. mount: where version 2 is mounted. Cgroups of
// version 1, and a process in the root group (a container), are left to the launcher: true.
bool has_delegated_cgroup(std::string_view proc_self_cgroup, const std::filesystem::path& mount, bool is_root);

// systemd-run and its arguments, in front of these words. An ordinary user's scope belongs to its own manager.
std::vector<std::string> in_delegated_scope(std::vector<std::string> words, bool is_root);
// The same as a line to type in a shell.
std::string typed_in_delegated_scope(const std::vector<std::string>& words, bool is_root);

// Runs this program again, with the same words, in a delegated scope: if the command starts a sandbox, the sandbox must
// not do without limits, this process has no delegated group, and systemd makes such a scope for this user. Returns
// where one of these is not so. REQUIRES: this process has no other threads and has opened nothing yet.
void enter_delegated_scope(std::string_view command, const Invocation&, char** argv);

// What to add to the error of a sandbox that could not be started for want of a control group: the command to type.
// Empty: the error has another cause, or this machine was not booted with systemd.
std::string scope_remedy(const std::string& error, const std::vector<std::string>& words);

}  // namespace mycojobs
