// Lua raises errors by longjmp, which does not run destructors. A function in this file must therefore not own objects
// when it raises an error.
#include "support/redis/memory_lua.h"

#include <lua.hpp>

#include <array>
#include <bit>
#include <climits>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <vector>

#include "base/parse.h"
#include "support/redis/memory_command.h"

namespace mycojobs::memory {
namespace {

// Digests.

using State = std::array<std::uint32_t, 5>;

void add_block(State& state, std::string_view block) {
  std::array<std::uint32_t, 80> w{};
  for (std::size_t i = 0; i < 64; ++i) w[i / 4] = w[i / 4] << 8 | static_cast<unsigned char>(block[i]);
  for (std::size_t i = 16; i < 80; ++i) w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  auto [a, b, c, d, e] = state;
  for (std::size_t i = 0; i < 80; ++i) {
    const std::uint32_t mixed = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                                : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                                : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                                         : (b ^ c ^ d) + 0xca62c1d6;
    const std::uint32_t next = std::rotl(a, 5) + mixed + e + w[i];
    e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
  }
  const State round{a, b, c, d, e};
  for (std::size_t i = 0; i < state.size(); ++i) state[i] += round[i];
}

std::string big_endian(std::uint64_t number, int bytes) {
  std::string out;
  for (int shift = bytes * 8 - 8; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
  return out;
}

// Scripts.

constexpr int kMaxDepth = 100;
constexpr char kExecuteKey = 0;  // The address is the key of the running script's Execute in Lua's registry.

std::string_view text_at(lua_State* lua, int index) {
  std::size_t size = 0;
  const char* text = lua_tolstring(lua, index, &size);
  return {text == nullptr ? "" : text, size};
}
void push_text(lua_State* lua, std::string_view text) { lua_pushlstring(lua, text.data(), text.size()); }
void push_field(lua_State* lua, const char* name, std::string_view text) {
  lua_createtable(lua, 0, 1);
  push_text(lua, text);
  lua_setfield(lua, -2, name);
}

void push(lua_State* lua, const MemoryReply& answer) {
  lua_checkstack(lua, 4);
  switch (answer.kind) {
    case MemoryReply::Kind::nil:
      return lua_pushboolean(lua, 0);
    case MemoryReply::Kind::status:
      return push_field(lua, "ok", answer.text);
    case MemoryReply::Kind::error:
      return push_field(lua, "err", answer.text);
    case MemoryReply::Kind::number:
      return lua_pushnumber(lua, static_cast<lua_Number>(answer.number));
    case MemoryReply::Kind::text:
      return push_text(lua, answer.text);
    case MemoryReply::Kind::list:
      lua_createtable(lua, static_cast<int>(answer.items.size()), 0);
      for (std::size_t i = 0; i < answer.items.size(); ++i) {
        push(lua, answer.items[i]);
        lua_rawseti(lua, -2, static_cast<int>(i + 1));
      }
  }
}

MemoryReply taken_number(lua_Number number) {
  const bool fits = number >= -0x1p63 && number < 0x1p63;
  return number_reply(fits ? static_cast<std::int64_t>(number) : std::numeric_limits<std::int64_t>::min());
}

// Reads a string field of the table on the top of the stack. Unlike lua_getfield, this function cannot raise an error.
bool field_text(lua_State* lua, const char* name, std::string& text) {
  lua_pushstring(lua, name);
  lua_rawget(lua, -2);
  const bool found = lua_type(lua, -1) == LUA_TSTRING;
  if (found) text = text_at(lua, -1);
  lua_pop(lua, 1);
  return found;
}

// Pops the top value and converts it.
MemoryReply take(lua_State* lua, int depth = 0) {
  if (depth > kMaxDepth || lua_checkstack(lua, 4) == 0) {
    lua_pop(lua, 1);
    return error("ERR reached lua stack limit");
  }
  MemoryReply out;
  const int type = lua_type(lua, -1);
  if (type == LUA_TSTRING) {
    out = text_reply(text_at(lua, -1));
  } else if (type == LUA_TNUMBER) {
    out = taken_number(lua_tonumber(lua, -1));
  } else if (type == LUA_TBOOLEAN) {
    out = lua_toboolean(lua, -1) != 0 ? number_reply(1) : nil_reply();
  } else if (type == LUA_TTABLE) {
    std::string text;
    if (field_text(lua, "err", text)) {
      out = error(text);
    } else if (field_text(lua, "ok", text)) {
      out = status(text);
    } else {
      out.kind = MemoryReply::Kind::list;
      out.items.reserve(lua_objlen(lua, -1));
      for (int i = 1;; ++i) {
        lua_rawgeti(lua, -1, i);
        if (lua_isnil(lua, -1)) break;
        out.items.push_back(take(lua, depth + 1));
      }
      lua_pop(lua, 1);
    }
  }
  lua_pop(lua, 1);
  return out;
}

// Returns the words of redis.call(...). Numbers are formatted as Redis does, and `numbers` owns their texts. Returns
// nothing if an argument is neither a string nor a number.
std::optional<std::vector<std::string_view>> read_words(lua_State* lua, std::deque<std::string>& numbers) {
  std::vector<std::string_view> words;
  words.reserve(static_cast<std::size_t>(lua_gettop(lua)));
  for (int i = 1; i <= lua_gettop(lua); ++i) {
    if (lua_type(lua, i) == LUA_TNUMBER) {
      words.emplace_back(numbers.emplace_back(real_to_text(lua_tonumber(lua, i))));
    } else if (lua_type(lua, i) == LUA_TSTRING) {
      words.emplace_back(text_at(lua, i));  // valid while the value is on the stack
    } else {
      return std::nullopt;
    }
  }
  return words;
}

// Pushes the reply. Returns whether the reply is an error.
bool execute(lua_State* lua) {
  std::deque<std::string> numbers;
  MemoryReply answer;
  if (lua_gettop(lua) == 0) {
    answer = error("ERR Please specify at least one argument for this redis lib call");
  } else if (const auto words = read_words(lua, numbers); !words) {
    answer = error("ERR Lua redis lib command arguments must be strings or integers");
  } else {
    lua_pushlightuserdata(lua, const_cast<char*>(&kExecuteKey));
    lua_rawget(lua, LUA_REGISTRYINDEX);
    const auto* run = static_cast<const MemoryLua::Execute*>(lua_touserdata(lua, -1));
    answer = (*run)(*words);
  }
  push(lua, answer);
  return answer.kind == MemoryReply::Kind::error;
}

int redis_call(lua_State* lua) { return execute(lua) ? lua_error(lua) : 1; }
int redis_pcall(lua_State* lua) {
  execute(lua);
  return 1;
}

// Returns {err = text} or {ok = text}. A leading "-" is removed, and a text of one word gets the prefix "ERR".
int error_reply(lua_State* lua) {
  if (lua_gettop(lua) != 1 || lua_type(lua, 1) != LUA_TSTRING) {
    push_field(lua, "err", "ERR wrong number or type of arguments");
    return 1;
  }
  std::string text(text_at(lua, 1));
  if (text.starts_with('-')) text.erase(0, 1);
  if (text.find(' ') == std::string::npos) text.insert(0, "ERR ");
  push_field(lua, "err", text);
  return 1;
}
int status_reply(lua_State* lua) {
  const bool good = lua_gettop(lua) == 1 && lua_type(lua, 1) == LUA_TSTRING;
  push_field(lua, good ? "ok" : "err", good ? text_at(lua, 1) : "ERR wrong number or type of arguments");
  return 1;
}
bool push_digest(lua_State* lua) {
  if (lua_gettop(lua) != 1) return false;
  push_text(lua, sha1_hex(text_at(lua, 1)));
  return true;
}
int sha1hex(lua_State* lua) {
  if (push_digest(lua)) return 1;
  push_field(lua, "err", "ERR wrong number of arguments");
  return lua_error(lua);
}

// pcall with the behaviour of Redis: for an error that is a table the caller receives the text.
int caught_call(lua_State* lua) {
  luaL_checkany(lua, 1);
  if (lua_pcall(lua, lua_gettop(lua) - 1, LUA_MULTRET, 0) == 0) {
    lua_pushboolean(lua, 1);
  } else {
    std::string text;  // the code below raises no Lua errors
    if (lua_istable(lua, 1) && field_text(lua, "err", text)) {
      push_text(lua, text);
      lua_replace(lua, 1);
    }
    lua_pushboolean(lua, 0);
  }
  lua_insert(lua, 1);
  return lua_gettop(lua);
}

int no_such_global(lua_State* lua) {
  const char* name = lua_tostring(lua, 2);
  return luaL_error(lua, "Script attempted to access nonexistent global variable '%s'", name == nullptr ? "?" : name);
}
int read_only(lua_State* lua) { return luaL_error(lua, "Attempt to modify a readonly table"); }

// Converts an error where it is raised to {err, source, line}.
int locate(lua_State* lua) {
  lua_Debug where{};
  bool known = lua_getstack(lua, 1, &where) != 0 && lua_getinfo(lua, "Sl", &where) != 0;
  if (known && where.what[0] == 'C') known = lua_getstack(lua, 2, &where) != 0 && lua_getinfo(lua, "Sl", &where) != 0;
  if (!lua_istable(lua, 1)) {
    lua_pushfstring(lua, "ERR %s", lua_isstring(lua, 1) != 0 ? lua_tostring(lua, 1) : "unknown error");
    lua_createtable(lua, 0, 3);
    lua_insert(lua, -2);
    lua_setfield(lua, -2, "err");
  }
  if (known) {
    lua_pushstring(lua, where.source);
    lua_setfield(lua, -2, "source");
    lua_pushinteger(lua, where.currentline);
    lua_setfield(lua, -2, "line");
  }
  return 1;
}

// Replaces the table on the top of the stack by a read-only view. `strict`: reading an absent field is an error.
void guard(lua_State* lua, bool strict) {
  if (strict) {
    lua_createtable(lua, 0, 1);
    lua_pushcfunction(lua, no_such_global);
    lua_setfield(lua, -2, "__index");
    lua_setmetatable(lua, -2);
  }
  lua_newtable(lua);
  lua_insert(lua, -2);
  lua_createtable(lua, 0, 3);
  lua_insert(lua, -2);
  lua_setfield(lua, -2, "__index");
  lua_pushcfunction(lua, read_only);
  lua_setfield(lua, -2, "__newindex");
  lua_pushboolean(lua, 0);
  lua_setfield(lua, -2, "__metatable");
  lua_setmetatable(lua, -2);
}

// Opens the libraries that scripts may use and makes a read-only view of the globals. Leaves the real globals on the
// stack.
int set_up(lua_State* lua) {
  constexpr std::array kLibraries{luaL_Reg{"", luaopen_base}, luaL_Reg{LUA_STRLIBNAME, luaopen_string},
                                  luaL_Reg{LUA_TABLIBNAME, luaopen_table}, luaL_Reg{LUA_MATHLIBNAME, luaopen_math}};
  constexpr std::array kFunctions{luaL_Reg{"call", redis_call},         luaL_Reg{"pcall", redis_pcall},
                                  luaL_Reg{"error_reply", error_reply}, luaL_Reg{"status_reply", status_reply},
                                  luaL_Reg{"sha1hex", sha1hex},         luaL_Reg{nullptr, nullptr}};
  for (const luaL_Reg& library : kLibraries) {
    lua_pushcfunction(lua, library.func);
    lua_pushstring(lua, library.name);
    lua_call(lua, 1, 0);
  }
  luaL_register(lua, "redis", kFunctions.data());
  lua_getglobal(lua, "math");
  for (const char* name : {"random", "randomseed"}) {
    lua_pushnil(lua);
    lua_setfield(lua, -2, name);
  }
  for (const char* name : {"dofile", "loadfile", "print", "rawset", "setfenv", "getfenv", "newproxy", "_G"}) {
    lua_pushnil(lua);
    lua_setglobal(lua, name);
  }
  lua_pushcfunction(lua, caught_call);
  lua_setglobal(lua, "pcall");
  for (const char* name : {"redis", LUA_STRLIBNAME, LUA_TABLIBNAME, LUA_MATHLIBNAME}) {
    lua_getglobal(lua, name);
    guard(lua, false);
    lua_setglobal(lua, name);
  }
  lua_settop(lua, 0);
  lua_pushvalue(lua, LUA_GLOBALSINDEX);
  lua_pushvalue(lua, -1);
  guard(lua, true);
  lua_replace(lua, LUA_GLOBALSINDEX);
  return 1;
}

void set_list(lua_State* lua, const char* name, Words words) {
  lua_createtable(lua, static_cast<int>(words.size()), 0);
  for (std::size_t i = 0; i < words.size(); ++i) {
    push_text(lua, words[i]);
    lua_rawseti(lua, -2, static_cast<int>(i + 1));
  }
  lua_setfield(lua, 1, name);
}

// Returns the reply for the error that ended a script.
MemoryReply failure(lua_State* lua, std::string_view sha1) {
  std::string text, source;
  lua_Number line = 0;
  if (!lua_istable(lua, -1) || !field_text(lua, "err", text))
    return error("ERR raised without an err: Redis 7.0 would have ended");
  const bool placed = field_text(lua, "source", source);
  lua_pushstring(lua, "line");
  lua_rawget(lua, -2);
  line = lua_tonumber(lua, -1);
  lua_pop(lua, 2);
  if (placed) {
    text += " script: " + std::string(sha1) + ", on " + source + ":" + std::to_string(static_cast<int>(line)) + ".";
  }
  return error(text);
}

}  // namespace

std::string sha1_hex(std::string_view text) {
  std::string padded(text);
  padded += '\x80';
  padded.append((120 - padded.size() % 64) % 64, '\0');
  padded += big_endian(std::uint64_t{text.size()} * 8, 8);
  State state{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  for (std::string_view rest = padded; !rest.empty(); rest.remove_prefix(64)) add_block(state, rest);
  std::string digest;
  for (std::uint32_t part : state) digest += big_endian(part, 4);
  return to_hex(digest);
}

MemoryLua::MemoryLua() : state_(luaL_newstate(), lua_close) { set_up(state_.get()); }

MemoryReply MemoryLua::run(std::string_view sha1, std::string_view text, Words keys, Words arguments,
                           const Execute& execute) {
  lua_State* lua = state_.get();
  lua_settop(lua, 1);  // keep only the real globals
  auto found = compiled_.find(sha1);
  if (found == compiled_.end()) {
    if (luaL_loadbuffer(lua, text.data(), text.size(), "@user_script") != 0) {
      return error("ERR Error compiling script (new function): " + std::string(text_at(lua, -1)));
    }
    found = compiled_.emplace(sha1, luaL_ref(lua, LUA_REGISTRYINDEX)).first;
  }
  lua_pushlightuserdata(lua, const_cast<char*>(&kExecuteKey));
  lua_pushlightuserdata(lua, const_cast<Execute*>(&execute));
  lua_rawset(lua, LUA_REGISTRYINDEX);
  set_list(lua, "KEYS", keys);
  set_list(lua, "ARGV", arguments);
  lua_pushcfunction(lua, locate);
  lua_rawgeti(lua, LUA_REGISTRYINDEX, found->second);
  if (lua_pcall(lua, 0, 1, -2) != 0) return failure(lua, found->first);
  return take(lua);
}

}  // namespace mycojobs::memory
