#include "workflows/engine/engine_pool.h"

namespace mycojobs::workflow {

Result<WorkflowProgram> build_program(std::uint64_t context, const WorkflowSpec& workflow,
                                      const WorkflowManifest& manifest) {
  const auto code = manifest.code.find(workflow.module);
  if (code == manifest.code.end()) return fail(Code::not_found, workflow.module + " is not among the code");
  return WorkflowProgram::make(context, workflow.module, workflow.entrypoint, code->second);
}

StepRequest to_engine_request(const mycojobs::StepRequest& request) {
  return {request.state, {request.event.schema, request.event.value, request.event.key}, request.ctx};
}

mycojobs::StepAnswer from_engine_answer(StepAnswer answer) {
  if (answer.failure)
    return StepError{std::string(to_string(answer.failure->kind)), std::move(answer.failure->message),
                     answer.failure->line.value_or(0)};
  StepOutput output;
  output.state = std::move(answer.state);
  for (auto& event : answer.domain_events)
    output.domain_events.push_back({std::move(event.schema), std::move(event.value), std::nullopt});
  for (auto& effect : answer.effects)
    output.effects.push_back(
        {std::move(effect.kind), std::move(effect.params), effect.index, std::move(effect.issuer_ref)});
  output.annotations = std::move(answer.annotations);
  return output;
}

Result<mycojobs::StepAnswer> EnginePool::step(const WorkflowSpec& workflow, const WorkflowManifest& manifest,
                                              const mycojobs::StepRequest& request) {
  MJ_TRY(program, build_program(context_, workflow, manifest));
  const ProcessKind kind{context_, request.owner, workflow.limits.instructions, workflow.limits.memory_bytes,
                         request.counting};
  auto answer = engine_.step(program, to_engine_request(request), kind);
  if (answer) return from_engine_answer(std::move(*answer));
  // The request would be too large in every attempt.
  if (answer.error().code == Code::too_large) return StepError{"value", answer.error().message, 0};
  return tl::unexpected(std::move(answer).error());
}

mycojobs::StepEngine EnginePool::as_step_engine() {
  return [this](const WorkflowSpec& workflow, const WorkflowManifest& manifest,
                const mycojobs::StepRequest& request) -> mycojobs::StepAnswer {
    auto answer = step(workflow, manifest, request);
    if (answer) return std::move(*answer);
    const std::lock_guard lock(mutex_);
    if (!first_error_) first_error_ = answer.error();
    return StepError{"engine", answer.error().message, 0};
  };
}

std::optional<Error> EnginePool::first_error() const {
  const std::lock_guard lock(mutex_);
  return first_error_;
}

}  // namespace mycojobs::workflow
