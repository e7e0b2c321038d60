// Runs the steps of a manifest's code for the kernel (workflows/workflow_decider.h). A request goes to a process of the
// engine that belongs to the owner and limits of the workflow; the answer is converted to the kernel's type.
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "workflows/engine/engine.h"
#include "workflows/workflow_decider.h"

namespace mycojobs::workflow {

// Returns the code of a workflow for WorkflowEngine::step(). Errors: those of WorkflowProgram::make().
Result<WorkflowProgram> build_program(std::uint64_t context, const WorkflowSpec&, const WorkflowManifest&);
// Conversions between the kernel's types and the engine's types.
StepRequest to_engine_request(const mycojobs::StepRequest&);
mycojobs::StepAnswer from_engine_answer(StepAnswer);

class EnginePool {
 public:
  // options: without the limits, which each workflow has. context: owner of the code.
  EnginePool(EngineOptions options, std::uint64_t context) : engine_(std::move(options)), context_(context) {}

  // A request that is too large fails its step. Other errors of WorkflowEngine::step() and those of build_program() do
  // not depend on the code.
  Result<mycojobs::StepAnswer> step(const WorkflowSpec&, const WorkflowManifest&, const mycojobs::StepRequest&);
  // For simulate() and verify_replay(), which cannot return errors: an error becomes a failure of the step and is
  // stored in last_problem(); their result is then invalid. The function must not outlive this object.
  mycojobs::StepEngine as_step_engine();
  std::optional<Error> last_problem() const;
  void stop() { engine_.stop(); }  // same as WorkflowEngine::stop()

 private:
  WorkflowEngine engine_;
  const std::uint64_t context_;
  mutable std::mutex mutex_;
  std::optional<Error> trouble_;
};

}  // namespace mycojobs::workflow
