// Runs steps of workflows in unprivileged processes (mycojobs-workflowhost). Every event of such a process becomes an
// answer or an error. The answer of a step depends only on its program and its request; docs/workflows/lua.md has the
// rules for workflow code.
//
//   step()      Uses an idle process of the same kind, or starts a new one, which may replace an idle process of
//               another kind. There are at most `processes`; a caller waits while all are busy. Processes are not
//               shared between contexts, owners or limits.
//   fault       A process that dies or sends invalid data is killed, and the step is run once more by a new process.
//   hang        A step over its time is an error, not an answer: the process is killed, and the caller retries later.
//               Only the instruction count, which is the same everywhere, makes a step fail.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "workflows/engine/engine_process.h"
#include "workflows/engine/program.h"

namespace mycojobs::workflow {

inline constexpr std::uint64_t kStandardInstructions = 50'000'000;

struct EngineOptions {
  std::string program;  // path of mycojobs-workflowhost
  std::uint64_t instructions = kStandardInstructions, memory_bytes = 64ULL << 20;
  StepTimeLimits time = {};  // CPU time for kStandardInstructions; scaled for more instructions
  std::uint32_t start_ms = 10000;
  std::size_t processes = 4;
};

// The properties that all steps of a process share.
struct ProcessKind {
  std::uint64_t context = 0, owner = 0;
  std::uint64_t instructions = 0, memory_bytes = 0;
  std::uint32_t counting = kStepCounting;
  bool operator==(const ProcessKind&) const = default;
};

class WorkflowEngine {
 public:
  explicit WorkflowEngine(EngineOptions options) : options_(std::move(options)) {}

  // A step that fails is an answer (StepError). Errors: `too_large` (the request), `invalid` (the schema of the event
  // is not UTF-8); and errors that do not depend on the step: `unavailable` (the step hung, or processes died twice;
  // retry later), `unsupported` (processes cannot be confined on this host), `io` (the process could not be started).
  Result<StepAnswer> step(const WorkflowProgram&, const StepRequest&);
  Result<StepAnswer> step(const WorkflowProgram&, const StepRequest&, const ProcessKind&);
  // Returns the name of the engine, which is part of the input of a replay. Starts a process if none is idle.
  Result<std::string> name();
  // Ends running steps with an error and rejects further steps. Thread-safe.
  void stop() { stopped_ = true; }

  std::uint64_t started() const;  // total number of started processes

 private:
  struct Idle {
    ProcessKind kind;
    std::unique_ptr<EngineProcess> process;
  };
  ProcessKind standard_kind(std::uint64_t context) const;
  StepTimeLimits time_for(const ProcessKind&) const;
  Result<std::unique_ptr<EngineProcess>> acquire_process(const ProcessKind&);
  void release_process(const ProcessKind&, std::unique_ptr<EngineProcess>);
  std::unique_ptr<EngineProcess> pop_replaced();  // requires the lock

  EngineOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable freed_;
  std::list<Idle> idle_;  // most recently used first
  std::size_t running_ = 0;
  std::uint64_t started_ = 0;
  std::atomic<bool> stopped_{false};
};

}  // namespace mycojobs::workflow
