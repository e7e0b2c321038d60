#include "executors/lua/luahost/state.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace mycojobs::lua {
namespace {

struct HeapUsage {
  std::size_t used = 0, limit = 0;
  // The largest stack of a Lua thread. If memory is refused while a stack is deep, the cause is an endless recursion.
  void* stack = nullptr;
  std::size_t stack_bytes = 0, candidate_bytes = 0;
  bool refused_deep_stack = false;
  bool is_closing = false;
};
HeapUsage memory;
lua_State* lua_state = nullptr;

// Detects a growing Lua stack by its sizes: the number of slots doubles or reaches the maximum, plus five slots that
// are not doubled. Since Lua 5.4.6 the block is reallocated; older versions allocate a new block, so the first one is
// only a candidate.
bool is_growing_stack(const void* block, std::size_t old_size, std::size_t new_size) {
  constexpr std::size_t kMinStackBytes = 65536, kExtraBytes = 5 * 16, kMaxTableBytes = 16 * 1000000 + kExtraBytes;
  // For a new block, old_size is the kind of the object, which is 0 for a stack.
  const bool is_new = block == nullptr && old_size == 0;
  if ((block == nullptr && !is_new) || new_size < kMinStackBytes || new_size % 16 != 0) return false;
  const std::size_t previous_size = is_new ? std::exchange(memory.candidate_bytes, new_size) : old_size;
  return new_size - kExtraBytes == 2 * (previous_size - kExtraBytes) || new_size == kMaxTableBytes;
}

void* refuse_memory() {
  constexpr std::size_t kDeepStackBytes = 2U << 20;
  memory.refused_deep_stack = memory.stack_bytes >= kDeepStackBytes;
  return nullptr;
}

// Returns the memory that a block uses in the C library's heap.
std::size_t get_heap_cost(std::size_t size) {
  constexpr std::size_t kMinBytes = 32, kHeaderBytes = 8, kAlignment = 16;
  return size == 0 ? 0 : std::max(kMinBytes, (size + kHeaderBytes + kAlignment - 1) / kAlignment * kAlignment);
}

void* allocate(void*, void* block, std::size_t old_size, std::size_t new_size) {
  // For a new block, old_size is the kind of the object.
  const std::size_t previous_size = block == nullptr ? 0 : old_size;
  const std::size_t used = memory.used - get_heap_cost(previous_size) + get_heap_cost(new_size);
  if (new_size > previous_size && memory.limit > 0 && used > memory.limit) return refuse_memory();
  const bool is_stack = is_growing_stack(block, old_size, new_size);
  void* new_block = nullptr;
  if (block != nullptr && block == memory.stack) {
    memory.stack = nullptr;
    memory.stack_bytes = 0;
  }
  if (new_size == 0) {
    // The process is about to exit. Freeing blocks would write to pages that are shared with the zygote.
    if (!memory.is_closing) std::free(block);
  } else {
    new_block = std::realloc(block, new_size);
    if (new_block == nullptr) return refuse_memory();
  }
  memory.used = used;
  if (is_stack) {
    memory.stack = new_block;
    memory.stack_bytes = new_size;
  }
  return new_block;
}

// Prints warnings, mostly of failing finalizers. Control messages start with '@' and are ignored.
void print_warning(void*, const char* text, int is_continued) {
  if (text[0] != '@' || is_continued != 0) std::fprintf(stderr, is_continued != 0 ? "%s" : "%s\n", text);
}

void open_library(lua_State* state) {
  const luaL_Reg libraries[] = {
      {LUA_GNAME, luaopen_base},       {LUA_COLIBNAME, luaopen_coroutine}, {LUA_TABLIBNAME, luaopen_table},
      {LUA_IOLIBNAME, luaopen_io},     {LUA_OSLIBNAME, luaopen_os},        {LUA_STRLIBNAME, luaopen_string},
      {LUA_UTF8LIBNAME, luaopen_utf8}, {LUA_MATHLIBNAME, luaopen_math},    {LUA_DBLIBNAME, luaopen_debug},
  };
  for (const auto& [name, open] : libraries) {
    luaL_requiref(state, name, open, 1);
    lua_pop(state, 1);
  }
}

// Pushes the globals of the modules: a copy of Lua's globals, so that scripts cannot replace functions that modules
// use. Only _G refers to the globals of scripts.
void push_module_globals(lua_State* state) {
  lua_newtable(state);
  lua_pushglobaltable(state);
  lua_pushnil(state);
  while (lua_next(state, -2) != 0) {
    if (lua_istable(state, -1) && !lua_rawequal(state, -1, -3)) {
      lua_newtable(state);
      lua_pushnil(state);
      while (lua_next(state, -3) != 0) {
        lua_pushvalue(state, -2);
        lua_insert(state, -2);
        lua_rawset(state, -4);
      }
      lua_replace(state, -2);
    }
    lua_pushvalue(state, -2);
    lua_insert(state, -2);
    lua_rawset(state, -5);
  }
  lua_pop(state, 1);
}

// Runs one module with the arguments `host` and `loaded`, the results of earlier modules.
void run_module(lua_State* state, const LuaModule& module, int host, int loaded, int module_globals) {
  const std::string name = std::string("=[") + module.name + "]";
  if (luaL_loadbufferx(state, module.source, std::strlen(module.source), name.c_str(), "t") != LUA_OK) lua_error(state);
  lua_pushvalue(state, module_globals);
  lua_setupvalue(state, -2, 1);
  lua_pushvalue(state, host);
  lua_pushvalue(state, loaded);
  lua_call(state, 2, 1);
  lua_setfield(state, loaded, module.name);
}

int load_modules(lua_State* state) {
  open_library(state);
  lua_newtable(state);
  const int host = lua_gettop(state);
  add_job_functions(state);
  add_file_functions(state);
  add_process_functions(state);
  add_net_functions(state);
  add_http_functions(state);
  add_regex_functions(state);
  lua_newtable(state);
  const int loaded = lua_gettop(state);
  push_module_globals(state);
  const int module_globals = lua_gettop(state);
  for (const LuaModule& module : modules()) run_module(state, module, host, loaded, module_globals);
  lua_getfield(state, loaded, "job");
  for (const char* name : {kPrepare, kDescribe, kEncodeResult, kRenew, kBeginRun}) {
    if (lua_getfield(state, -1, std::strchr(name, '.') + 1) != LUA_TFUNCTION) luaL_error(state, "job: no %s", name);
    lua_setfield(state, LUA_REGISTRYINDEX, name);
  }
  return 0;
}

}  // namespace

