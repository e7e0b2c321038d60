// What a step may take: work, counted in instructions of Lua's machine, and memory. Work is what Lua's hook counts,
// what our functions charge for the bytes and rows that they look at, and one for each 16 bytes that are allocated: so
// what takes long counts much, and counts the same wherever it runs. One step at a time; one thread.
//
// There are two ways to count (domain/workflow_step.h). The second charges all that the first charges, and more; the
// first is kept as it was, to the unit, because journals hold failures of steps that were counted so.
#pragma once

#include <cstdint>

#include "executors/lua/lua_names.h"
#include "executors/lua/workflowhost/heap.h"

namespace mycojobs::workflow {

// Why a step was ended; no pcall of a script keeps it from ending.
enum class Ended : std::uint8_t { no, by_work, by_memory };

struct Budget {
  std::uint64_t limit = 0;
  std::uint32_t counting = 2;   // which way, 1 or 2
  std::uint64_t source = 0;     // bytes of the program's source
  std::uint64_t charged = 0;    // instructions and charges
  std::uint64_t allocated = 0;  // bytes, ever
  std::uint64_t beside = 0;     // bytes that are held outside of the heap now
  Ended ended = Ended::no;
  bool refuses_memory = false;  // a collection of garbage has used up the work
  std::uint64_t spent() const { return charged + allocated / 16; }
};

inline Budget& budget() {  // of this process
  static constinit Budget the_budget;
  return the_budget;
}
Heap& heap();

// Error of Lua: the work is used up. What a pcall catches is raised again.
inline void charge(lua_State*, std::uint64_t work);
// The same where only the second way to count charges.
inline void charge_more(lua_State*, std::uint64_t work);
// Charges in the second way where no error of Lua may be raised: a step without work left ends at its next instruction.
void note_work(lua_State*, std::uint64_t work);
inline void note_work(std::uint64_t work);  // without a state: the step ends at the next check of the count
[[noreturn]] void end_step(lua_State*, Ended);
// Whether this end of a lua_pcall (its status, its error on top of the stack) is that of memory. Buffers of Lua's
// library say so by an error of their own; std::bad_alloc is a status below 0.
bool is_no_memory(lua_State*, int status);
// For lua_newstate(), and the state's hook.
void* allocate(void*, void* block, std::size_t old_size, std::size_t new_size);
void count_instructions(lua_State*);

inline void charge(lua_State* state, std::uint64_t work) {
  Budget& left = budget();
  left.charged += work < left.limit ? work : left.limit + 1;
  if (left.spent() > left.limit) end_step(state, Ended::by_work);
}

inline void charge_more(lua_State* state, std::uint64_t work) {
  if (budget().counting > 1) charge(state, work);
}

inline void note_work(std::uint64_t work) {
  if (budget().counting > 1) budget().charged += work;
}

}  // namespace mycojobs::workflow
