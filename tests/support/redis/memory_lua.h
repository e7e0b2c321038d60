// Lua 5.1 as Redis gives it to scripts: redis.call, pcall, error_reply, status_reply, sha1hex, KEYS, ARGV, and the
// parts of the language that touch nothing outside. Globals can neither be made nor changed, and those that are not
// there cannot be read. Without math.random: nothing here is random.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "support/redis/memory_values.h"

struct lua_State;

namespace mycojobs::memory {

// redis.sha1hex (FIPS 180-4), so that digests are those that a real server makes. Not for secrets.
std::string sha1_hex(std::string_view text);

class MemoryLua {
 public:
  using Execute = std::function<Answer(Words)>;  // one command of the script
  MemoryLua();

  // Compiles a script when it is met first; `sha1` names it from then on.
  Answer run(std::string_view sha1, std::string_view text, Words keys, Words arguments, const Execute&);

 private:
  std::unique_ptr<lua_State, void (*)(lua_State*)> state_;
  std::map<std::string, int, std::less<>> compiled_;  // sha1: reference in Lua's registry
};

}  // namespace mycojobs::memory
