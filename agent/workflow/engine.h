// Runs steps of workflows in processes without rights (mycojobs-workflowhost), and takes whatever happens there as an
// answer or an error. What a step answers depends on its program and its request alone; docs/workflows/lua.md has the
// rules that hold for its code.
//
//   step()      an idle process of the same kind, or a new one, which may take the place of an idle process of another
//               kind; at most `processes`, a caller that finds all of them busy waits. Contexts, owners and limits
//               share no process
//   fault       a process that died or spoke nonsense is killed, and the step is run once more by a new one
//   hang        a step that takes more time than it may is an error, no answer: the process is killed, and the caller
//               tries again later. Only the count of work, which is the same everywhere, fails a step
//
// Safe to share between threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "workflow/engine_process.h"
#include "workflow/step.h"

namespace mycojobs::workflow {

inline constexpr std::uint64_t kStandardInstructions = 50'000'000;

struct EngineOptions {
  std::string program;  // path of mycojobs-workflowhost
  std::uint64_t instructions = kStandardInstructions, memory_bytes = 64ULL << 20;
  StepTime time = {};  // CPU time: of kStandardInstructions; of more in proportion
  std::uint32_t start_ms = 10000;
  std::size_t processes = 4;
};

// What the steps of a process have in common.
struct ProcessKind {
  std::uint64_t context = 0, owner = 0;
  std::uint64_t instructions = 0, memory_bytes = 0;
  std::uint32_t counting = kStepCounting;
  bool operator==(const ProcessKind&) const = default;
};

class WorkflowEngine {
 public:
  explicit WorkflowEngine(EngineOptions options) : options_(std::move(options)) {}

  // A step that fails is an answer (StepAnswer::failure). Errors say nothing about it: too_large, the request;
  // unavailable, the step hung or processes died twice: try again later; unsupported, they cannot be confined here; io,
  // not started.
  Result<StepAnswer> step(const Program&, const StepRequest&);
  Result<StepAnswer> step(const Program&, const StepRequest&, const ProcessKind&);
  // Of the engine: part of what a replay depends on. Starts a process if none is idle.
  Result<std::string> name();
  // Ends the steps that run, with an error; from now on there are no others. Any thread.
  void stop() { stopped_ = true; }

  std::uint64_t started() const;  // processes, ever

 private:
  struct Idle {
    ProcessKind kind;
    std::unique_ptr<EngineProcess> process;
  };
  ProcessKind standard_kind(std::uint64_t context) const;
  StepTime time_for(const ProcessKind&) const;
  Result<std::unique_ptr<EngineProcess>> take(const ProcessKind&);
  void give_back(const ProcessKind&, std::unique_ptr<EngineProcess>);
  std::unique_ptr<EngineProcess> pop_replaced();  // with the lock held

  EngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable freed_;
  std::list<Idle> idle_;  // the last used first
  std::size_t running_ = 0;
  std::uint64_t started_ = 0;
  std::atomic<bool> stopped_{false};
};

}  // namespace mycojobs::workflow
