// Port: runs one job in a fresh sandbox. The real one talks to mycojobs-launcher (sandbox/client.h).
//
// Threads: one thread owns a Sandbox and calls everything on it. Life of a run:
//
//   launch() --> RunPipes --> ... events: ended(outcome), exactly one for each launch that returned pipes
//                 \-- kill(reason), fence(deadline) at any time; unknown or ended runs are ignored
//
// Before its end a run may be reported once with status `unkillable`: KILL has had no effect for a time (5 s), a
// process is stuck in the kernel or held by a tracer. That is no end: the run is still under way, and other runs go on.
// Its end comes if the processes do go, with the reason that was recorded first. An end says that the init of the run's
// pid namespace is gone, and so all of its processes; `lost` after the death of the launcher comes when the guardian
// has seen all of them go. Only a guardian that was killed itself leaves a wait of 2 s in place of that proof.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mycojobs/outcome.h"
#include "mycojobs/policy.h"
#include "mycojobs/records.h"
#include "mycojobs/result.h"

namespace mycojobs {

// What a job may use. Bytes, counts, milliseconds. The defaults are those of python in the manual's table.
struct Limits {
  std::uint64_t memory_bytes = 256ULL << 20;  // swap: none
  std::uint32_t pids = 64;                    // threads count
  std::uint64_t wall_ms = 0;                  // 1 or more
  std::uint64_t cpu_ms = 0;                   // of all its processes; 0: no limit
  std::uint32_t open_files = 256;
  std::uint64_t file_bytes = 64ULL << 20;  // size of one file
  std::uint64_t tmp_bytes = 64ULL << 20;   // /tmp and the job's folder together; /dev/shm as much again
  bool exec = false;                       // may the job fork and exec
  bool operator==(const Limits&) const = default;
};

// What a job is given beyond its profile. A run with any of these is set up for itself alone.
struct Grants {
  std::vector<std::string> fs_read, fs_write;  // as in Policy
  Network network = Network::none;
  std::vector<std::string> net_allow;
  std::vector<std::string> syscalls;
  bool operator==(const Grants&) const = default;
};

// A run that may be in a process that has served runs before, and leave it for later ones (docs/warm.md). The sandbox
// is set up for it alone; a process belongs to one key and is never given to another.
struct Warm {
  std::uint32_t runs = 0;  // that a process serves; 0: the run is not warm
  std::uint64_t idle_ms = 0;
  std::string key;     // of all that two runs of one process have in common
  std::string family;  // the same without the values of secrets: another key of it ends what is idle under the old one
};

struct RunSpec {
  std::uint64_t run = 0;        // chosen by the caller, never used twice
  std::string host = "python";  // which zygote serves it
  Id context = 0;               // runs of different contexts never share a zygote
  Limits limits;
  Grants grants;
  Warm warm;
  bool learn = false;  // its outcome's notes say what it used beyond its profile, and what is refused it is only noted
  std::uint64_t fence_boot_ms = 0;  // CLOCK_BOOTTIME at which the run is killed unless fence() moved it; 0: no fence
};

// A program that serves runs: a zygote of it is started for each context (sandbox/zygote.h).
struct ScriptHost {
  // A folder of the host that its runs see too, read-only and with all that is mounted below. Without a link on its
  // way; it and what it lies in belong to root or to the agent's user, and no one else may write there.
  struct Folder {
    std::string path;   // absolute
    std::string place;  // where runs see it: a name of its own in their root, such as "/venv"
  };
  std::string name;     // RunSpec::host
  std::string program;  // its path
  Id context = 0;       // the one context that it serves; 0: each that has no row of its own
  std::vector<std::string> arguments = {};
  std::vector<Folder> folders = {};
};

// Our ends of the run's descriptors; the caller owns and closes them. All are non-blocking and close-on-exec.
struct RunPipes {
  int out = -1;       // read: the job's stdout
  int err = -1;       // read: the job's stderr
  int channel = -1;   // read: what the script host sends (executors/channel.h). A pipe, which carries no descriptors
  int requests = -1;  // write: a stream socket to the script host, which can send nothing back on it
};

enum class KillReason { cancelled, output_limit, fenced };

struct RunEnded {
  std::uint64_t run = 0;
  Outcome outcome;  // usage.stdout_bytes and stderr_bytes are the reader's to fill
};

// What the launcher keeps ready, as it reported last: every few seconds, if it has changed.
struct SandboxCounts {
  std::uint32_t ready = 0;    // set up, without a run: prewarmed, or left by a clean one
  std::uint32_t forming = 0;  // being set up ahead of a run
  std::uint32_t lent = 0;     // with a run, to come back after it
  std::uint32_t zygotes = 0;  // that serve
  bool operator==(const SandboxCounts&) const = default;
};

class Sandbox {
 public:
  virtual ~Sandbox() = default;
  // Error: unavailable (the launcher is gone: restart() and try again), unsupported (a layer is missing; names the
  // remedy).
  virtual Result<RunPipes> launch(const RunSpec&) = 0;
  // TERM now, KILL after grace_ms (0: KILL at once). The first recorded reason wins.
  virtual void kill(std::uint64_t run, KillReason, std::uint32_t grace_ms) = 0;
  // The new fence instead of the old one; 0: no fence any more.
  virtual void fence(std::uint64_t run, std::uint64_t fence_boot_ms) = 0;
  // No process of this key (Warm::key) serves another run: what rests of it ends now, what is in use after its run.
  virtual void forget_warm(const std::string& key) = 0;
  // Readable when read_ended() has something to say. Changes after restart().
  virtual int event_fd() const = 0;
  // Does not block. When the launcher died: every run under way is returned as `lost`, and alive() is false from then
  // on.
  virtual std::vector<RunEnded> read_ended() = 0;
  virtual SandboxCounts counts() const { return {}; }
  virtual bool alive() const = 0;
  virtual Result<void> restart() = 0;
};

}  // namespace mycojobs
