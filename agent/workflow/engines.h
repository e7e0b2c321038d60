// Steps of manifests' code, as the kernel (domain/workflow_decide.h) asks for them: the request goes to a process of
// the engine that has the workflow's owner and limits, the answer comes back as the kernel has it. Safe to share
// between threads.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "domain/workflow_decide.h"
#include "workflow/engine.h"

namespace mycojobs::workflow {

// The code of a workflow, for WorkflowEngine::step(). Error: as Program::make().
Result<Program> program_of(std::uint64_t context, const WorkflowSpec&, const WorkflowManifest&);
// The kernel's names of what both sides have.
StepRequest wire_request(const mycojobs::StepRequest&);
mycojobs::StepAnswer kernel_answer(StepAnswer);

class Engines {
 public:
  // options: but for the limits, which each workflow has. context: whose code it is.
  Engines(EngineOptions options, std::uint64_t context) : engine_(std::move(options)), context_(context) {}

  // A request that is too large fails its step. Errors: the others of WorkflowEngine::step(), and those of
  // program_of(); they say nothing about the code.
  Result<mycojobs::StepAnswer> step(const WorkflowSpec&, const WorkflowManifest&, const mycojobs::StepRequest&);
  // For simulate() and verify_replay(), which have no place for an error: it becomes a failure of the step and stays in
  // trouble(), and their answer is worth nothing. Refers to this.
  mycojobs::WorkflowEngine as_function();
  std::optional<Error> trouble() const;
  void stop() { engine_.stop(); }  // as WorkflowEngine's

 private:
  WorkflowEngine engine_;
  const std::uint64_t context_;
  mutable std::mutex mutex_;
  std::optional<Error> trouble_;
};

}  // namespace mycojobs::workflow
