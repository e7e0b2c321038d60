// The operations whose instructions are counted and compared with counts.txt. Each operation is deterministic: it has
// the same input each time and does not depend on addresses, time, environment or hash seeds.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace mycojobs::instructions {

struct Operation {
  std::string name;  // part.object.direction, a word of counts.txt
  // Runs the operation once and restores the state, so it can be repeated. The returned value keeps the compiler from
  // removing the operation.
  std::function<std::size_t()> once;
};

std::vector<Operation> store_operations();
std::vector<Operation> sandbox_operations();
std::vector<Operation> executor_operations();

// Prints an error and ends the program if `holds` is false. A failed operation would have low counts.
void require(bool condition, const char* message);

}  // namespace mycojobs::instructions
