// Raw system calls by name, for rows that claim "with any arguments".
#pragma once

#include <string>
#include <vector>

namespace mycojobs::test {

long call_number(const std::string& name);  // returns -1 if the name is unknown
// Makes a system call. `words`: "call", the name, and up to six numbers. Returns "ok" or the name of errno.
std::string call_by_name(const std::vector<std::string>& words);

}  // namespace mycojobs::test
