// Raw system calls by name, for rows that say "with any arguments".
#pragma once

#include <string>
#include <vector>

namespace mycojobs::test {

long call_number(const std::string& name);  // -1: not known here
// words: "call", name, up to six numbers. "ok" or the name of the errno.
std::string call_by_name(const std::vector<std::string>& words);

}  // namespace mycojobs::test