void add_functions(lua_State* state, const luaL_Reg* functions) { luaL_setfuncs(state, functions, 0); }

int push_errno(lua_State* state, int error) {
  const char* name = ::strerrorname_np(error);
  lua_pushnil(state);
  lua_pushstring(state, std::strerror(error));  // NOLINT(concurrency-mt-unsafe)
  lua_pushstring(state, name != nullptr ? name : "");
  return 3;
}

lua_State* state() { return lua_state; }
void limit_memory(std::size_t bytes) { memory.limit = bytes; }
bool is_recursion_error() { return memory.refused_deep_stack; }

void close_state() {
  memory.is_closing = true;
  lua_close(lua_state);
}

Result<void> open_state() {
  lua_state = lua_newstate(allocate, nullptr);
  if (lua_state == nullptr) return fail(Code::internal, "lua: no memory for its state");
  lua_setwarnf(lua_state, print_warning, nullptr);
  lua_pushcfunction(lua_state, load_modules);
  if (lua_pcall(lua_state, 0, 0, 0) != LUA_OK)
    return fail(Code::internal, std::string("lua: ") + luaL_tolstring(lua_state, -1, nullptr));
  lua_gc(lua_state, LUA_GCCOLLECT);
  return {};
}

}  // namespace mycojobs::lua
