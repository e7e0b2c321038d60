// Runs steps of workflows in processes without rights (mycojobs-workflowhost), and takes whatever happens there as an
// answer or an error. What a step answers depends on its program and its request alone; docs/workflows/lua.md has the
// rules that hold for its code.
//
//   step()      an idle process of the program's context, or a new one, or one that takes the place of another
//               context's; at most `processes`, who comes when all are busy waits
//   fault       a process that died, spoke nonsense or took longer than wall_ms is killed, and the step is run once
//               more by a new one, which has four times as long: a busy machine is no fault of the step
//
// Safe to share between threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "workflow/engine_process.h"
#include "workflow/step.h"

namespace mycojobs::workflow {

struct EngineOptions {
  std::string program;  // path of mycojobs-workflowhost
  std::uint64_t instructions = 50'000'000, memory_bytes = 64ULL << 20;
  std::uint32_t wall_ms = 2000, start_ms = 10000;
  std::size_t processes = 4;
};

class WorkflowEngine {
 public:
  explicit WorkflowEngine(EngineOptions options) : options_(std::move(options)) {}

  // A step that fails is an answer (StepAnswer::failure). Errors say nothing about it: too_large, the request;
  // unavailable, processes died twice: try again later; unsupported, they cannot be confined here; io, not started.
  Result<StepAnswer> step(const Program&, const StepRequest&);
  // Of the engine: part of what a replay depends on. Starts a process if none is idle.
  Result<std::string> name();

  std::uint64_t started() const;  // processes, ever

 private:
  struct Idle {
    std::uint64_t context = 0;
    std::unique_ptr<EngineProcess> process;
  };
  Result<std::unique_ptr<EngineProcess>> take(std::uint64_t context);
  void give_back(std::uint64_t context, std::unique_ptr<EngineProcess>);

  EngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable freed_;
  std::list<Idle> idle_;  // the last used first
  std::size_t running_ = 0;
  std::uint64_t started_ = 0;
};

}  // namespace mycojobs::workflow
