#include "coordinator/world_step.h"

namespace mycojobs {

Result<StepAnswer> take_step(workflow::WorkflowEngine& engine, Id context, const WorkflowManifest& manifest,
                             const WorkflowSpec& spec, const StepRequest& request) {
  const auto code = manifest.code.find(spec.module);
  if (code == manifest.code.end())
    return fail(Code::not_found, spec.module + ": is not among the code of the manifest");
  MJ_TRY(program, workflow::Program::make(context, spec.module, spec.entrypoint, code->second));
  const workflow::StepRequest asked{
      request.state, {request.event.schema, request.event.value, request.event.key}, request.ctx};
  auto answer = engine.step(program, asked);
  if (!answer && answer.error().code == Code::too_large)
    return StepAnswer(StepError{"value", answer.error().message, 0});
  if (!answer) return tl::unexpected<Error>(std::move(answer).error());
  if (answer->failure)
    return StepAnswer(StepError{std::string(to_string(answer->failure->kind)), answer->failure->message,
                                answer->failure->line.value_or(0)});
  StepOutput output{std::move(answer->state), {}, {}, std::move(answer->annotations)};
  for (workflow::DomainEvent& event : answer->domain_events)
    output.domain_events.push_back({std::move(event.schema), std::move(event.value), std::nullopt});
  for (workflow::StepEffect& effect : answer->effects)
    output.effects.push_back({std::move(effect.kind), std::move(effect.params), effect.index, ""});
  return StepAnswer(std::move(output));
}

}  // namespace mycojobs
