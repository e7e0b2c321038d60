// A problem with one field of a record or of a policy, found by a decoder or a check.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace mycojobs {

struct FieldProblem {
  std::string field;
  std::string message;  // "timeout: -1 is not a whole number from 1 to 4294967295"
};

// Maximum number of problems in a list or in a message: further ones would not help the reader.
inline constexpr std::size_t kMaxFieldProblems = 16;

// Returns the messages in one line, separated by "; ".
std::string join(const std::vector<FieldProblem>&);

}  // namespace mycojobs
