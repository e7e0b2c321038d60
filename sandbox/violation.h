// What seccomp's user notification says about a call.
#pragma once

#include <linux/seccomp.h>

#include <optional>
#include <string>

#include "mycojobs/outcome.h"

namespace mycojobs::sandbox {

// Called when the listener is readable: somebody did call. Nothing: the caller was interrupted or died meanwhile, and
// which call it was is not known any more.
std::optional<seccomp_notif> receive_call(int listener);

// Of a call that is never innocent. There is no answer to it: whoever made it is killed, it never continues.
Violation describe_call(int listener, const std::optional<seccomp_notif>&);

// "denied: keyctl(0x11, 0x0) by pid 7 (python): job killed"
std::string describe(const Violation&);

}  // namespace mycojobs::sandbox
