// The level of the program's log, which changes when the configuration is reloaded.
#pragma once

#include "base/log.h"

namespace mycojobs {

void set_log_level(LogLevel);  // thread-safe

}  // namespace mycojobs
