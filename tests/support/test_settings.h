// Settings of tests in environment variables.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

namespace mycojobs::test {

// Returns the number in the variable, or the default value if the variable is not set or is empty.
inline std::uint64_t read_setting(const char* variable, std::uint64_t default_value) {
  const char* text = std::getenv(variable);
  return text == nullptr || *text == '\0' ? default_value : std::strtoull(text, nullptr, 10);
}

// Returns the number in the variable, or a random number. Prints the number, so that a failed run can be repeated.
inline std::uint64_t choose_seed(const char* variable) {
  const std::uint64_t seed = read_setting(variable, std::random_device{}());
  std::cout << variable << '=' << seed << std::endl;
  return seed;
}

}  // namespace mycojobs::test
