// POSIX regular expressions of the C library, extended by \d and \D.
#include <regex.h>

#include <array>
#include <string>
#include <string_view>

#include "executors/lua/luahost/state.h"

namespace mycojobs::lua {
namespace {

constexpr std::size_t kMaxGroups = 10;

// Replaces \d and \D, which the C library lacks; \w and \s exist already.
std::string expand_digit_classes(std::string_view pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 'd') {
      out += "[0-9]";
    } else if (escaped == 'D') {
      out += "[^0-9]";
    } else if (escaped == 'n' || escaped == 't') {
      out += escaped == 'n' ? '\n' : '\t';
    } else {
      out += {'\\', escaped};
    }
  }
  return out;
}

struct Pattern {
  regex_t compiled{};
  bool is_compiled = false;
  ~Pattern() {
    if (is_compiled) ::regfree(&compiled);
  }
};

using Groups = std::array<regmatch_t, kMaxGroups>;

// Appends a replacement and expands $1, ${1} and $$; $0 is the whole match.
void add_replacement(std::string& out, std::string_view replacement, std::string_view text, const Groups& groups) {
  for (std::size_t i = 0; i < replacement.size(); ++i) {
    if (replacement[i] != '$' || i + 1 == replacement.size()) {
      out += replacement[i];
      continue;
    }
    const bool has_braces = replacement[i + 1] == '{' && i + 3 < replacement.size() && replacement[i + 3] == '}';
    const char digit = replacement[i + (has_braces ? 2 : 1)];
    if (digit == '$') {
      out += '$';
      ++i;
    } else if (digit >= '0' && digit <= '9') {
      const regmatch_t& group = groups[static_cast<std::size_t>(digit - '0')];
      if (group.rm_so >= 0) out += text.substr(group.rm_so, group.rm_eo - group.rm_so);
      i += has_braces ? 3 : 1;
    } else {
      out += '$';
    }
  }
}

bool is_continuation_byte(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// text, pattern, replacement, ignore case -> text; or nil and the error of the pattern. An empty match advances by one
// character.
int lua_regex_replace(lua_State* state) {
  const std::string_view text = text_at(state, 1), replacement = text_at(state, 3);
  const std::string source = expand_digit_classes(text_at(state, 2));
  if (source.find('\0') != std::string::npos) {
    lua_pushnil(state);
    lua_pushliteral(state, "it contains NUL");
    return 2;
  }
  Pattern pattern;
  const int flags = REG_EXTENDED | (lua_toboolean(state, 4) != 0 ? REG_ICASE : 0);
  if (const int error = ::regcomp(&pattern.compiled, source.c_str(), flags); error != 0) {
    std::array<char, 200> message{};
    ::regerror(error, &pattern.compiled, message.data(), message.size());
    lua_pushnil(state);
    lua_pushstring(state, message.data());
    return 2;
  }
  pattern.is_compiled = true;
  std::string out;
  std::size_t position = 0;
  while (position <= text.size()) {
    Groups groups{};
    groups[0] = {static_cast<regoff_t>(position), static_cast<regoff_t>(text.size())};
    const int match_flags = REG_STARTEND | (position > 0 ? REG_NOTBOL : 0);
    if (::regexec(&pattern.compiled, text.data(), kMaxGroups, groups.data(), match_flags) != 0) break;
    const auto first = static_cast<std::size_t>(groups[0].rm_so), last = static_cast<std::size_t>(groups[0].rm_eo);
    out += text.substr(position, first - position);
    add_replacement(out, replacement, text, groups);
    position = last;
    if (last > first) continue;
    do {  // after an empty match, continue with the next character
      if (position < text.size()) out += text[position];
      ++position;
    } while (position < text.size() && is_continuation_byte(text[position]));
  }
  if (position < text.size()) out += text.substr(position);
  lua_pushlstring(state, out.data(), out.size());
  return 1;
}

}  // namespace

void add_regex_functions(lua_State* state) {
  const luaL_Reg functions[] = {{"regex_replace", lua_regex_replace}, {nullptr, nullptr}};
  add_functions(state, functions);
}

}  // namespace mycojobs::lua
