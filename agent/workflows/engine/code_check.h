// Checks whether the code of workflows can run: loads the code, runs its top level, and looks up its entrypoint. The
// result of a step is ignored, since it does not predict the next step. Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "workflows/engine/engine.h"
#include "workflows/manifest/workflow_manifest.h"

namespace mycojobs::workflow {

struct CodeProblem {
  std::string message;
  std::uint32_t line = 0;         // line of the source; 0 if unknown
  bool lacks_entrypoint = false;  // the code loads, but has no such function
};

class CodeChecker {
 public:
  explicit CodeChecker(EngineOptions options) : engine_(std::move(options)) {}

  // Returns no value if the code can run, or is too long, which the reader of the manifest reports. Errors: those of
  // the engine.
  Result<std::optional<CodeProblem>> check_code(const std::string& module, const std::string& entrypoint,
                                                const std::string& source);
  // Checks all workflows of a manifest. Errors: `invalid` (path, module and line of each fault), those of the engine.
  Result<void> check(const WorkflowManifest&);

 private:
  Result<std::optional<StepError>> find_failure(const std::string& module, const std::string& entrypoint,
                                                const std::string& source);
  WorkflowEngine engine_;
};

}  // namespace mycojobs::workflow
