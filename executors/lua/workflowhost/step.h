// One step: (state, event, ctx) to (state, events, effects), by the code of a program.
//
//   load    a new state of Lua, our library, the program's top level; then the heap is copied out: the program's image
//   step    the image is copied back, so that every step begins from the same bytes, wherever and after whatever it
//           runs; the request becomes values, the entrypoint is called, what it returns becomes the answer
//
// Nothing of a step is left: what it made lies in the heap, which the next image overwrites.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <string_view>

#include "executors/lua/lua_names.h"
#include "executors/lua/workflowhost/budget.h"
#include "mycojobs/result.h"

namespace mycojobs::workflow {

class Programs {
 public:
  // instructions: what a step may take, and the loading of a program. counting: in which way (budget.h).
  Programs(std::uint64_t instructions, std::uint32_t counting) : instructions_(instructions), counting_(counting) {}

  // What is wrong with it (its top level fails) is the answer of each of its steps.
  void load(std::string_view hash, const std::string& entrypoint, const std::string& name, std::string_view source);
  // The answer in CBOR (wire.h); false: there is no such program here, load it again. Error invalid: the request is
  // none.
  Result<bool> step(std::string_view hash, std::string_view request, std::string& answer);

 private:
  struct Program {
    std::string hash, entrypoint, failure;  // failure: the answer, if it could not be loaded
    Heap::Image image;
    Budget budget;
    lua_State* state = nullptr;
  };
  void forget_old();
  std::string load_into(Program&, const std::string& name, std::string_view source) const;

  std::uint64_t instructions_;
  std::uint32_t counting_;
  std::list<Program> programs_;  // the last used first
};

std::string engine_name();  // "lua-5.4.4/3": the same name, the same answers

}  // namespace mycojobs::workflow
