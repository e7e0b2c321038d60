#include "executors/lua/workflowhost/library.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>

#include "executors/lua/workflowhost/budget.h"
#include "executors/lua/workflowhost/numbers.h"
#include "executors/lua/workflowhost/patterns.h"
#include "executors/lua/workflowhost/tables.h"
#include "executors/lua/workflowhost/values.h"

namespace mycojobs::workflow {
namespace {

// A function that is removed from a library, and the reason in the error message for its use.
struct MissingFunction {
  const char* library;  // "": the globals
  const char* name;
  const char* reason;
};
constexpr const char* kNoOtherCode = "a step runs the code of its program alone";
constexpr const char* kNoOutput = "a step has no output: return state, events and effects";
constexpr const char* kNoEnvironment = "a step sees no clock, file, environment or process: ask for an effect";
constexpr const char* kNoRandomness = "a step has no chance of its own: derive it from ctx.entropy";
constexpr const char* kNoThreads = "a step is one call: keep what is to go on in its state";
constexpr const char* kNoIntrospection = "a step does not look into the interpreter";
constexpr const char* kNoMemoryLayout = "how a value lies in memory is the machine's affair";
constexpr const char* kInexactResult = "its last bits differ between machines";
constexpr MissingFunction kMissingFunctions[] = {
    {"", "os", kNoEnvironment},
    {"", "io", kNoEnvironment},
    {"", "package", kNoOtherCode},
    {"", "require", kNoOtherCode},
    {"", "load", kNoOtherCode},
    {"", "loadstring", kNoOtherCode},
    {"", "loadfile", kNoOtherCode},
    {"", "dofile", kNoOtherCode},
    {"", "debug", kNoIntrospection},
    {"", "collectgarbage", kNoIntrospection},
    {"", "coroutine", kNoThreads},
    {"", "print", kNoOutput},
    {"", "warn", kNoOutput},
    {"math", "random", kNoRandomness},
    {"math", "randomseed", kNoRandomness},
    {"math", "sin", kInexactResult},
    {"math", "cos", kInexactResult},
    {"math", "tan", kInexactResult},
    {"math", "asin", kInexactResult},
    {"math", "acos", kInexactResult},
    {"math", "atan", kInexactResult},
    {"string", "dump", kNoOtherCode},
    {"string", "pack", kNoMemoryLayout},
    {"string", "unpack", kNoMemoryLayout},
    {"string", "packsize", kNoMemoryLayout},
};

// Metamethod __index: called for a name that is missing in the library's table. Upvalue: the name of the library.
int raise_missing_function(lua_State* state) {
  const char* const library = lua_tostring(state, lua_upvalueindex(1));
  const char* const name = lua_type(state, 2) == LUA_TSTRING ? lua_tostring(state, 2) : "";
  for (const MissingFunction& row : kMissingFunctions) {
    if (std::strcmp(row.library, library) == 0 && std::strcmp(row.name, name) == 0)
      return luaL_error(state, "%s%s%s is refused: %s", library, *library != '\0' ? "." : "", name, row.reason);
  }
  return 0;
}

std::uint64_t count_argument_bytes(lua_State* state) {
  std::uint64_t bytes = 0;
  for (int i = lua_gettop(state); i > 0; --i) {
    if (lua_type(state, i) == LUA_TSTRING) bytes += lua_rawlen(state, i);
  }
  return bytes;
}

// Closure around a function of the Lua library. It charges the function's string arguments. A closure is allocated on
// the heap, so its address is equal in all processes. Upvalue: the function.
int call_metered(lua_State* state) {
  charge(state, count_argument_bytes(state) / 64);
  const int results = lua_tocfunction(state, lua_upvalueindex(1))(state);
  if (results == 0 || lua_iscfunction(state, -results) == 0) return results;
  if (lua_getupvalue(state, -results, 1) != nullptr) {
    lua_pop(state, 1);
    return results;
  }
  lua_pushvalue(state, -results);  // an iterator
  lua_pushcclosure(state, call_metered, 1);
  lua_replace(state, -results - 1);
  return results;
}

void charge_range(lua_State* state, lua_Integer first, lua_Integer last) {
  if (last < first) return;
  const auto count = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first);
  charge(state, count / 4 + 1);
}
// Charges a function that reads, and may write, each value in a range of a table. The values of a range with more than
// `max` values are not charged, because the function then fails before it reads a value.
void charge_values(lua_State* state, lua_Integer first, lua_Integer last, std::uint64_t max = UINT64_MAX) {
  charge_range(state, first, last);
  if (last < first) return;
  const std::uint64_t count = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first);
  if (count < max) charge_v2(state, count + 1);
}

