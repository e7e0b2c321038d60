// What a script host (mycojobs-pyhost, mycojobs-luahost) does to be a zygote. The launcher has exec'd it inside
// its namespaces and read-only root, with an empty environment and its control socket as descriptor 3. It warms up
// (imports, caches; never job code), then calls serve_zygote() and never returns: one fork a job, nothing reused but by
// warm scripts (docs/warm.md).
//
//   launcher --fork request, descriptors--> zygote --fork--> init (pid 1 of the job's namespace) --fork--> job:
//   run(channel)
//
// A job writes to a pipe and not to a socket, since a socket would also carry descriptors. The agent would have to
// close what a job sends, and closing some objects blocks (a TCP socket with SO_LINGER, a file on a disk that hangs).
//
// Threads: the host must be single-threaded when it calls; serve_zygote refuses to serve otherwise.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace mycojobs {

// The job's ends of its channel to the agent (executors/channel.h).
struct JobChannel {
  int up = -1;    // written: notes, results, calls
  int down = -1;  // read: the request, replies. The socket takes nothing in the other direction
};

struct ZygoteHost {
  const char* name;       // "python"
  void (*before_fork)();  // in the zygote, right before and after each fork; may be null
  void (*after_fork_parent)();
  void (*after_fork_job)();  // in the job's process, before it is confined; may be null
  int (*run)(JobChannel);    // in the job's process, confined: talks on the channel, runs, returns the exit code
  // An empty folder that each run finds in /job, by its name; may be null.
  const char* folder = nullptr;
  // Once, before the first fork: addresses of what each job writes to (freeze.h); may be null.
  std::span<const void* const> (*written)() = nullptr;
  // Once, before the first fork: files that it is made of besides those that are mapped, such as modules. When one of
  // them is updated the host is replaced (zygotes.h); may be null.
  std::vector<std::string> (*loaded)() = nullptr;
  // Right after run(): whether its script is warm and its process fit for another run, which is called in it then.
  // Null: never.
  bool (*stays)() = nullptr;
};

// While it lives, no capability of the process is in force: for code that a host is given to warm up with. It guards
// against mistakes, not against malice: such code can take the rights up again. Give it code that you trust.
class RightsAside {
 public:
  RightsAside();
  RightsAside(const RightsAside&) = delete;
  RightsAside& operator=(const RightsAside&) = delete;
  ~RightsAside();

 private:
  unsigned before_[2] = {};
};

[[noreturn]] void serve_zygote(const ZygoteHost&);

}  // namespace mycojobs
