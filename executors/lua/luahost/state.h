// The single Lua state of this process, and its memory limit. Not thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "executors/lua/lua_names.h"

namespace mycojobs::lua {

// Add functions of the host for the Lua modules (host_*.cpp, run_job.cpp). Scripts cannot reach these functions.
void add_job_functions(lua_State*);
void add_file_functions(lua_State*);
void add_process_functions(lua_State*);
void add_net_functions(lua_State*);
void add_http_functions(lua_State*);
void add_regex_functions(lua_State*);
// Adds functions to the table on top of the stack.
void add_functions(lua_State*, const luaL_Reg* functions);

// Functions that job.lua exports to C++, stored in the registry under these names.
inline constexpr const char* kPrepare = "mycojobs.prepare";
inline constexpr const char* kDescribe = "mycojobs.describe";
inline constexpr const char* kEncodeResult = "mycojobs.encode_result";
inline constexpr const char* kRenew = "mycojobs.renew";  // kRenew and kBeginRun are for warm scripts
inline constexpr const char* kBeginRun = "mycojobs.begin_run";

Result<void> open_state();
lua_State* state();  // REQUIRES: open_state() succeeded
// Runs finalizers, and flushes and closes files. Memory is not freed, since the process exits soon.
void close_state();

// Limits Lua's heap, so that the script receives Lua's error "not enough memory" before the sandbox kills the job. 0
// means no limit.
void limit_memory(std::size_t bytes);
bool is_recursion_error();  // whether the last refusal of memory was caused by a deep recursion

// Returns the text argument `index`, which may contain NULs; raises a Lua error for other types.
inline std::string_view text_at(lua_State* state, int index) {
  std::size_t size = 0;
  const char* const text = luaL_checklstring(state, index, &size);
  return {text, size};
}

// Pushes nil, text and name of errno: the return values of host functions after a system error.
int push_errno(lua_State*, int error);

// The Lua modules, embedded by CMake from the files in lua/. Each runs once, in this order, with the table of the
// host's functions and the table of the results of earlier modules.
struct LuaModule {
  const char* name;
  const char* source;
};
std::span<const LuaModule> modules();

}  // namespace mycojobs::lua
