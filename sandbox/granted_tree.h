// A folder of the host, as a detached mount for the namespace of a run that is granted it, or of a zygote.
#pragma once

#include <string>

#include "base/fd.h"
#include "mycojobs/result.h"

namespace mycojobs::sandbox {

// With all that is mounted below; nosuid, nodev, read-only unless writable, noexec unless exec. No symbolic link is
// followed: somebody could have put it in place of the granted folder. Error: invalid, naming the path.
Result<Fd> open_granted(const std::string& path, bool writable, bool exec);

// A folder that a script host takes its own code from: read-only, with the right to run what is in it. It and each
// folder above must belong to root or to our user, and nobody else may write there, but where the sticky bit keeps each
// to what is his own. Error: invalid, naming the path and what to do.
Result<Fd> open_trusted(const std::string& path);

}  // namespace mycojobs::sandbox
