// Whether the code of workflows can be run at all: it is loaded, its top level is run, its entrypoint is looked for. No
// step counts: what one does says nothing about the next. Safe to share between threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "domain/workflow_manifest.h"
#include "workflow/engine.h"

namespace mycojobs::workflow {

struct CodeFault {
  std::string message;
  std::uint32_t line = 0;      // of the source; 0: of none
  bool no_entrypoint = false;  // it loads, and has no such function
};

class CodeLook {
 public:
  explicit CodeLook(EngineOptions options) : engine_(std::move(options)) {}

  // Nothing: it can be run, or is too long, which the manifest's reader says. Errors: the engine's.
  Result<std::optional<CodeFault>> look(const std::string& module, const std::string& entrypoint,
                                        const std::string& source);
  // All workflows of a manifest. Errors: invalid (path, module and line of each fault), the engine's.
  Result<void> check(const WorkflowManifest&);

 private:
  Result<std::optional<StepFailure>> failure_of(const std::string& module, const std::string& entrypoint,
                                                const std::string& source);
  WorkflowEngine engine_;
};

}  // namespace mycojobs::workflow
