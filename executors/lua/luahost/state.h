// The one state of Lua of this process, and the memory that it may take.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "executors/lua/lua_names.h"
#include "mycojobs/result.h"

namespace mycojobs::lua {

// Functions of the host for our modules; each file of host_*.cpp has some. None is in reach of a script.
void add_job_functions(lua_State*);
void add_file_functions(lua_State*);
void add_process_functions(lua_State*);
void add_net_functions(lua_State*);
void add_http_functions(lua_State*);
void add_regex_functions(lua_State*);
// Puts functions into the table on top of the stack.
void add_functions(lua_State*, const luaL_Reg* functions);

// What modules hand to C++: functions in the registry, by these names.
inline constexpr const char* kPrepare = "mycojobs.prepare";
inline constexpr const char* kDescribe = "mycojobs.describe";
inline constexpr const char* kEncodeResult = "mycojobs.encode_result";
inline constexpr const char* kRenew = "mycojobs.renew";  // this and the next: of warm scripts
inline constexpr const char* kBeginRun = "mycojobs.begin_run";

Result<void> open_state();
lua_State* state();  // after open_state()
// Finalizers run, files are written and closed. The process leaves soon: memory is not given back.
void close_state();

// Lua gets an error of its own ("not enough memory") before the sandbox would kill the job. 0: no limit.
void limit_memory(std::size_t bytes);
bool was_deep();  // what was refused last was refused to a recursion

// The text that is argument `index`, NULs and all; an error of Lua if it is none.
inline std::string_view text_at(lua_State* state, int index) {
  std::size_t size = 0;
  const char* const text = luaL_checklstring(state, index, &size);
  return {text, size};
}

// nil, text and name of errno: what a function of the host answers when the system refused.
int push_errno(lua_State*, int error);

// The modules in Lua, embedded by CMake from the files in lua/. Each runs once, in this order, with the table of the
// host's functions and the table of what the modules before it returned.
struct Module {
  const char* name;
  const char* source;
};
std::span<const Module> modules();

}  // namespace mycojobs::lua
