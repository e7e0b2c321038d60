// Steps of manifests' code, as the kernel (domain/workflow_decide.h) asks for them: the request goes to the engine that
// has the workflow's limits, the answer comes back as the kernel has it. One engine for each pair of limits, made when
// it is first needed; of more than kMostEngines the one that was asked longest ago goes with its processes, since
// limits are what manifests say. Safe to share between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

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
  static constexpr std::size_t kMostEngines = 8;
  // options: of all of them, but for the limits, which each workflow has. context: whose code it is.
  Engines(EngineOptions options, std::uint64_t context) : options_(std::move(options)), context_(context) {}

  // A request that is too large fails its step. Errors: the others of WorkflowEngine::step(), and those of
  // program_of(); they say nothing about the code.
  Result<mycojobs::StepAnswer> step(const WorkflowSpec&, const WorkflowManifest&, const mycojobs::StepRequest&);
  // For simulate() and verify_replay(), which have no place for an error: it becomes a failure of the step and stays in
  // trouble(), and their answer is worth nothing. Refers to this.
  mycojobs::WorkflowEngine as_function();
  std::optional<Error> trouble() const;

 private:
  struct Engine {
    StepLimits limits;
    std::shared_ptr<WorkflowEngine> engine;
  };
  std::shared_ptr<WorkflowEngine> engine_of(const StepLimits&);

  const EngineOptions options_;
  const std::uint64_t context_;
  mutable std::mutex mutex_;
  std::list<Engine> engines_;  // the last asked first
  std::optional<Error> trouble_;
};

}  // namespace mycojobs::workflow
