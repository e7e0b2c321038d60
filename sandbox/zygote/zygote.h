// Interface of script hosts (mycojobs-pyhost, mycojobs-luahost, mycojobs-exechost) that are zygotes. The launcher has
// started the host inside its namespaces and read-only root, with an empty environment and its control socket as
// descriptor 3. The host warms up (imports, caches; never job code), then calls serve_zygote(), which forks once per
// job and never returns. Only processes of warm scripts are reused (docs/warm.md).
//
//   launcher --fork request, descriptors--> zygote --fork--> init (pid 1 of the job's namespace) --fork--> job:
//   run(channel)
//
// A job writes to a pipe instead of a socket, since it could send descriptors over a socket. The agent would have to
// close them, and closing some objects blocks (a TCP socket with SO_LINGER, a file on a disk that hangs).
//
// Threads: the host must be single-threaded when it calls serve_zygote(), which fails otherwise.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace mycojobs {

// The job's ends of its channel to the agent (executors/channel.h).
struct JobChannel {
  int to_agent = -1;    // pipe for notes, results and calls
  int from_agent = -1;  // socket with the request and replies, on which the job cannot send
};

struct ZygoteHost {
  const char* name;       // "python"
  void (*before_fork)();  // in the zygote, immediately before and after each fork; may be null
  void (*after_fork_parent)();
  void (*after_fork_job)();  // in the job's process, before it is confined; may be null
  int (*run)(JobChannel);    // in the confined process of the job: uses the channel, returns the exit code
  // Name of an empty folder that is created in /job for each run; may be null.
  const char* folder = nullptr;
  // Called once, before the first fork: addresses of the memory that each job writes (freeze.h); may be null.
  std::span<const void* const> (*written_memory)() = nullptr;
  // Called once, before the first fork: loaded files that are not mapped, such as modules. If one of them is updated on
  // the host, the zygote is replaced (sandbox/launcher/zygotes.h); may be null.
  std::vector<std::string> (*loaded_files)() = nullptr;
  // Called after run(): returns true if the script is warm and run() may be called again in this process. Null: never.
  bool (*can_run_again)() = nullptr;
};

// While it exists, the process has no effective capabilities: for code from the operator during warm-up. This protects
// against mistakes, not against malicious code, which could make the capabilities effective again.
class CapabilityDropScope {
 public:
  CapabilityDropScope();
  CapabilityDropScope(const CapabilityDropScope&) = delete;
  CapabilityDropScope& operator=(const CapabilityDropScope&) = delete;
  ~CapabilityDropScope();

 private:
  unsigned effective_[2] = {};
};

[[noreturn]] void serve_zygote(const ZygoteHost&);

}  // namespace mycojobs
