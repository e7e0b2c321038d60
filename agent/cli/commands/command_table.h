// The table of commands. Parsing, help, completion and the manual's completeness test are derived from it.
#pragma once

#include <vector>

#include "cli/invocation.h"

namespace mycojobs {

const std::vector<Command>& commands();

}  // namespace mycojobs
