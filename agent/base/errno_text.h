// "EACCES (Permission denied)" for messages that a person reads.
#pragma once

#include <cstring>
#include <string>

namespace mycojobs {

inline std::string errno_text(int error) {
  const char* name = ::strerrorname_np(error);
  return std::string(name ? name : std::to_string(error)) + " (" + ::strerrordesc_np(error) + ")";
}

}  // namespace mycojobs
