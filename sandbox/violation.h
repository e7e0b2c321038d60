// Reads what seccomp's user notification says about a call that is never innocent.
#pragma once

#include <optional>

#include "mycojobs/outcome.h"

namespace mycojobs::sandbox {

// Nothing: the caller died meanwhile. There is no answer to the call: whoever made it is killed, it never continues.
std::optional<Violation> read_violation(int listener);

}  // namespace mycojobs::sandbox
