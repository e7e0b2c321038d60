// Formats an errno for messages: "EACCES (Permission denied)".
#pragma once

#include <cstring>
#include <string>

namespace mycojobs {

inline std::string errno_text(int error) {
  const char* name = ::strerrorname_np(error);
  if (name == nullptr) return "errno " + std::to_string(error);  // unknown number
  return std::string(name) + " (" + ::strerrordesc_np(error) + ")";
}

}  // namespace mycojobs
