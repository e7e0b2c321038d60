// Makes raw system calls by name, to test calls with any arguments.
#pragma once

#include <string>
#include <vector>

namespace mycojobs::test {

// Returns the number of a system call, or -1 if the name is unknown. A name that is a number is returned as a number.
long resolve_call_number(const std::string& name);
// Makes a system call. `words` contains "call", the name of the system call, and up to six numbers as arguments.
// Returns "ok" or the name of errno.
std::string call_by_name(const std::vector<std::string>& words);

}  // namespace mycojobs::test