// Calls the original function, the upvalue of a wrapper. Wrappers charge the work that does not depend on the sizes of
// strings.
int call_original(lua_State* state) { return lua_tocfunction(state, lua_upvalueindex(1))(state); }

int repeat(lua_State* state) {
  const lua_Integer count = luaL_checkinteger(state, 2);
  std::size_t size = 0, separator_size = 0;
  luaL_checklstring(state, 1, &size);
  luaL_optlstring(state, 3, "", &separator_size);
  if (count > 0 && size + separator_size > heap().limit() / static_cast<std::size_t>(count))
    end_step(state, EndReason::memory);
  if (count > 0) charge_range(state, 1, count);
  return call_original(state);
}

int move(lua_State* state) {
  charge_values(state, luaL_checkinteger(state, 2), luaL_checkinteger(state, 3));
  return call_original(state);
}

int charge_table_range(lua_State* state, int first_index, int last_index, std::uint64_t max = UINT64_MAX) {
  luaL_checktype(state, 1, LUA_TTABLE);
  const lua_Integer first = luaL_optinteger(state, first_index, 1);
  const lua_Integer last =
      lua_isnoneornil(state, last_index) ? luaL_len(state, 1) : luaL_checkinteger(state, last_index);
  charge_values(state, first, last, max);
  return call_original(state);
}
constexpr std::uint64_t kMaxResults = 1'000'000;  // maximum size of the Lua stack
int unpack(lua_State* state) { return charge_table_range(state, 2, 3, kMaxResults); }
int concat(lua_State* state) { return charge_table_range(state, 3, 4); }

int insert_or_remove(lua_State* state) {  // insert and remove
  luaL_checktype(state, 1, LUA_TTABLE);
  if (lua_isinteger(state, 2) != 0 && lua_gettop(state) != 1) {
    const lua_Integer position = lua_tointeger(state, 2), size = luaL_len(state, 1);
    if (position > 0) charge_values(state, position, size);
  } else if (lua_gettop(state) != 1 &&
             budget().counting_version > 1) {  // a float or a string that converts to an integer
    int is_integer = 0;
    const lua_Integer position = lua_tointegerx(state, 2, &is_integer);
    if (is_integer != 0 && position > 0) charge_values(state, position, luaL_len(state, 1));
  }
  return call_original(state);
}

constexpr std::uint64_t kFormatWork = 1000;  // cost of formatting a number with 99 decimals

// string.format without %p; every NaN is replaced by the canonical NaN.
int format(lua_State* state) {
  charge(state, count_argument_bytes(state) / 64);
  std::size_t size = 0;
  const char* const text = luaL_checklstring(state, 1, &size);
  int argument = 1;
  for (std::size_t i = 0; i < size; ++i) {
    if (text[i] != '%') continue;
    if (++i < size && text[i] == '%') continue;
    i += std::strspn(text + i, "-+ #0123456789.");
    ++argument;
    if (i >= size) break;
    if (text[i] == 'p') return luaL_error(state, "string.format: %%p is refused: an address is the machine's affair");
    const bool is_float = std::strchr("aAeEfgG", text[i]) != nullptr;
    charge(state, is_float ? kFormatWork : 1);
    if (!is_float || lua_type(state, argument) != LUA_TNUMBER || !std::isnan(lua_tonumber(state, argument))) continue;
    lua_pushnumber(state, std::numeric_limits<double>::quiet_NaN());
    lua_replace(state, argument);
  }
  return call_original(state);
}

// Iterator of pairs(). Upvalues: the table, its ordered keys, the index of the last returned key.
int next_pair(lua_State* state) {
  charge_v2(state, 4);
  for (lua_Integer i = lua_tointeger(state, lua_upvalueindex(3)) + 1;; ++i) {
    lua_pushinteger(state, i);
    lua_replace(state, lua_upvalueindex(3));
    if (lua_rawgeti(state, lua_upvalueindex(2), i) == LUA_TNIL) return 1;
    lua_pushvalue(state, -1);
    if (lua_rawget(state, lua_upvalueindex(1)) != LUA_TNIL) return 2;
    lua_pop(state, 2);
    charge(state, 1);
  }
}

