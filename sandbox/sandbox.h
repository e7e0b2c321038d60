// Port: runs one job in a new sandbox. The production implementation uses mycojobs-launcher
// (sandbox/launcher_client.h).
//
// Thread-safety: one thread owns a Sandbox and makes all calls. Life of a run:
//
//   launch() --> RunPipes --> ... events: ended(outcome), exactly one for each launch that returned pipes
//                 \-- kill(reason), fence(deadline) at any time; unknown or ended runs are ignored
//
// Before its end, a run may be reported once with status `unkillable`: SIGKILL has had no effect for 5 s, because a
// process is stuck in the kernel or held by a tracer. This is not an end: the run continues, and other runs are not
// affected. If the processes end later, the run ends with the reason that was recorded first. An end guarantees that
// the init of the run's pid namespace, and therefore every process of the run, is gone. After the death of the
// launcher, `lost` is reported once the guardian has observed the end of all processes. Only if the guardian itself was
// killed, a wait of 2 s replaces this proof.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "sandbox/outcome.h"
#include "sandbox/sandbox_policy.h"
#include "sandbox/volume.h"

namespace mycojobs {

// Resource limits of a job in bytes, counts and milliseconds. The defaults are those of python in the manual's table.
struct Limits {
  std::uint64_t memory_bytes = 256ULL << 20;  // without swap
  std::uint32_t pids = 64;                    // threads included
  std::uint64_t wall_ms = 0;                  // at least 1
  std::uint64_t cpu_ms = 0;                   // CPU time of all processes; 0 means no limit
  std::uint32_t open_files = 256;
  std::uint64_t file_bytes = 64ULL << 20;  // size of one file
  std::uint64_t tmp_bytes = 64ULL << 20;   // /tmp and the job's folder together; /dev/shm has the same limit again
  bool exec = false;                       // fork and exec are permitted
  bool operator==(const Limits&) const = default;
};

// Permissions beyond the profile. A run with any of them gets a sandbox that is set up for this run only.
struct Grants {
  std::vector<std::string> fs_read, fs_write;  // as in Policy
  Network network = Network::none;
  std::vector<std::string> net_allow;
  std::vector<std::string> syscalls;
  std::vector<Volume> volumes = {};
  PackagesFolder packages = {};
  bool operator==(const Grants&) const = default;
};
inline std::size_t count_folders(const Grants& grants) {
  return grants.fs_read.size() + grants.fs_write.size() + grants.volumes.size() +
         (grants.packages.path.empty() ? 0 : 1);
}
// Returns whether the run may create files on the host, or reads files with the rights of a volume's owner.
inline bool needs_file_owner(const Grants& grants) { return !grants.fs_write.empty() || !grants.volumes.empty(); }

// Reuse of a script process for several runs (docs/warm.md). The sandbox is set up for this purpose only; a process
// belongs to one key and is never used for another.
struct WarmReuse {
  std::uint32_t runs = 0;  // number of runs that one process may serve; 0 if the run is not warm
  std::uint64_t idle_ms = 0;
  std::string key;  // digest of everything that the runs of one process must have in common
  // Digest as in `key`, but without the values of secrets. A new key of a family ends the idle processes of the old
  // key.
  std::string family;
};

// Parameters of a run.
struct RunSpec {
  std::uint64_t run = 0;        // chosen by the caller, never reused
  std::string host = "python";  // name of the script host, which selects the zygote
  ContextId context = 0;        // runs of different contexts never share a zygote
  Limits limits;
  Grants grants;
  WarmReuse warm;
  // Learning mode: Outcome::notes lists the use beyond the profile. Denied system calls are noted and fail.
  bool learn = false;
  bool merge_output = false;  // the job's stdout and stderr are the same pipe, RunPipes::out
  // Time on CLOCK_BOOTTIME at which the run is killed unless fence() changed the time; 0 if the run has no fence.
  std::uint64_t fence_boot_ms = 0;
};

// A program that executes runs. A zygote of it is started for each context (sandbox/zygote/zygote.h).
struct ScriptHost {
  // A folder of the host that runs see read-only, with all mounts below it. Its path contains no symbolic link. The
  // folder and its parent folders belong to root or to the agent's user, and no other user may write there.
  struct Folder {
    std::string path;         // absolute
    std::string mount_point;  // a new name in their root, such as "/venv"
  };
  std::string name;       // RunSpec::host
  std::string program;    // path of the program
  ContextId context = 0;  // the only context that it serves, or 0 for every context without an entry of its own
  std::vector<std::string> arguments = {};
  std::vector<Folder> folders = {};
};

// The agent's ends of the run's descriptors. The caller owns and closes them. All are non-blocking and close-on-exec.
struct RunPipes {
  int out = -1;  // to read the job's stdout
  int err = -1;  // to read the job's stderr; -1 if merge_output is set
  int channel =
      -1;  // to read frames of the script host (executors/channel.h); a pipe, which cannot transfer descriptors
  int requests = -1;  // to write to the script host; a stream socket on which the script host cannot send
};

enum class KillReason { cancelled, output_limit, fenced };

// End of a run.
struct RunEnded {
  std::uint64_t run = 0;
  Outcome outcome;  // the reader of the pipes sets usage.stdout_bytes and stderr_bytes
};

// Prepared sandboxes, as last reported by the launcher, which reports changes every few seconds.
struct SandboxCounts {
  std::uint32_t ready = 0;     // set up and idle: prewarmed, or returned by a clean run
  std::uint32_t starting = 0;  // being set up ahead of a run
  std::uint32_t in_use = 0;    // used by runs that return them at their end
  std::uint32_t zygotes = 0;   // running zygotes
  bool operator==(const SandboxCounts&) const = default;
};

class Sandbox {
 public:
  virtual ~Sandbox() = default;
  // Errors: unavailable (the launcher has ended: call restart() and repeat), unsupported (a layer is missing; the
  // message names the remedy).
  virtual Result<RunPipes> launch(const RunSpec&) = 0;
  // Sends SIGTERM now and SIGKILL after grace_ms (0: SIGKILL at once). The first recorded reason wins.
  virtual void kill(std::uint64_t run, KillReason, std::uint32_t grace_ms) = 0;
  // Replaces the fence; 0 removes it.
  virtual void fence(std::uint64_t run, std::uint64_t fence_boot_ms) = 0;
  // Prevents processes of this key (WarmReuse::key) from serving further runs: an idle process ends now, a busy one
  // after its run.
  virtual void retire_warm_key(const std::string& key) = 0;
  // Readable when read_ended() has a result. Changes after restart().
  virtual int event_fd() const = 0;
  // Does not block. If the launcher has died, all active runs are returned as `lost`, and alive() returns false from
  // then on.
  virtual std::vector<RunEnded> read_ended() = 0;
  virtual SandboxCounts counts() const { return {}; }
  virtual bool alive() const = 0;
  virtual Result<void> restart() = 0;
};

}  // namespace mycojobs
