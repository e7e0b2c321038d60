// A mycojobs-workflowhost process: start, call, kill. Its output is untrusted. After a fault the object must be
// replaced by a new one. Not thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/spawn.h"
#include "executors/lua/workflowhost/step_protocol.h"
#include "workflows/engine/program.h"

namespace mycojobs::workflow {

// Time limits of a step, apart from its instruction count.
struct StepTimeLimits {
  std::uint32_t cpu_ms = 10'000;    // CPU time of the process, so that a busy host does not fail the step
  std::uint32_t wall_ms = 600'000;  // less than kStepTimeoutSeconds (step_protocol.h)
};

class EngineProcess {
 public:
  // Errors: `unavailable` (the process died or hung), `unsupported` (the process cannot run on this host, with the
  // reason), `io` (the process could not be created).
  static Result<std::unique_ptr<EngineProcess>> start(const std::string& program, std::uint64_t instructions,
                                                      std::uint64_t memory_bytes, std::uint32_t limit_ms,
                                                      std::uint32_t counting = kStepCounting);
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;
  ~EngineProcess();  // Kills the process.

  const std::string& name() const { return name_; }  // name of the engine: "lua-5.4.4/3"
  pid_t pid() const { return child_.pid; }

  // Errors: `unavailable` (the step exceeded its time (timed_out()), or `stopped` became true), `internal` (the process
  // died or sent invalid data).
  Result<StepAnswer> step(const WorkflowProgram&, std::string_view request, StepTimeLimits,
                          const std::atomic<bool>* stopped = nullptr);
  bool timed_out() const { return timed_out_; }

 private:
  EngineProcess() = default;
  Result<void> wait(short events);
  std::uint64_t cpu_ms() const;  // CPU time used so far
  Result<void> send(std::string_view bytes);
  Result<void> receive(char* buffer, std::size_t size);
  Result<StepFrameKind> receive_frame(std::uint32_t call, std::string& payload);
  tl::unexpected<Error> exit_error();

  Child child_;
  Fd socket_;
  std::string name_;
  std::set<std::string, std::less<>> sent_programs_;  // hashes of programs that the process has received
  std::uint32_t calls_ = 0;
  StepTimeLimits limit_;
  std::uint64_t deadline_boot_ms_ = 0;
  std::optional<std::uint64_t> cpu_deadline_ms_;  // no value before the first check of the CPU time
  const std::atomic<bool>* stopped_ = nullptr;
  bool timed_out_ = false;
};

}  // namespace mycojobs::workflow
