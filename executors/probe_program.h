// Asks a program on this host who it is.
#pragma once

#include <string>
#include <vector>

#include "mycojobs/result.h"

namespace mycojobs {

// Runs it with an empty environment and /dev/null as its input; the first line that is not blank within 30 s. Error
// unsupported: it cannot be started, did not answer, or left with another code than 0; names it and what it wrote.
Result<std::string> probe_program(const std::string& program, const std::vector<std::string>& arguments);

}  // namespace mycojobs
