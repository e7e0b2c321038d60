// Quotes words of commands that users copy from a message into a shell.
#pragma once

#include <string>
#include <string_view>

namespace mycojobs {

// Returns the word as a POSIX shell reads it, quoted if needed. A backtick becomes a printf in double quotes, since
// messages enclose commands in backticks.
inline std::string quote_for_shell(std::string_view word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) return std::string(word);
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'') {
      out += "'\\''";
    } else if (c == '`') {
      out += "'\"$(printf '\\140')\"'";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace mycojobs
