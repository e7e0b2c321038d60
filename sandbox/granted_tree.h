// A folder of the host, as a detached mount for the namespace of a run that is granted it.
#pragma once

#include <string>

#include "base/fd.h"
#include "mycojobs/result.h"

namespace mycojobs::sandbox {

// With all that is mounted below; nosuid, nodev, read-only unless writable, noexec unless exec. No link is followed on
// the way: a folder that somebody could have replaced by one is not the one that was granted. Error: invalid, naming
// it.
Result<Fd> open_granted(const std::string& path, bool writable, bool exec);

}  // namespace mycojobs::sandbox
