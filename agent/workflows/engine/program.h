// The code of a workflow, as the engine sends it to its processes. Immutable.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace mycojobs::workflow {

// Two programs are equal if name, entrypoint and source are equal.
class WorkflowProgram {
 public:
  // `context` owns the code; programs of different contexts never share a process. `name` is the name of the file, for
  // messages. Errors: `invalid` (a NUL in a name, or an empty entrypoint), `too_large` (the source).
  static Result<WorkflowProgram> make(std::uint64_t context, std::string name, std::string entrypoint,
                                      std::string source);

  std::uint64_t context() const { return context_; }
  const std::string& name() const { return name_; }
  const std::string& entrypoint() const { return entrypoint_; }
  const std::string& source() const { return source_; }
  const std::string& hash() const { return hash_; }  // 32 bytes

 private:
  WorkflowProgram() = default;
  std::uint64_t context_ = 0;
  std::string name_, entrypoint_, source_, hash_;
};

}  // namespace mycojobs::workflow
