#include "workflows/engine/code_check.h"

#include <nlohmann/json.hpp>

#include "text/cbor.h"
#include "text/utf8.h"

namespace mycojobs::workflow {

// Runs a first step with no state and an empty event. Only a failure to load is reported.
Result<std::optional<CodeProblem>> CodeChecker::check_code(const std::string& module, const std::string& entrypoint,
                                                           const std::string& source) {
  MJ_TRY(failure, failure_of(module, entrypoint, source));
  if (!failure) return std::nullopt;
  if (failure->kind != StepFailureKind::load) {
    // The failure may belong to the step or to the top level. A library function as entrypoint has the same top level
    // and a trivial step.
    MJ_TRY(top, failure_of(module, "rawequal", source));
    if (!top || top->kind == StepFailureKind::value || top->kind == StepFailureKind::script) return std::nullopt;
    failure = std::move(top);
  }
  CodeProblem fault{std::move(failure->message), failure->line.value_or(0), false};
  const std::string prefix = module + ':' + std::to_string(fault.line) + ": ";
  if (fault.message.starts_with(prefix)) fault.message.erase(0, prefix.size());
  fault.no_entrypoint = fault.message.find("it defines no function") != std::string::npos;
  return fault;
}

Result<std::optional<StepFailure>> CodeChecker::failure_of(const std::string& module, const std::string& entrypoint,
                                                           const std::string& source) {
  auto program = WorkflowProgram::make(1, module, entrypoint, source);
  if (!program) {
    if (program.error().code != Code::too_large) return std::nullopt;  // the reader of the manifest reports it
    return StepFailure{StepFailureKind::load, program.error().message, {}};
  }
  StepRequest request;
  request.event = {"sys/Any@1", *encode_cbor(nlohmann::json::object()), {}};
  MJ_TRY(answer, engine_.step(*program, request));
  return answer.failure;
}

Result<void> CodeChecker::check(const WorkflowManifest& manifest) {
  std::string faults;
  for (const WorkflowSpec& spec : manifest.workflows) {
    const auto source = manifest.code.find(spec.module);
    if (source == manifest.code.end()) continue;  // the reader of the manifest reports it
    MJ_TRY(fault, check_code(spec.module, spec.entrypoint, source->second));
    if (!fault) continue;
    const std::string at = spec.module + (fault->line == 0 ? "" : ":" + std::to_string(fault->line));
    faults += (faults.empty() ? "" : "\n") + spec.name + ": impl: " + at + ": " + fault->message;
  }
  return faults.empty() ? Result<void>() : fail(Code::invalid, faults);
}

}  // namespace mycojobs::workflow