// Iterates over the keys that exist at the call. Keys set to nil during the loop are skipped; new keys are not visited.
int pairs(lua_State* state) {
  luaL_checktype(state, 1, LUA_TTABLE);
  lua_settop(state, 1);
  const TableKeys keys = push_sorted_keys(state, 1, "pairs");
  lua_createtable(state, static_cast<int>(keys.count), 0);
  for (std::size_t i = 0; i < keys.count; ++i) {
    push_key(state, keys.entries[i]);
    lua_rawseti(state, 3, static_cast<lua_Integer>(i) + 1);
  }
  lua_pushvalue(state, 1);
  lua_pushvalue(state, 3);
  lua_pushinteger(state, 0);
  lua_pushcclosure(state, next_pair, 3);
  lua_pushvalue(state, 1);
  return 2;
}

// next(t) returns the smallest key; next(t, key) returns the smallest key after `key`, which may be missing in the
// table. Each call reads every key.
int next(lua_State* state) {
  luaL_checktype(state, 1, LUA_TTABLE);
  lua_settop(state, 2);
  const TableKeys keys = push_sorted_keys(state, 1, "next");
  TableKey previous;
  if (lua_type(state, 2) == LUA_TSTRING) {
    previous.text = lua_tolstring(state, 2, &previous.size);
  } else if (lua_isinteger(state, 2) != 0) {
    previous.number = lua_tointeger(state, 2);
  } else if (!lua_isnil(state, 2)) {
    return luaL_error(state, "next: a key is a %s; integers and strings have an order", luaL_typename(state, 2));
  }
  const TableKey* const end = keys.entries + keys.count;
  const TableKey* const found =
      lua_isnil(state, 2) ? keys.entries : std::upper_bound(keys.entries, keys.entries + keys.count, previous, is_less);
  if (found == end) return lua_pushnil(state), 1;
  push_key(state, *found);
  lua_pushvalue(state, -1);
  lua_rawget(state, 1);
  return 2;
}

// Returns whether the value at stack index `right` sorts before the value at `left`.
bool is_sorted_before(lua_State* state, int right, int left) {
  charge(state, 2);
  if (lua_isnil(state, 2)) return lua_compare(state, right, left, LUA_OPLT) != 0;
  lua_pushvalue(state, 2);
  lua_pushvalue(state, right < 0 ? right - 1 : right);
  lua_pushvalue(state, left < 0 ? left - 2 : left);
  lua_call(state, 2, 1);
  const bool first = lua_toboolean(state, -1) != 0;
  lua_pop(state, 1);
  return first;
}

// Merges two neighbouring sorted runs of `source`, which begin at `low` and `middle`, into `target`.
void merge(lua_State* state, int source, int target, lua_Integer low, lua_Integer middle, lua_Integer high) {
  lua_Integer left = low, right = middle;
  for (lua_Integer i = low; i < high; ++i) {
    bool is_right_next = left >= middle;
    if (!is_right_next && right < high) {
      lua_rawgeti(state, source, left);
      lua_rawgeti(state, source, right);
      is_right_next = is_sorted_before(state, -1, -2);
      lua_pop(state, 2);
    }
    lua_rawgeti(state, source, is_right_next ? right++ : left++);
    lua_rawseti(state, target, i);
  }
}

// Stable table.sort: a merge sort that makes the same comparisons in the same order on every machine, and terminates
// for any comparison function.
int sort(lua_State* state) {
  luaL_checktype(state, 1, LUA_TTABLE);
  if (!lua_isnoneornil(state, 2)) luaL_checktype(state, 2, LUA_TFUNCTION);
  lua_settop(state, 2);
  const auto count = static_cast<lua_Integer>(lua_rawlen(state, 1));
  lua_createtable(state, static_cast<int>(std::min<lua_Integer>(count, 1 << 24)), 0);
  int source = 1, target = 3;
  for (lua_Integer width = 1; width < count; width *= 2) {
    for (lua_Integer low = 1; low <= count; low += 2 * width)
      merge(state, source, target, low, std::min(low + width, count + 1), std::min(low + 2 * width, count + 1));
    std::swap(source, target);
  }
  for (lua_Integer i = 1; source != 1 && i <= count; ++i) {
    lua_rawgeti(state, source, i);
    lua_rawseti(state, 1, i);
  }
  return 0;
}

