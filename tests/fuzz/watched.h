// Runs targets so that whoever must mend what they find has the input.
#pragma once

#include <string>

#include "fuzz/targets.h"

namespace mycojobs::fuzz {

// What the target says. If the process ends within by a signal, or takes 30 s, the input stands in the file
// found-<target> of the working folder, and a line on stderr says so. One thread.
int run_watched(const Target&, const std::string& input);

}  // namespace mycojobs::fuzz
