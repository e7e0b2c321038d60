// POSIX regular expressions of the C library, extended by \d and \D.
#include <regex.h>

#include <array>
#include <string>
#include <string_view>

#include "executors/lua/luahost/state.h"

namespace mycojobs::lua {
namespace {

constexpr std::size_t kGroups = 10;

// Replaces \d and \D, which the C library lacks; \w and \s exist there.
std::string with_digits(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char next = pattern[++i];
    if (next == 'd') {
      out += "[0-9]";
    } else if (next == 'D') {
      out += "[^0-9]";
    } else if (next == 'n' || next == 't') {
      out += next == 'n' ? '\n' : '\t';
    } else {
      out += {'\\', next};
    }
  }
  return out;
}

struct Pattern {
  regex_t compiled{};
  bool there = false;
  ~Pattern() {
    if (there) ::regfree(&compiled);
  }
};

using Groups = std::array<regmatch_t, kGroups>;

// Appends a replacement and expands $1, ${1} and $$; $0 is the whole match.
void add_replacement(std::string& out, std::string_view replacement, std::string_view text, const Groups& groups) {
  for (std::size_t i = 0; i < replacement.size(); ++i) {
    if (replacement[i] != '$' || i + 1 == replacement.size()) {
      out += replacement[i];
      continue;
    }
    const bool braces = replacement[i + 1] == '{' && i + 3 < replacement.size() && replacement[i + 3] == '}';
    const char digit = replacement[i + (braces ? 2 : 1)];
    if (digit == '$') {
      out += '$';
      ++i;
    } else if (digit >= '0' && digit <= '9') {
      const regmatch_t& group = groups[static_cast<std::size_t>(digit - '0')];
      if (group.rm_so >= 0) out += text.substr(group.rm_so, group.rm_eo - group.rm_so);
      i += braces ? 3 : 1;
    } else {
      out += '$';
    }
  }
}

bool is_inside_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// text, pattern, replacement, ignore case -> text; or nil and the error of the pattern. An empty match advances by one
// character.
int lua_regex_replace(lua_State* state) {
  const std::string_view text = text_at(state, 1), replacement = text_at(state, 3);
  const std::string source = with_digits(text_at(state, 2));
  if (source.find('\0') != std::string::npos) {
    lua_pushnil(state);
    lua_pushliteral(state, "it contains NUL");
    return 2;
  }
  Pattern pattern;
  const int flags = REG_EXTENDED | (lua_toboolean(state, 4) != 0 ? REG_ICASE : 0);
  if (const int error = ::regcomp(&pattern.compiled, source.c_str(), flags); error != 0) {
    std::array<char, 200> words{};
    ::regerror(error, &pattern.compiled, words.data(), words.size());
    lua_pushnil(state);
    lua_pushstring(state, words.data());
    return 2;
  }
  pattern.there = true;
  std::string out;
  std::size_t at = 0;
  while (at <= text.size()) {
    Groups groups{};
    groups[0] = {static_cast<regoff_t>(at), static_cast<regoff_t>(text.size())};
    const int flags_here = REG_STARTEND | (at > 0 ? REG_NOTBOL : 0);
    if (::regexec(&pattern.compiled, text.data(), kGroups, groups.data(), flags_here) != 0) break;
    const auto first = static_cast<std::size_t>(groups[0].rm_so), last = static_cast<std::size_t>(groups[0].rm_eo);
    out += text.substr(at, first - at);
    add_replacement(out, replacement, text, groups);
    at = last;
    if (last > first) continue;
    do {  // after an empty match, continue with the next character
      if (at < text.size()) out += text[at];
      ++at;
    } while (at < text.size() && is_inside_character(text[at]));
  }
  if (at < text.size()) out += text.substr(at);
  lua_pushlstring(state, out.data(), out.size());
  return 1;
}

}  // namespace

void add_regex_functions(lua_State* state) {
  const luaL_Reg functions[] = {{"regex_replace", lua_regex_replace}, {nullptr, nullptr}};
  add_functions(state, functions);
}

}  // namespace mycojobs::lua
