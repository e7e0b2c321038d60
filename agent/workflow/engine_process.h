// One mycojobs-workflowhost: started, asked, killed. What comes from it is hostile. After a fault it is of no more use:
// drop it and start another. Owned and called by one thread at a time.
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
#include "executors/lua/workflowhost/wire.h"
#include "workflow/step.h"

namespace mycojobs::workflow {

// How long a step may take, whatever its count of work says.
struct StepTime {
  std::uint32_t cpu_ms = 10'000;    // of the process: a host that is busy is no fault of the step
  std::uint32_t wall_ms = 600'000;  // less than kAbandonedSeconds
};

class EngineProcess {
 public:
  // Error: unavailable, it died or hung; unsupported, it would not run here, with the reason; io, no process.
  static Result<std::unique_ptr<EngineProcess>> start(const std::string& program, std::uint64_t instructions,
                                                      std::uint64_t memory_bytes, std::uint32_t limit_ms,
                                                      std::uint32_t counting = kStepCounting);
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;
  ~EngineProcess();  // KILL

  const std::string& name() const { return name_; }  // of the engine: "lua-5.4.4/2"
  pid_t pid() const { return child_.pid; }

  // Errors: unavailable, the step took longer than it may (timed_out()), or `stopped` became true; internal, it died or
  // spoke nonsense.
  Result<StepAnswer> step(const Program&, std::string_view request, StepTime,
                          const std::atomic<bool>* stopped = nullptr);
  bool timed_out() const { return timed_out_; }

 private:
  EngineProcess() = default;
  Result<void> wait(short events);
  std::uint64_t cpu_ms() const;  // that it has used
  Result<void> send(std::string_view bytes);
  Result<void> receive(char* to, std::size_t size);
  Result<WireKind> receive_frame(std::uint32_t call, std::string& payload);
  tl::unexpected<Error> died();

  Child child_;
  Fd socket_;
  std::string name_;
  std::set<std::string, std::less<>> has_;  // hashes of programs that it was given
  std::uint32_t calls_ = 0;
  StepTime limit_;
  std::uint64_t deadline_boot_ms_ = 0;
  std::optional<std::uint64_t> cpu_deadline_ms_;  // nothing: the wait is too short to look
  const std::atomic<bool>* stopped_ = nullptr;
  bool timed_out_ = false;
};

}  // namespace mycojobs::workflow
