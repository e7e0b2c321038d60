// What a hostile job would try: small functions by name. The attempt host runs them inside the sandbox; a test runs the
// same function outside as its positive twin, so that one which fails for the wrong reason is noticed.
#pragma once

#include <string>

namespace mycojobs::test {

// "connect_tcp 127.0.0.1 6379" -> "ok", the name of an errno ("EACCES"), or what was found. Unknown: "no such attempt".
std::string attempt(const std::string& line);
// Several, one a line; answers "line: result\n" for each.
std::string attempt_all(const std::string& lines);

}  // namespace mycojobs::test
