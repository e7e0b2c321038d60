// Runs targets so that a failing input is saved.
#pragma once

#include <string>

#include "fuzz/targets.h"

namespace mycojobs::fuzz {

// Returns the value of the target. If a signal ends the process or the target runs for 30 s, saves the input in the
// file found-<target> in the working folder and prints a line on stderr. Not thread-safe.
int run_watched(const Target&, const std::string& input);

}  // namespace mycojobs::fuzz
