// Limits of a step: work, measured in instructions of the Lua virtual machine, and memory. Work is the sum of the
// instructions counted by the Lua hook, the charges of library functions for the bytes and rows that they process, and
// one unit for each 16 allocated bytes. The sum approximates the CPU time and is equal on all machines. A process runs
// one step at a time, on one thread.
//
// There are two counting versions (executors/lua/workflowhost/step_codec.h). Version 2 adds charges to those of
// version 1. Version 1 must not change by a single unit, because journals contain failures of steps that were counted
// with it.
#pragma once

#include <cstdint>

#include "executors/lua/lua_names.h"
#include "executors/lua/workflowhost/lua_heap.h"

namespace mycojobs::workflow {

// Reason why a step was ended. A pcall in the script cannot prevent the end.
enum class EndReason : std::uint8_t { no, by_work, by_memory };

struct Budget {
  std::uint64_t limit = 0;
  std::uint32_t counting = 2;   // counting version, 1 or 2
  std::uint64_t source = 0;     // bytes of the program's source
  std::uint64_t charged = 0;    // executed instructions and charges
  std::uint64_t allocated = 0;  // total bytes, including freed blocks
  std::uint64_t beside = 0;     // bytes currently allocated outside the heap
  EndReason ended = EndReason::no;
  bool refuses_memory = false;  // a garbage collection has used up the work
  std::uint64_t spent() const { return charged + allocated / 16; }
};

inline Budget& budget() {  // one object per process
  static constinit Budget the_budget;
  return the_budget;
}
Heap& heap();

// Raises a Lua error if the work is used up. If a pcall catches the error, the error is raised again.
inline void charge(lua_State*, std::uint64_t work);
// Same as charge(), but only in counting version 2.
inline void charge_more(lua_State*, std::uint64_t work);
// Charges in counting version 2 where raising a Lua error is not allowed. If the work is used up, the step ends at its
// next instruction.
void note_work(lua_State*, std::uint64_t work);
inline void note_work(std::uint64_t work);  // without a state: the step ends at the next check
[[noreturn]] void end_step(lua_State*, EndReason);
// Returns whether a lua_pcall with this status, and its error on top of the stack, failed because memory ran out.
// Buffers of the Lua library raise a separate error message in this case; std::bad_alloc is a status below 0.
bool is_no_memory(lua_State*, int status);
// Allocator for lua_newstate(), and the function that installs the counting hook of the state.
void* allocate(void*, void* block, std::size_t old_size, std::size_t new_size);
void count_instructions(lua_State*);

inline void charge(lua_State* state, std::uint64_t work) {
  Budget& left = budget();
  left.charged += work < left.limit ? work : left.limit + 1;
  if (left.spent() > left.limit) end_step(state, EndReason::by_work);
}

inline void charge_more(lua_State* state, std::uint64_t work) {
  if (budget().counting > 1) charge(state, work);
}

inline void note_work(std::uint64_t work) {
  if (budget().counting > 1) budget().charged += work;
}

}  // namespace mycojobs::workflow
