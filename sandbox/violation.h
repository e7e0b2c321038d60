// Reads what seccomp's user notification says about a call that is never innocent.
#pragma once

#include "mycojobs/outcome.h"

namespace mycojobs::sandbox {

// Called when the listener is readable: somebody did call. If the caller was interrupted or died meanwhile, the name of
// the call is not known any more. There is no answer to the call: whoever made it is killed, it never continues.
Violation read_violation(int listener);

}  // namespace mycojobs::sandbox
