// One job of the executor v: its compile run, if the cache has no program, and its own.
//
//   compiling --ok, a program came--> running --> finish
//       \---------- anything else ----------------> finish: nothing runs
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "executors/exec/program_conversation.h"
#include "executors/v/binary_cache.h"
#include "executors/v/compiler.h"

namespace mycojobs {

struct VJob {
  JobFacts facts;
  Compiler compiler;
  std::vector<std::string> flags;
  BinaryCache cache;
  std::string key;  // of the cache
};

// Error invalid, too_large, unavailable: as of begin_program().
Result<std::unique_ptr<Conversation>> begin_v(VJob, ArtifactSink*);

}  // namespace mycojobs
