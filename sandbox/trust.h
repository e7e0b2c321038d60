// Whose code a script host may run with more rights than a job: that of root and of the agent's user, where nobody else
// can change a byte of it or of the way to it. Asked in the launcher, which sees the host's own ids.
#pragma once

#include <sys/stat.h>

#include <string>

namespace mycojobs::sandbox {

// What is wrong with one file or folder, and what to do; empty: nothing. sticky_will_do: of a folder on the way, others
// may write into it if its sticky bit lets each change only what is his own.
std::string mistrust(const struct stat&, bool sticky_will_do);
// With each folder and each link on the way, name by name. Names the one that is wrong. What does not exist is trusted:
// there is nothing to run.
std::string mistrust_path(const std::string& path);
// A folder and all that is in it, and where the links in it lead. Takes as long as the folder is large.
std::string mistrust_tree(const std::string& folder);

}  // namespace mycojobs::sandbox
