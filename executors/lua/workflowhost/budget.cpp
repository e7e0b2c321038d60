#include "executors/lua/workflowhost/budget.h"

#include <string_view>

namespace mycojobs::workflow {
namespace {

constexpr int kTick = 1000;              // instructions between two checks
constexpr std::uint64_t kCollected = 3;  // cost of a garbage collection per block, in instructions

void tick(lua_State* state, lua_Debug*) { charge(state, kTick); }

}  // namespace

Heap& heap() {
  static Heap the_heap;
  return the_heap;
}

void note_work(lua_State* state, std::uint64_t work) {
  note_work(work);
  if (budget().counting > 1 && budget().spent() > budget().limit) lua_sethook(state, tick, LUA_MASKCOUNT, 1);
}

void end_step(lua_State* state, EndReason why) {
  if (budget().ended == EndReason::no) budget().ended = why;
  lua_sethook(state, tick, LUA_MASKCOUNT, 1);  // remaining code (closing of variables) ends at once
  luaL_error(state, "the step has ended");
  __builtin_unreachable();
}

bool is_no_memory(lua_State* state, int status) {
  if (status == LUA_OK) return false;
  if (status == LUA_ERRMEM || status < 0) return true;
  return lua_type(state, -1) == LUA_TSTRING && std::string_view(lua_tostring(state, -1)) == "not enough memory";
}

void* allocate(void*, void* block, std::size_t old_size, std::size_t new_size) {
  // For a new block, Lua passes the type of the object as the old size.
  const std::size_t held = block == nullptr ? 0 : old_size;
  Budget& left = budget();
  const bool grows = new_size > held;
  if (grows && left.refuses_memory) return nullptr;
  void* const made = heap().reallocate(block, held, new_size, left.allocated);
  if (made != nullptr || !grows || left.counting < 2) return made;
  // Lua now runs a full garbage collection, which visits every live object, and repeats the request. If no work is
  // left, the second request fails too, and the step ends.
  left.charged += heap().blocks() * kCollected;
  left.refuses_memory = left.spent() > left.limit;
  if (left.refuses_memory && left.ended == EndReason::no) left.ended = EndReason::by_work;
  return nullptr;
}

void count_instructions(lua_State* state) { lua_sethook(state, tick, LUA_MASKCOUNT, kTick); }

}  // namespace mycojobs::workflow
