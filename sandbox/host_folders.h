// Folders of the host that zygotes and runs see, and whose they are. Asked in the launcher or its children, which see
// the host's own ids.
#pragma once

#include <sys/stat.h>

#include <string>

#include "base/fd.h"
#include "mycojobs/result.h"

namespace mycojobs::sandbox {

// Whose code a script host may run with more rights than a job: that of root and of the agent's user, where nobody else
// can change a byte of it or of the way to it.
//
// What is wrong with one file or folder, and what to do; empty: nothing. sticky_will_do: of a folder on the way, others
// may write into it if its sticky bit lets each change only what is his own.
std::string mistrust(const struct stat&, bool sticky_will_do);
// With each folder and each link on the way, name by name. Names the one that is wrong. What does not exist is trusted:
// there is nothing to run.
std::string mistrust_path(const std::string& path);
// A folder and all that is in it, and where the links in it lead. Takes as long as the folder is large.
std::string mistrust_tree(const std::string& folder);

// A folder of the host, as a detached mount for the namespace of a run that is granted it, or of a zygote.
// With all that is mounted below; nosuid, nodev, read-only unless writable, noexec unless exec. No symbolic link is
// followed: somebody could have put it in place of the granted folder. Errors, naming the path: invalid; unavailable:
// this host is out of a resource.
Result<Fd> open_granted(const std::string& path, bool writable, bool exec);

// A folder that a script host takes its own code from: read-only, with the right to run what is in it. It and each
// folder above must belong to root or to our user, and nobody else may write there, but where the sticky bit keeps each
// to what is his own. Error: invalid, naming the path and what to do.
Result<Fd> open_trusted(const std::string& path);

}  // namespace mycojobs::sandbox
