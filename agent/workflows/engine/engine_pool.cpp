#include "workflows/engine/engine_pool.h"

namespace mycojobs::workflow {

Result<WorkflowProgram> build_program(std::uint64_t context, const WorkflowSpec& workflow,
                                      const WorkflowManifest& manifest) {
  const auto code = manifest.code.find(workflow.module);
  if (code == manifest.code.end()) return fail(Code::not_found, workflow.module + " is not among the code");
  return WorkflowProgram::make(context, workflow.module, workflow.entrypoint, code->second);
}

Result<StepAnswer> EnginePool::step(const WorkflowSpec& workflow, const WorkflowManifest& manifest,
                                    const StepRequest& request) {
  MJ_TRY(program, build_program(context_, workflow, manifest));
  const ProcessKind kind{context_, request.owner, workflow.limits.instructions, workflow.limits.memory_bytes,
                         request.counting};
  auto answer = engine_.step(program, request, kind);
  if (answer) return answer;
  // The request would be too large in every attempt.
  if (answer.error().code == Code::too_large) return StepError{kStepErrorValue, answer.error().message, 0};
  return tl::unexpected(std::move(answer).error());
}

StepEngine EnginePool::as_step_engine() {
  return
      [this](const WorkflowSpec& workflow, const WorkflowManifest& manifest, const StepRequest& request) -> StepAnswer {
        auto answer = step(workflow, manifest, request);
        if (answer) return std::move(*answer);
        const std::lock_guard lock(mutex_);
        if (!first_error_) first_error_ = answer.error();
        return StepError{kStepErrorEngine, answer.error().message, 0};
      };
}

std::optional<Error> EnginePool::first_error() const {
  const std::lock_guard lock(mutex_);
  return first_error_;
}

}  // namespace mycojobs::workflow
