// Texts of a plugin for people: one printable line of UTF-8.
#pragma once

#include <string>
#include <string_view>

#include "domain/utf8.h"

namespace mycojobs::plugin {

inline std::string printable_line(std::string_view text, std::size_t max = 500) {
  std::string out = to_utf8(text.substr(0, max));
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return text.size() > max ? out + "..." : out;
}

}  // namespace mycojobs::plugin
