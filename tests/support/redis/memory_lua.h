// Lua 5.1 with the environment that Redis gives to scripts: redis.call, pcall, error_reply, status_reply, sha1hex,
// KEYS, ARGV, and the library functions without access to the outside. Globals cannot be created or changed; reading an
// undefined global is an error. math.random is absent, so that scripts are deterministic.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "support/redis/memory_values.h"

struct lua_State;

namespace mycojobs::memory {

// redis.sha1hex (FIPS 180-4); digests equal those of a real server. Not for secrets.
std::string sha1_hex(std::string_view text);

class MemoryLua {
 public:
  using Execute = std::function<MemoryReply(Words)>;  // executes one command of the script
  MemoryLua();

  // Compiles a script at its first use; `sha1` identifies it later.
  MemoryReply run(std::string_view sha1, std::string_view text, Words keys, Words arguments, const Execute&);

 private:
  std::unique_ptr<lua_State, void (*)(lua_State*)> state_;
  std::map<std::string, int, std::less<>> compiled_;  // reference in Lua's registry, by SHA-1
};

}  // namespace mycojobs::memory
