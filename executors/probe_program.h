// Queries the version of a program on this host.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace mycojobs {

// Runs the program with an empty environment and /dev/null as stdin, and returns the first non-blank line of its
// output. Error unsupported: the program cannot be started, does not answer within 30 s, or exits with a code other
// than 0; the message names the program and its output.
Result<std::string> probe_program(const std::string& program, const std::vector<std::string>& arguments);

}  // namespace mycojobs
