// Executes steps of workflow programs in Lua. A step is a call of the entrypoint of a program:
// (state, event, ctx) -> (state, events, effects, annotations).
//
//   load_program()  creates a Lua state, opens the library, runs the top level of the program, and stores a copy of the
//                   heap, the image of the program
//   run_step()      restores the image, so that every step starts from the same bytes on every machine, independent of
//                   previous steps; decodes the request, calls the entrypoint, and encodes the returned values
//
// No data of a step survives, because all Lua objects are in the heap, which the next image overwrites. Not
// thread-safe: there is one heap for each process.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <string_view>

#include "base/result.h"
#include "executors/lua/lua_names.h"
#include "executors/lua/workflowhost/budget.h"

namespace mycojobs::workflow {

class StepInterpreter {
 public:
  // `instructions` is the limit of a step, and of loading a program. `counting_version` is that of budget.h.
  StepInterpreter(std::uint64_t instructions, std::uint32_t counting_version)
      : instructions_(instructions), counting_version_(counting_version) {}

  // Errors, for example of the top level of the program, are stored: each step of the program then has this error as
  // its answer.
  void load_program(std::string_view hash, const std::string& entrypoint, const std::string& name,
                    std::string_view source);
  // Sets `answer` to the answer in CBOR (step_protocol.h). Returns false if the program is not loaded, or was evicted;
  // call load_program() again. Error `invalid`: the request is malformed.
  Result<bool> run_step(std::string_view hash, std::string_view request_bytes, std::string& answer);

 private:
  struct Program {
    std::string hash, entrypoint;
    std::string failure;  // answer of each step if loading has failed; otherwise empty
    Heap::Image image;
    Budget budget;
    lua_State* state = nullptr;
  };
  void evict_programs();
  std::string create_state(Program&, const std::string& name, std::string_view source) const;

  std::uint64_t instructions_;
  std::uint32_t counting_version_;
  std::list<Program> programs_;  // most recently used first
};

std::string engine_name();  // "lua-5.4.4/3"; engines with equal names give equal answers

}  // namespace mycojobs::workflow
