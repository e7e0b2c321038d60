// For steps, which return 0 or an errno.
#pragma once

#include <cerrno>

namespace mycojobs::sandbox {

inline int error_if(bool failed) { return failed ? errno : 0; }

}  // namespace mycojobs::sandbox
