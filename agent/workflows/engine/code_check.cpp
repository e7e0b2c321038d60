#include "workflows/engine/code_check.h"

#include <nlohmann/json.hpp>

#include "text/cbor.h"

namespace mycojobs::workflow {

// Runs a first step with no state and an empty event. Returns a problem only if the code cannot be loaded.
Result<std::optional<CodeProblem>> CodeChecker::check_code(const std::string& module, const std::string& entrypoint,
                                                           const std::string& source) {
  MJ_TRY(failure, find_failure(module, entrypoint, source));
  if (!failure) return std::nullopt;
  if (failure->kind != kStepErrorLoad) {
    // The failure may be caused by the step or by the top level of the module. With a library function as entrypoint
    // the module has the same top level and a trivial step, so only a failure of the top level occurs again.
    MJ_TRY(top_level_failure, find_failure(module, "rawequal", source));
    if (!top_level_failure || top_level_failure->kind == kStepErrorValue || top_level_failure->kind == kStepErrorScript)
      return std::nullopt;
    failure = std::move(top_level_failure);
  }
  CodeProblem problem{std::move(failure->message), failure->line, false};
  const std::string prefix = module + ':' + std::to_string(problem.line) + ": ";
  if (problem.message.starts_with(prefix)) problem.message.erase(0, prefix.size());
  problem.lacks_entrypoint = problem.message.find("it defines no function") != std::string::npos;
  return problem;
}

Result<std::optional<StepError>> CodeChecker::find_failure(const std::string& module, const std::string& entrypoint,
                                                           const std::string& source) {
  auto program = WorkflowProgram::make(1, module, entrypoint, source);
  if (!program) {
    if (program.error().code != Code::too_large) return std::nullopt;  // reported by the manifest parser
    return StepError{kStepErrorLoad, program.error().message};
  }
  StepRequest request;
  request.event = {"sys/Any@1", *encode_cbor(nlohmann::json::object()), {}};
  MJ_TRY(answer, engine_.step(*program, request));
  auto* error = std::get_if<StepError>(&answer);
  return error == nullptr ? std::nullopt : std::optional(std::move(*error));
}

Result<void> CodeChecker::check(const WorkflowManifest& manifest) {
  std::string problems;
  for (const WorkflowSpec& spec : manifest.workflows) {
    const auto source = manifest.code.find(spec.module);
    if (source == manifest.code.end()) continue;  // reported by the manifest parser
    MJ_TRY(problem, check_code(spec.module, spec.entrypoint, source->second));
    if (!problem) continue;
    const std::string position = spec.module + (problem->line == 0 ? "" : ":" + std::to_string(problem->line));
    problems += (problems.empty() ? "" : "\n") + spec.name + ": impl: " + position + ": " + problem->message;
  }
  return problems.empty() ? Result<void>() : fail(Code::invalid, problems);
}

}  // namespace mycojobs::workflow
