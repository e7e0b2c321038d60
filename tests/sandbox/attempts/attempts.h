// Runs the attempts of a hostile job, which are functions with a name. The attempt host runs an attempt in the sandbox,
// where it must fail. As a positive control, a test runs the same attempt outside of the sandbox, where it must
// succeed. The control detects attempts that fail for another reason than the sandbox.
#pragma once

#include <string>

namespace mycojobs::test {

// Runs one attempt, for example "connect_tcp 127.0.0.1 6379". Returns "ok", the name of an errno ("EACCES"), or another
// text that depends on the attempt. Returns "no such attempt" for an unknown name.
std::string run_attempt(const std::string& line);
// Runs several attempts, one per line. Returns "line: result\n" for each.
std::string run_all_attempts(const std::string& lines);

}  // namespace mycojobs::test
