// All messages of the sandbox and their fields. "+ {...}" lists attached descriptors; "[...]" is optional.
//
//   agent    -> launcher  Configure + {[alive]} (first), Launch + {stdout, stderr, channel, requests}, Kill, Fence,
//                         RetireWarmKey
//   launcher -> agent     LauncherRunStarted (reply to Configure), LauncherRunEnded, PrewarmedCount, LogText,
//                         Layer (probe only)
//   launcher -> zygote    MapsWritten, Programs + {memfd, [alive]},
//                         Fork + {status, start, fence, [filter], mounts..., cgroups...}
//   zygote   -> launcher  SetupStepFailed (before exec), LoadedFiles, Ready, RequestRefused,
//                         RunForked + {pidfd}, InitReaped
//   launcher -> its child that accesses folders of the host  LoadedFiles, OpenFolders
//   that child -> launcher  FolderOpened + {mount}, RequestRefused, Ready, LoadedFiles
//   launcher -> its child that handles system calls of a job  MakeListen + {pidfd}, CountLocks
//   that child -> launcher  HelperReply
//   init     -> launcher  [ProxySocketReady + {listener}], SetupStepFailed | RunConfined + {seccomp listener}, then
//                         JobEnded for each run
//   launcher -> init      Terminate, Abort; the fence is a timerfd that both hold (SandboxRun::fence_clock)
//   launcher -> job       Start + {stdout, stderr, channel, requests}, once, when it has a run; to a warm process for
//                         each run
//
// LauncherRunEnded with status unkillable does not end its run; the final LauncherRunEnded follows later. `alive` is
// SandboxConfig::alive_fd, which also stays open while it is attached to an unread message.
#pragma once

#include <csignal>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sandbox/frames.h"
#include "sandbox/outcome.h"
#include "sandbox/sandbox.h"

namespace mycojobs {

template <class A>
void fields(A& a, Limits& m) {
  a(m.memory_bytes), a(m.pids), a(m.wall_ms), a(m.cpu_ms), a(m.open_files), a(m.file_bytes), a(m.tmp_bytes), a(m.exec);
}
template <class A>
void fields(A& a, Grants& m) {
  a(m.fs_read), a(m.fs_write), a(m.network), a(m.net_allow), a(m.syscalls);
}
template <class A>
void fields(A& a, Warm& m) {
  a(m.runs), a(m.idle_ms), a(m.key), a(m.family);
}
template <class A>
void fields(A& a, ScriptHost::Folder& m) {
  a(m.path), a(m.mount_point);
}
template <class A>
void fields(A& a, ScriptHost& m) {
  a(m.name), a(m.program), a(m.context), a(m.arguments), a(m.folders);
}
template <class A>
void fields(A& a, StepTime& m) {
  a(m.step), a(m.us);
}

}  // namespace mycojobs