int set_metatable(lua_State* state) {
  luaL_checktype(state, 1, LUA_TTABLE);
  luaL_argexpected(state, lua_isnil(state, 2) || lua_istable(state, 2), 2, "nil or table");
  if (luaL_getmetafield(state, 1, "__metatable") != LUA_TNIL)
    return luaL_error(state, "cannot change a protected metatable");
  lua_settop(state, 2);
  for (const char* name : {"__gc", "__mode"}) {
    if (lua_isnil(state, 2)) break;
    lua_pushstring(state, name);
    if (lua_rawget(state, 2) != LUA_TNIL)
      return luaL_error(state, "%s is refused: when the collector runs is not to be seen", name);
    lua_pop(state, 1);
  }
  lua_setmetatable(state, 1);
  return 1;
}

constexpr std::uint64_t kCaughtErrorWork = 1000;  // cost of a caught error, in instructions

// Charges the work of building an error message: Lua searches the instructions of the function for the name of a value,
// and the tables of the library, which a program can extend, for the name of a function.
void charge_error(lua_State* state) {
  charge(state, kCaughtErrorWork);
  if (budget().counting_version < 2) return;
  std::size_t slots = 0;
  lua_getfield(state, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  for (const char* library : {LUA_GNAME, LUA_STRLIBNAME, LUA_TABLIBNAME, LUA_MATHLIBNAME, LUA_UTF8LIBNAME}) {
    if (lua_getfield(state, -1, library) == LUA_TTABLE) slots += count_table_slots(state, -1);
    lua_pop(state, 1);
  }
  lua_pop(state, 1);
  charge(state, budget().source_bytes / 16 + slots);
}

// Raises the end of the step again, because a script must not catch it.
void propagate_end(lua_State* state, int status) {
  if (budget().end_reason != EndReason::none) end_step(state, budget().end_reason);
  if (is_out_of_memory(state, status)) end_step(state, EndReason::memory);
}

int protected_call(lua_State* state) {
  luaL_checkany(state, 1);
  lua_pushboolean(state, 1);
  lua_insert(state, 1);
  const int status = lua_pcall(state, lua_gettop(state) - 2, LUA_MULTRET, 0);
  propagate_end(state, status);
  if (status == LUA_OK) return lua_gettop(state);
  charge_error(state);
  lua_pushboolean(state, 0);
  lua_insert(state, -2);
  return 2;
}

// Message handler for xpcall. Upvalue: the handler of the script.
int handle_error(lua_State* state) {
  if (budget().end_reason != EndReason::none) return 1;
  charge_error(state);  // also charged when the handler fails, since Lua then calls it again
  lua_pushvalue(state, lua_upvalueindex(1));
  lua_insert(state, 1);
  lua_call(state, 1, 1);
  return 1;
}

int protected_call_with_handler(lua_State* state) {
  luaL_checktype(state, 2, LUA_TFUNCTION);
  lua_pushvalue(state, 2);
  lua_pushcclosure(state, handle_error, 1);
  lua_replace(state, 2);
  lua_pushvalue(state, 1);
  lua_remove(state, 1);
  lua_insert(state, 2);  // handler, function, arguments
  const int status = lua_pcall(state, lua_gettop(state) - 2, LUA_MULTRET, 1);
  propagate_end(state, status);
  if (status != LUA_OK) charge_error(state);
  lua_pushboolean(state, static_cast<int>(status == LUA_OK));
  lua_replace(state, 1);
  return lua_gettop(state);
}

int math_exp(lua_State* state) {
  charge(state, kPowerWork);
  lua_pushnumber(state, exponential(luaL_checknumber(state, 1)));
  return 1;
}
int math_log(lua_State* state) {
  charge(state, kPowerWork);
  const double value = luaL_checknumber(state, 1);
  lua_pushnumber(state, lua_isnoneornil(state, 2) ? logarithm(value) : logarithm(value, luaL_checknumber(state, 2)));
  return 1;
}

// Replaces each function in the table on top of the stack by a call_metered() closure.
void meter_functions(lua_State* state) {
  for (lua_pushnil(state); lua_next(state, -2) != 0;) {
    if (lua_iscfunction(state, -1) == 0) {
      lua_pop(state, 1);
      continue;
    }
    lua_pushvalue(state, -2);
    lua_insert(state, -2);
    lua_pushcclosure(state, call_metered, 1);
    lua_rawset(state, -4);
  }
}

struct MeteredFunction {
  const char* name;
  lua_CFunction function;
};

// Replaces functions of the table on top of the stack by wrappers whose upvalue is the original function. REQUIRES: the
// functions have been metered.
void wrap_functions(lua_State* state, std::initializer_list<MeteredFunction> rows) {
  for (const MeteredFunction& row : rows) {
    lua_getfield(state, -1, row.name);
    lua_getupvalue(state, -1, 1);
    lua_pushcclosure(state, row.function, 1);
    lua_setfield(state, -3, row.name);
    lua_pop(state, 1);
  }
}

void set_functions(lua_State* state, std::initializer_list<MeteredFunction> rows) {
  for (const MeteredFunction& row : rows) {
    lua_pushnil(state);
    lua_pushcclosure(state, row.function, 1);
    lua_setfield(state, -2, row.name);
  }
}

// Cost of a call of a library function in counting version 2, in addition to the work that the function charges itself.
// Moving the arguments and results is charged for all functions. docs/workflows/lua.md has the same table.
struct FunctionCost {
  const char* library;  // "": the globals
  const char* name;
  std::uint16_t call_work;
  std::uint16_t bytes_per_instruction;  // 0 if strings are not read
  std::uint16_t level_argument;         // index of the argument with the number of stack levels to walk, or 0
};
constexpr FunctionCost kFunctionCosts[] = {
    {"", "array", 4, 0, 0},         {"", "assert", 2, 0, 0},        {"", "bytes", 8, 0, 0},
    {"", "error", 8, 0, 2},         {"", "getmetatable", 4, 0, 0},  {"", "ipairs", 8, 0, 0},
    {"", "next", 8, 0, 0},          {"", "pairs", 8, 0, 0},         {"", "pcall", 8, 0, 0},
    {"", "rawequal", 4, 0, 0},      {"", "rawget", 4, 0, 0},        {"", "rawlen", 4, 0, 0},
    {"", "rawset", 4, 0, 0},        {"", "select", 4, 0, 0},        {"", "setmetatable", 8, 0, 0},
    {"", "tonumber", 4, 4, 0},      {"", "tostring", 8, 0, 0},      {"", "type", 2, 0, 0},
    {"", "xpcall", 16, 0, 0},       {"string", "byte", 4, 0, 0},    {"string", "char", 4, 0, 0},
    {"string", "find", 8, 0, 0},    {"string", "format", 16, 4, 0}, {"string", "gmatch", 8, 0, 0},
    {"string", "gsub", 16, 0, 0},   {"string", "len", 2, 0, 0},     {"string", "lower", 4, 16, 0},
    {"string", "match", 8, 0, 0},   {"string", "rep", 8, 0, 0},     {"string", "reverse", 4, 16, 0},
    {"string", "sub", 4, 0, 0},     {"string", "upper", 4, 16, 0},  {"table", "concat", 16, 0, 0},
    {"table", "insert", 4, 0, 0},   {"table", "move", 8, 0, 0},     {"table", "pack", 8, 0, 0},
    {"table", "remove", 4, 0, 0},   {"table", "sort", 16, 0, 0},    {"table", "unpack", 4, 0, 0},
    {"utf8", "char", 8, 0, 0},      {"utf8", "codepoint", 4, 4, 0}, {"utf8", "codes", 8, 8, 0},
    {"utf8", "len", 4, 4, 0},       {"utf8", "offset", 4, 8, 0},    {"math", "abs", 4, 0, 0},
    {"math", "ceil", 4, 0, 0},      {"math", "cosh", 32, 0, 0},     {"math", "deg", 4, 0, 0},
    {"math", "exp", 4, 0, 0},       {"math", "floor", 4, 0, 0},     {"math", "fmod", 4, 0, 0},
    {"math", "frexp", 4, 0, 0},     {"math", "ldexp", 8, 0, 0},     {"math", "log", 4, 0, 0},
    {"math", "log10", 32, 0, 0},    {"math", "max", 4, 0, 0},       {"math", "min", 4, 0, 0},
    {"math", "modf", 8, 0, 0},      {"math", "pow", 4, 0, 0},       {"math", "rad", 4, 0, 0},
    {"math", "sinh", 32, 0, 0},     {"math", "sqrt", 8, 0, 0},      {"math", "tanh", 32, 0, 0},
    {"math", "tointeger", 4, 8, 0}, {"math", "type", 4, 0, 0},      {"math", "ult", 4, 0, 0},
};
constexpr std::uint64_t kMovedValuesPerInstruction = 4;  // values moved per instruction
lua_CFunction functions_with_cost[std::size(kFunctionCosts)];

std::uint64_t compute_call_work(lua_State* state, const FunctionCost& cost) {
  std::uint64_t work = cost.call_work + static_cast<std::uint64_t>(lua_gettop(state)) / kMovedValuesPerInstruction;
  if (cost.bytes_per_instruction != 0) work += count_argument_bytes(state) / cost.bytes_per_instruction;
  if (cost.level_argument != 0) {
    constexpr lua_Integer kMaxCalls = 1'000'000;
    work +=
        static_cast<std::uint64_t>(std::clamp<lua_Integer>(lua_tointeger(state, cost.level_argument), 0, kMaxCalls)) /
        4;
  }
  return work;
}

// Wrapper of a library function in counting version 2. Upvalues: the upvalue of the function, and the index in
// kFunctionCosts.
int call_with_cost(lua_State* state) {
  const lua_Integer position = lua_tointeger(state, lua_upvalueindex(2));
  charge(state, compute_call_work(state, kFunctionCosts[position]));
  const int results = functions_with_cost[position](state);
  charge(state, static_cast<std::uint64_t>(results) / kMovedValuesPerInstruction);
  return results;
}

// Wraps each function of the table on top of the stack with its cost. Functions without a row in kFunctionCosts are
// removed.
void add_costs(lua_State* state, const char* library) {
  if (budget().counting_version < 2) return;
  for (lua_pushnil(state); lua_next(state, -2) != 0;) {
    if (lua_iscfunction(state, -1) == 0) {
      lua_pop(state, 1);
      continue;
    }
    const char* const name = lua_tostring(state, -2);
    const auto* const row =
        std::find_if(std::begin(kFunctionCosts), std::end(kFunctionCosts), [&](const FunctionCost& candidate) {
          return std::strcmp(candidate.library, library) == 0 && std::strcmp(candidate.name, name) == 0;
        });
    lua_pushvalue(state, -2);
    if (row == std::end(kFunctionCosts)) {
      lua_pushnil(state);
    } else {
      functions_with_cost[row - kFunctionCosts] = lua_tocfunction(state, -2);
      lua_getupvalue(state, -2, 1);
      lua_pushinteger(state, row - kFunctionCosts);
      lua_pushcclosure(state, call_with_cost, 2);
    }
    lua_rawset(state, -5);
    lua_pop(state, 1);
  }
}

// Removes the missing functions from the library table on top of the stack, installs raise_missing_function() as its
// __index, and pops the table.
void finish_library(lua_State* state, const char* library) {
  for (const MissingFunction& row : kMissingFunctions) {
    if (std::strcmp(row.library, library) != 0) continue;
    lua_pushnil(state);
    lua_setfield(state, -2, row.name);
  }
  add_costs(state, library);
  lua_createtable(state, 0, 2);
  lua_pushstring(state, library);
  lua_pushcclosure(state, raise_missing_function, 1);
  lua_setfield(state, -2, "__index");
  lua_pushliteral(state, "library");
  lua_setfield(state, -2, "__metatable");
  lua_setmetatable(state, -2);
  lua_pop(state, 1);
}

void open_standard_library(lua_State* state, const char* name, lua_CFunction function) {
  luaL_requiref(state, name, function, 1);
  meter_functions(state);
}

}  // namespace

