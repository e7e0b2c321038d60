#include "executors/lua/workflowhost/budget.h"

#include <string_view>

namespace mycojobs::workflow {
namespace {

constexpr int kInstructionsPerCheck = 1000;           // instructions between two checks
constexpr std::uint64_t kCollectionWorkPerBlock = 3;  // cost of a garbage collection per block, in instructions

void charge_instructions(lua_State* state, lua_Debug*) { charge(state, kInstructionsPerCheck); }

}  // namespace

Heap& heap() {
  static Heap heap;
  return heap;
}

void charge_without_error(lua_State* state, std::uint64_t work) {
  charge_without_error(work);
  if (budget().counting_version > 1 && budget().used_work() > budget().limit)
    lua_sethook(state, charge_instructions, LUA_MASKCOUNT, 1);
}

void end_step(lua_State* state, EndReason reason) {
  if (budget().end_reason == EndReason::none) budget().end_reason = reason;
  lua_sethook(state, charge_instructions, LUA_MASKCOUNT, 1);  // remaining code (closing of variables) ends at once
  luaL_error(state, "the step has ended");
  __builtin_unreachable();
}

bool is_out_of_memory(lua_State* state, int status) {
  if (status == LUA_OK) return false;
  if (status == LUA_ERRMEM || status < 0) return true;
  return lua_type(state, -1) == LUA_TSTRING && std::string_view(lua_tostring(state, -1)) == "not enough memory";
}

void* allocate(void*, void* block, std::size_t old_size, std::size_t new_size) {
  // For a new block, Lua passes the type of the object as the old size.
  const std::size_t old_bytes = block == nullptr ? 0 : old_size;
  Budget& current = budget();
  const bool grows = new_size > old_bytes;
  if (grows && current.rejects_allocations) return nullptr;
  void* const new_block = heap().reallocate(block, old_bytes, new_size, current.allocated_bytes);
  if (new_block != nullptr || !grows || current.counting_version < 2) return new_block;
  // Lua now runs a full garbage collection, which visits every live object, and repeats the request. If the collection
  // exceeds the limit of work, the second request fails, too, and the step ends.
  current.charged_work += heap().block_count() * kCollectionWorkPerBlock;
  current.rejects_allocations = current.used_work() > current.limit;
  if (current.rejects_allocations && current.end_reason == EndReason::none) current.end_reason = EndReason::work;
  return nullptr;
}

void install_instruction_hook(lua_State* state) {
  lua_sethook(state, charge_instructions, LUA_MASKCOUNT, kInstructionsPerCheck);
}

}  // namespace mycojobs::workflow