namespace mycojobs::sandbox {

// Descriptors of the launcher and its guardian.
inline constexpr int kAgentSocket = 3;    // socket of the launcher; everything ends when it is closed
inline constexpr int kGuardianAlive = 4;  // copy of alive_fd, if the agent has one
inline constexpr int kGuardianIds = 5;    // registry entry of the jobs' ids (id_map.h), if any

// Signal from the agent to the guardian: kill the launcher, which does not exit in time. The guardian ignores other
// signals; those of a service manager are handled by the agent.
inline constexpr int kKillLauncher = SIGUSR2;

// Descriptor numbers of a run after its step `descriptors`. No other descriptor is open.
inline constexpr int kStartFd = 3;      // init, and a job before it starts: the socket that receives Start
inline constexpr int kStatusFd = 4;     // this and higher numbers: init only; a job closes them before it waits
inline constexpr int kFenceFd = 5;      // clock of the fence, set by the launcher
inline constexpr int kAliveFd = 6;      // optional
inline constexpr int kChannelFd = 3;    // a started job: JobChannel::up
inline constexpr int kRequestsFd = 4;   // a started job: JobChannel::down
inline constexpr int kWarmStartFd = 5;  // a warm process: receives the next Start

enum class Kind : std::uint8_t {
  configure = 1,
  launch,
  kill,
  fence,
  forget,
  started = 16,
  ended,
  log_text,
  layer,
  kept,
  maps_written = 32,
  programs,
  fork,
  step_failed = 48,
  ready,
  refused,
  forked,
  reaped,
  loaded_files,
  open_folders,
  folder_opened,
  make_listen,
  count_locks,
  helper_reply,
  confined = 64,
  job_ended,
  terminate,
  abort,
  start,
  listening,
};

struct Configure {
  static constexpr Kind kKind = Kind::configure;
  bool probe = false;  // test every layer, report, exit
  std::vector<ScriptHost> hosts;
  std::vector<std::string> allow_missing;
  std::uint32_t uid_base = 0, uid_count = 0;
  std::vector<std::pair<std::string, ContextId>> warm;
  std::uint32_t zygote_runs = 0, zygote_age_ms = 0, prewarmed = 0, sandbox_runs = 1, warm_processes = 0,
                unkillable_ms = 0;
  std::string fail_step;
  std::vector<std::string> disabled_steps;
};
template <class A>
void fields(A& a, Configure& m) {
  a(m.probe), a(m.hosts), a(m.allow_missing), a(m.uid_base), a(m.uid_count), a(m.warm), a(m.zygote_runs),
      a(m.zygote_age_ms), a(m.prewarmed), a(m.sandbox_runs), a(m.warm_processes), a(m.unkillable_ms), a(m.fail_step),
      a(m.disabled_steps);
}

struct Launch {
  static constexpr Kind kKind = Kind::launch;
  RunSpec spec;
};
template <class A>
void fields(A& a, Launch& m) {
  bool warm = m.spec.warm.runs > 0;
  a(m.spec.run), a(m.spec.host), a(m.spec.context), a(m.spec.limits), a(m.spec.grants), a(m.spec.learn),
      a(m.spec.fence_boot_ms), a(warm);
  if (warm) a(m.spec.warm);
}

struct Kill {
  static constexpr Kind kKind = Kind::kill;
  std::uint64_t run = 0;
  KillReason reason = KillReason::cancelled;
  std::uint32_t grace_ms = 0;
};
template <class A>
void fields(A& a, Kill& m) {
  a(m.run), a(m.reason), a(m.grace_ms);
}

struct Fence {
  static constexpr Kind kKind = Kind::fence;
  std::uint64_t run = 0;
  std::uint64_t boot_ms = 0;
};
template <class A>
void fields(A& a, Fence& m) {
  a(m.run), a(m.boot_ms);
}

// Discards the processes of this key of warm runs.
struct RetireWarmKey {
  static constexpr Kind kKind = Kind::forget;
  std::string key;
};
template <class A>
void fields(A& a, RetireWarmKey& m) {
  a(m.key);
}

struct LauncherRunStarted {
  static constexpr Kind kKind = Kind::started;
  bool ok = false;
  std::string problem;  // the missing layer and the remedy
};
template <class A>
void fields(A& a, LauncherRunStarted& m) {
  a(m.ok), a(m.problem);
}

struct LauncherRunEnded {
  static constexpr Kind kKind = Kind::ended;
  std::uint64_t run = 0;
  Outcome outcome;
};
template <class A>
void fields(A& a, LauncherRunEnded& m) {
  Outcome& o = m.outcome;
  bool violation = o.violation.has_value();
  bool setup_error = o.setup_error.has_value();
  a(m.run), a(o.status), a(o.unstarted), a(o.exit_code), a(o.signal), a(violation), a(setup_error);
  if (violation) {
    if (!o.violation) o.violation.emplace();
    a(o.violation->syscall), a(o.violation->pid), a(o.violation->comm);
    for (auto& arg : o.violation->args) a(arg);
  }
  if (setup_error) {
    if (!o.setup_error) o.setup_error.emplace();
    a(o.setup_error->step), a(o.setup_error->error), a(o.setup_error->remedy);
  }
  Usage& u = o.usage;
  a(u.wall_us), a(u.user_us), a(u.system_us), a(u.memory_peak_bytes), a(u.pids_peak);
  bool reused = o.reused.has_value();
  a(o.stragglers), a(o.layers), a(o.setup), a(o.reason), a(o.notes), a(reused);
  if (reused) {
    if (!o.reused) o.reused.emplace();
    a(*o.reused);
  }
}

// Number of prewarmed sandboxes; sent after a change.
struct PrewarmedCount {
  static constexpr Kind kKind = Kind::kept;
  SandboxCounts counts;
};
template <class A>
void fields(A& a, PrewarmedCount& m) {
  a(m.counts.ready), a(m.counts.forming), a(m.counts.lent), a(m.counts.zygotes);
}

struct LogText {
  static constexpr Kind kKind = Kind::log_text;
  std::uint8_t level = 0;  // LogLevel
  std::string text;
};
template <class A>
void fields(A& a, LogText& m) {
  a(m.level), a(m.text);
}

struct Layer {
  static constexpr Kind kKind = Kind::layer;
  std::string name;
  bool ok = false;
  std::string detail, remedy;
};
template <class A>
void fields(A& a, Layer& m) {
  a(m.name), a(m.ok), a(m.detail), a(m.remedy);
}

struct MapsWritten {
  static constexpr Kind kKind = Kind::maps_written;
};
template <class A>
void fields(A&, MapsWritten&) {}

struct Programs {
  static constexpr Kind kKind = Kind::programs;
  std::string fail_step;                    // tests: this step fails with EIO in every job
  std::vector<std::string> disabled_steps;  // tests: steps to omit
  std::int32_t rank = 0;                    // niceness of jobs, that of the agent
};
template <class A>
void fields(A& a, Programs& m) {
  a(m.fail_step), a(m.disabled_steps), a(m.rank);
}

// Sets up a child; its run is sent with Start, immediately or later.
struct Fork {
  static constexpr Kind kKind = Kind::fork;
  std::uint64_t run = 0;  // Run::id
  std::uint32_t uid = 0;  // in the zygote's user namespace; also the group id
  Limits limits;
  Grants grants;
  bool own_filter = false;     // false: the zygote's filter, with or without exec
  bool own_uid = false;        // the uid is used by this run only
  bool memory_rlimit = false;  // set RLIMIT_DATA, since there is no memory cgroup
  bool canary = false;         // attack the sandbox instead of running a job
  bool learn = false;          // the filter reports calls that would otherwise be refused
  std::uint32_t runs = 1;      // maximum number of runs, if each leaves nothing behind
  bool warm = false;           // the process may serve further runs: it stops itself at the end of a run
};
template <class A>
void fields(A& a, Fork& m) {
  a(m.run), a(m.uid), a(m.limits), a(m.grants), a(m.own_filter), a(m.own_uid), a(m.memory_rlimit), a(m.canary),
      a(m.learn), a(m.runs), a(m.warm);
}

struct SetupStepFailed {
  static constexpr Kind kKind = Kind::step_failed;
  std::string step;
  std::int32_t error = 0;
  bool limited = false;  // the resource limits of the run were in force
};
template <class A>
void fields(A& a, SetupStepFailed& m) {
  a(m.step), a(m.error), a(m.limited);
}

// Files that a zygote has loaded (sandbox/launcher/zygotes.h). Sent once, before Ready.
struct LoadedFiles {
  static constexpr Kind kKind = Kind::loaded_files;
  std::vector<std::string> files;
};
template <class A>
void fields(A& a, LoadedFiles& m) {
  a(m.files);
}

// Opens the granted folders of a run. Reply: FolderOpened for each, read-only folders first, or RequestRefused.
struct OpenFolders {
  static constexpr Kind kKind = Kind::open_folders;
  Grants grants;
  bool exec = false;
};
template <class A>
void fields(A& a, OpenFolders& m) {
  a(m.grants), a(m.exec);
}

// Calls listen(2) on a descriptor of a process, whose pidfd is attached.
struct MakeListen {
  static constexpr Kind kKind = Kind::make_listen;
  std::int32_t pid = -1, fd = -1, backlog = 0;
};
template <class A>
void fields(A& a, MakeListen& m) {
  a(m.pid), a(m.fd), a(m.backlog);
}

// Counts the file locks of a process and its descendants.
struct CountLocks {
  static constexpr Kind kKind = Kind::count_locks;
  std::int32_t init = -1;
};
template <class A>
void fields(A& a, CountLocks& m) {
  a(m.init);
}

// Reply to MakeListen and CountLocks.
struct HelperReply {
  static constexpr Kind kKind = Kind::helper_reply;
  std::int32_t error = 0;   // errno of listen(2); 0: success
  std::uint32_t locks = 0;  // number of held locks
};
template <class A>
void fields(A& a, HelperReply& m) {
  a(m.error), a(m.locks);
}

// The next of the requested folders.
struct FolderOpened {
  static constexpr Kind kKind = Kind::folder_opened;
};
template <class A>
void fields(A&, FolderOpened&) {}

struct Ready {
  static constexpr Kind kKind = Kind::ready;
};
template <class A>
void fields(A&, Ready&) {}

struct RequestRefused {
  static constexpr Kind kKind = Kind::refused;
  std::string reason;
  bool host_lacks_resource = false;  // `reason` names a resource that the host lacks
};
template <class A>
void fields(A& a, RequestRefused& m) {
  a(m.reason), a(m.host_lacks_resource);
}

struct RunForked {
  static constexpr Kind kKind = Kind::forked;
  std::uint64_t run = 0;
  std::int32_t error = 0;  // 0: the pidfd of init is attached
};
template <class A>
void fields(A& a, RunForked& m) {
  a(m.run), a(m.error);
}

struct InitReaped {
  static constexpr Kind kKind = Kind::reaped;
  std::uint64_t run = 0;
  std::int32_t wait_status = 0;
  std::uint64_t user_us = 0, system_us = 0;  // CPU time of the whole process tree
};
template <class A>
void fields(A& a, InitReaped& m) {
  a(m.run), a(m.wait_status), a(m.user_us), a(m.system_us);
}

struct RunConfined {
  static constexpr Kind kKind = Kind::confined;
  std::int32_t landlock_abi = 0;  // 0: not supported
  std::vector<StepTime> setup;
};
template <class A>
void fields(A& a, RunConfined& m) {
  a(m.landlock_abi), a(m.setup);
}

// Runs with an allow-list: the socket in the run's network on which the proxy accepts.
struct ProxySocketReady {
  static constexpr Kind kKind = Kind::listening;
};
template <class A>
void fields(A&, ProxySocketReady&) {}

struct JobEnded {
  static constexpr Kind kKind = Kind::job_ended;
  std::int32_t wait_status = 0;
  std::uint32_t stragglers = 0;
  bool fenced = false;         // init's own clock passed the fence
  bool can_run_again = false;  // the run left nothing behind and init accepts another one; false: init exits
  // A warm process has ended its run and stopped itself. `can_run_again`: its folders are empty. Init waits for the
  // next run, or for the message of the launcher that ends the sandbox.
  bool is_stopped = false;
  bool all_reaped = false;                                   // every process was reaped: the times include all of them
  std::uint64_t user_us = 0, system_us = 0;                  // of the reaped processes
  std::uint64_t sandbox_user_us = 0, sandbox_system_us = 0;  // of init and all processes of all its runs
  std::uint32_t run_index = 0;  // number of the ended run; for a stopped process, of its last run
};
template <class A>
void fields(A& a, JobEnded& m) {
  a(m.wait_status), a(m.stragglers), a(m.fenced), a(m.can_run_again), a(m.is_stopped), a(m.all_reaped), a(m.user_us),
      a(m.system_us), a(m.sandbox_user_us), a(m.sandbox_system_us), a(m.run_index);
}

struct Terminate {
  static constexpr Kind kKind = Kind::terminate;
  std::uint32_t run_index = 0;  // number of ended runs when this was sent
};
template <class A>
void fields(A& a, Terminate& m) {
  a(m.run_index);
}

struct Abort {
  static constexpr Kind kKind = Kind::abort;
};
template <class A>
void fields(A&, Abort&) {}

struct Start {
  static constexpr Kind kKind = Kind::start;
};
template <class A>
void fields(A&, Start&) {}

}  // namespace mycojobs::sandbox
