// Runs one step of a workflow program: (state, event, ctx) to (state, events, effects).
//
//   load    creates a Lua state, opens the library, runs the top level of the program, and copies the heap to the
//           program's image
//   step    restores the image, so that every step starts from the same bytes on every machine, independent of
//           previous steps; decodes the request, calls the entrypoint, and encodes the returned values as the answer
//
// A step leaves no data behind, because all its objects are in the heap, which the next image overwrites.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <string_view>

#include "base/result.h"
#include "executors/lua/lua_names.h"
#include "executors/lua/workflowhost/budget.h"

namespace mycojobs::workflow {

class Programs {
 public:
  // instructions: limit for a step, and for loading a program. counting: the counting version (budget.h).
  Programs(std::uint64_t instructions, std::uint32_t counting) : instructions_(instructions), counting_(counting) {}

  // If loading fails, for example in the top level of the program, every step of the program answers with that error.
  void load(std::string_view hash, const std::string& entrypoint, const std::string& name, std::string_view source);
  // Writes the answer as CBOR (step_protocol.h). Returns false if the program is not loaded; load it again. Error
  // invalid: the request is malformed.
  Result<bool> step(std::string_view hash, std::string_view request, std::string& answer);

 private:
  struct Program {
    std::string hash, entrypoint, failure;  // failure: the answer if loading failed
    Heap::Image image;
    Budget budget;
    lua_State* state = nullptr;
  };
  void forget_old();
  std::string load_into(Program&, const std::string& name, std::string_view source) const;

  std::uint64_t instructions_;
  std::uint32_t counting_;
  std::list<Program> programs_;  // ordered by last use, newest first
};

std::string engine_name();  // "lua-5.4.4/3"; engines with equal names give equal answers

}  // namespace mycojobs::workflow
