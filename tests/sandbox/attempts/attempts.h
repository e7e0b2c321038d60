// The attempts of a hostile job: small functions, called by name. The attempt host runs an attempt inside the sandbox.
// A test runs the same function outside as its positive twin, which detects an attempt that fails for the wrong reason.
#pragma once

#include <string>

namespace mycojobs::test {

// Runs one attempt. Example: "connect_tcp 127.0.0.1 6379" returns "ok", the name of an errno ("EACCES"), or the result
// that was found. An unknown name returns "no such attempt".
std::string attempt(const std::string& line);
// Runs several attempts, one per line. Returns "line: result\n" for each.
std::string attempt_all(const std::string& lines);

}  // namespace mycojobs::test
