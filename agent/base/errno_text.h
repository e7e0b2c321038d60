// "EACCES (Permission denied)" for messages that a person reads.
#pragma once

#include <cstring>
#include <string>

namespace mycojobs {

inline std::string errno_text(int error) {
  const char* name = ::strerrorname_np(error);
  if (name == nullptr) return "errno " + std::to_string(error);  // a number that means nothing here
  return std::string(name) + " (" + ::strerrordesc_np(error) + ")";
}

}  // namespace mycojobs
