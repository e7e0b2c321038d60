// One mycojobs-workflowhost: started, asked, killed. What comes from it is hostile. After a fault it is of no more use:
// drop it and start another. Owned and called by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/spawn.h"
#include "executors/lua/workflowhost/wire.h"
#include "workflow/step.h"

namespace mycojobs::workflow {

class EngineProcess {
 public:
  // Error: unavailable, it died or hung; unsupported, it would not run here, with the reason; io, no process.
  static Result<std::unique_ptr<EngineProcess>> start(const std::string& program, std::uint64_t instructions,
                                                      std::uint64_t memory_bytes, std::uint32_t limit_ms);
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;
  ~EngineProcess();  // KILL

  const std::string& name() const { return name_; }  // of the engine: "lua-5.4.4/2"
  pid_t pid() const { return child_.pid; }

  // Errors: unavailable, it did not answer in time (timed_out()); internal, it died or spoke nonsense.
  Result<StepAnswer> step(const Program&, std::string_view request, std::uint32_t limit_ms);
  bool timed_out() const { return timed_out_; }

 private:
  EngineProcess() = default;
  Result<void> wait(short events);
  Result<void> send(std::string_view bytes);
  Result<void> receive(char* to, std::size_t size);
  Result<WireKind> receive_frame(std::uint32_t call, std::string& payload);
  tl::unexpected<Error> died();

  Child child_;
  Fd socket_;
  std::string name_;
  std::set<std::string, std::less<>> has_;  // hashes of programs that it was given
  std::uint32_t calls_ = 0, limit_ms_ = 0;
  std::uint64_t deadline_boot_ms_ = 0;
  bool timed_out_ = false;
};

}  // namespace mycojobs::workflow
