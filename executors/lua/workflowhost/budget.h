// Limits of a step: work, measured in instructions of the Lua virtual machine, and memory. Work is the sum of the
// instructions counted by the Lua hook, the charges of library functions for the bytes and table entries that they
// process, and one unit for each 16 allocated bytes. The sum approximates the CPU time and is equal on all machines. A
// process runs one step at a time, on one thread.
//
// There are two counting versions (executors/lua/workflowhost/step_codec.h). Version 2 adds charges to those of
// version 1. Version 1 must not change by a single unit, because journals contain failures of steps that were counted
// with it.
#pragma once

#include <cstdint>

#include "executors/lua/lua_names.h"
#include "executors/lua/workflowhost/lua_heap.h"

namespace mycojobs::workflow {

// The limit that ended a step. A pcall in the script cannot prevent the end.
enum class EndReason : std::uint8_t { none, work, memory };

struct Budget {
  std::uint64_t limit = 0;
  std::uint32_t counting_version = 2;  // 1 or 2
  std::uint64_t source_bytes = 0;      // size of the source of the program
  std::uint64_t charged_work = 0;      // executed instructions, and charges of library functions
  std::uint64_t allocated_bytes = 0;   // size of all allocations, including freed blocks
  std::uint64_t external_bytes = 0;    // bytes currently allocated outside of the heap
  EndReason end_reason = EndReason::none;
  bool rejects_allocations = false;  // a garbage collection has used up the work
  std::uint64_t used_work() const { return charged_work + allocated_bytes / 16; }
};

inline Budget& budget() {  // one object per process
  static constinit Budget budget;
  return budget;
}
Heap& heap();

// Charges work. Raises a Lua error if the limit is exceeded; if a pcall catches the error, the next charge raises it
// again.
inline void charge(lua_State*, std::uint64_t work);
// Same as charge(), but only in counting version 2.
inline void charge_v2(lua_State*, std::uint64_t work);
// Charges work, in counting version 2 only, without raising a Lua error. If the limit is exceeded, the step ends at its
// next instruction.
void charge_without_error(lua_State*, std::uint64_t work);
inline void charge_without_error(std::uint64_t work);  // The step ends at the next check.
// Ends the step with a Lua error.
[[noreturn]] void end_step(lua_State*, EndReason);
// Returns whether a lua_pcall with this status failed because memory was exhausted. REQUIRES: the error is on top of
// the stack. Buffers of the Lua library raise an error message of their own in this case; std::bad_alloc is a status
// below 0.
bool is_out_of_memory(lua_State*, int status);
// Allocator for lua_newstate().
void* allocate(void*, void* block, std::size_t old_size, std::size_t new_size);
// Installs the hook that charges executed instructions.
void install_instruction_hook(lua_State*);

inline void charge(lua_State* state, std::uint64_t work) {
  Budget& current = budget();
  current.charged_work += work < current.limit ? work : current.limit + 1;
  if (current.used_work() > current.limit) end_step(state, EndReason::work);
}

inline void charge_v2(lua_State* state, std::uint64_t work) {
  if (budget().counting_version > 1) charge(state, work);
}

inline void charge_without_error(std::uint64_t work) {
  if (budget().counting_version > 1) budget().charged_work += work;
}

}  // namespace mycojobs::workflow
