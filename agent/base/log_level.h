// The level of the program's log, which a reload of the configuration changes.
#pragma once

#include "base/log.h"

namespace mycojobs {

void set_log_level(LogLevel);  // thread-safe

}  // namespace mycojobs
