// What a script host says of itself when it is started with --version.
#pragma once

#include <string>
#include <string_view>

#include "mycojobs/result.h"

namespace mycojobs {

// The first line that the program writes. executor and remedy: for messages. Waits 30 s at most. Error unsupported: it
// cannot be started, fails, or does not answer; io.
Result<std::string> probe_program(std::string_view executor, const std::string& program, std::string_view remedy);

}  // namespace mycojobs
