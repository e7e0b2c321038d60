// The operations whose instructions are counted and compared with counts.txt. Each is deterministic: the same
// input every time, nothing of addresses, time, environment or the seeds of hashes in what it does.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace mycojobs::instructions {

struct Operation {
  std::string name;  // room.what.direction, a word of counts.txt
  // Once. Leaves all as it was, so that it can be done again; what it returns is kept from being optimised away.
  std::function<std::size_t()> once;
};

std::vector<Operation> store_operations();
std::vector<Operation> sandbox_operations();
std::vector<Operation> executor_operations();

// An operation that could not do its work would be a cheap one: says so and ends the program.
void require(bool holds, const char* what);

}  // namespace mycojobs::instructions
