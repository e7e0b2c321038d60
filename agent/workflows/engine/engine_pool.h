// Runs the steps of workflows for the kernel (workflows/workflow_decider.h). Each request is sent to an engine process
// for the owner and the limits of the workflow. Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "workflows/engine/engine.h"
#include "workflows/workflow_decider.h"

namespace mycojobs::workflow {

// Returns the code of a workflow for WorkflowEngine::step(). Errors: those of WorkflowProgram::make().
Result<WorkflowProgram> build_program(std::uint64_t context, const WorkflowSpec&, const WorkflowManifest&);

class EnginePool {
 public:
  // The limits of `options` are not used, because each workflow has its own. `context` is the owner of the code.
  EnginePool(EngineOptions options, std::uint64_t context) : engine_(std::move(options)), context_(context) {}

  // Runs one step. If the request is too large, the result is a failed step. Errors: those of build_program(), and
  // other errors of WorkflowEngine::step(), which the code of the workflow does not cause.
  Result<StepAnswer> step(const WorkflowSpec&, const WorkflowManifest&, const StepRequest&);
  // Returns a function for simulate() and verify_replay(), which cannot return errors. An error of step() becomes a
  // failed step, and the first error is stored in first_error(); the result of the simulation is then invalid. The
  // function must not outlive this object.
  StepEngine as_step_engine();
  std::optional<Error> first_error() const;
  void stop() { engine_.stop(); }  // same as WorkflowEngine::stop()

 private:
  WorkflowEngine engine_;
  const std::uint64_t context_;
  mutable std::mutex mutex_;
  std::optional<Error> first_error_;
};

}  // namespace mycojobs::workflow