int open_library(lua_State* state) {
  open_standard_library(state, LUA_TABLIBNAME, luaopen_table);
  wrap_functions(state, {{"move", move},
                         {"unpack", unpack},
                         {"concat", concat},
                         {"insert", insert_or_remove},
                         {"remove", insert_or_remove}});
  set_functions(state, {{"sort", sort}});
  finish_library(state, "table");

  open_standard_library(state, LUA_STRLIBNAME, luaopen_string);
  wrap_functions(state, {{"rep", repeat}, {"format", format}});
  add_patterns(state);
  finish_library(state, "string");
  lua_pushliteral(state, "");
  lua_getmetatable(state, -1);  // the metatable shared by all strings
  lua_pushliteral(state, "string");
  lua_setfield(state, -2, "__metatable");
  lua_pop(state, 2);

  open_standard_library(state, LUA_UTF8LIBNAME, luaopen_utf8);
  finish_library(state, "utf8");

  open_standard_library(state, LUA_MATHLIBNAME, luaopen_math);
  set_functions(state, {{"exp", math_exp}, {"log", math_log}});
  finish_library(state, "math");

  open_standard_library(state, LUA_GNAME, luaopen_base);
  set_functions(state, {{"pairs", pairs},
                        {"next", next},
                        {"setmetatable", set_metatable},
                        {"pcall", protected_call},
                        {"xpcall", protected_call_with_handler}});
  register_value_types(state);
  finish_library(state, "");
  return 0;
}

}  // namespace mycojobs::workflow
