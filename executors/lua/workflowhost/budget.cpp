#include "executors/lua/workflowhost/budget.h"

#include <string_view>

namespace mycojobs::workflow {
namespace {

constexpr int kTick = 1000;  // instructions between two looks

void tick(lua_State* state, lua_Debug*) { charge(state, kTick); }

}  // namespace

Budget& budget() {
  static Budget the_budget;
  return the_budget;
}

Heap& heap() {
  static Heap the_heap;
  return the_heap;
}

void charge(lua_State* state, std::uint64_t work) {
  Budget& left = budget();
  left.charged += work < left.limit ? work : left.limit + 1;
  if (left.spent() > left.limit) end_step(state, Ended::by_work);
}

void end_step(lua_State* state, Ended why) {
  if (budget().ended == Ended::no) budget().ended = why;
  lua_sethook(state, tick, LUA_MASKCOUNT, 1);  // what still runs (closing of variables) ends at once
  luaL_error(state, "the step has ended");
  __builtin_unreachable();
}

bool is_no_memory(lua_State* state, int status) {
  if (status == LUA_OK) return false;
  if (status == LUA_ERRMEM || status < 0) return true;
  return lua_type(state, -1) == LUA_TSTRING && std::string_view(lua_tostring(state, -1)) == "not enough memory";
}

void* allocate(void*, void* block, std::size_t old_size, std::size_t new_size) {
  // For a new block the old size is its kind.
  return heap().reallocate(block, block == nullptr ? 0 : old_size, new_size, budget().allocated);
}

void count_instructions(lua_State* state) { lua_sethook(state, tick, LUA_MASKCOUNT, kTick); }

}  // namespace mycojobs::workflow
