// All messages of the sandbox. Each has a function fields() that passes its fields to a FieldWriter or FieldReader
// (frames.h). Below, "+ {...}" lists attached descriptors, and "[...]" is optional.
//
//   agent    -> launcher  Configure + {[alive]} (first), Launch + {stdout, stderr, channel, requests}, Kill, Fence,
//                         RetireWarmKey
//   launcher -> agent     LauncherStarted (reply to Configure), LauncherRunEnded, PrewarmedCount, LogText,
//                         Layer (probe only)
//   launcher -> zygote    MapsWritten, ZygoteSetup + {memfd, [alive]},
//                         ForkRequest + {status, start, fence, [filter], mounts..., cgroups...}
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

template <class Archive>
void fields(Archive& archive, Limits& value) {
  archive(value.memory_bytes), archive(value.pids), archive(value.wall_ms), archive(value.cpu_ms),
      archive(value.open_files), archive(value.file_bytes), archive(value.tmp_bytes), archive(value.exec);
}
template <class Archive>
void fields(Archive& archive, FileOwner& value) {
  archive(value.uid), archive(value.gid);
}
template <class Archive>
void fields(Archive& archive, Volume& value) {
  archive(value.name), archive(value.path), archive(value.writable), archive(value.owner);
}
template <class Archive>
void fields(Archive& archive, PackagesFolder& value) {
  archive(value.path), archive(value.writable);
}
template <class Archive>
void fields(Archive& archive, ContextFiles& value) {
  archive(value.context), archive(value.owner), archive(value.has_fixed_uid);
}
template <class Archive>
void fields(Archive& archive, Grants& value) {
  archive(value.fs_read), archive(value.fs_write), archive(value.network), archive(value.net_allow),
      archive(value.syscalls), archive(value.volumes), archive(value.packages);
}
template <class Archive>
void fields(Archive& archive, WarmReuse& value) {
  archive(value.runs), archive(value.idle_ms), archive(value.key), archive(value.family);
}
template <class Archive>
void fields(Archive& archive, ScriptHost::Folder& value) {
  archive(value.path), archive(value.mount_point);
}
template <class Archive>
void fields(Archive& archive, ScriptHost& value) {
  archive(value.name), archive(value.program), archive(value.context), archive(value.arguments), archive(value.folders);
}
template <class Archive>
void fields(Archive& archive, StepTime& value) {
  archive(value.step), archive(value.us);
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
inline constexpr int kStartFd = 3;      // of init, and of a job before it starts: the socket that receives Start
inline constexpr int kStatusFd = 4;     // this and higher numbers belong to init; a job closes them before it waits
inline constexpr int kFenceFd = 5;      // clock of the fence, set by the launcher
inline constexpr int kAliveFd = 6;      // optional
inline constexpr int kChannelFd = 3;    // of a started job: JobChannel::to_agent
inline constexpr int kRequestsFd = 4;   // of a started job: JobChannel::from_agent
inline constexpr int kWarmStartFd = 5;  // of a warm process: the socket that receives the next Start

enum class Kind : std::uint8_t {
  configure = 1,
  launch,
  kill,
  fence,
  retire_warm_key,
  launcher_started = 16,
  launcher_run_ended,
  log_text,
  layer,
  prewarmed_count,
  maps_written = 32,
  zygote_setup,
  fork,
  setup_step_failed = 48,
  ready,
  request_refused,
  run_forked,
  init_reaped,
  loaded_files,
  open_folders,
  folder_opened,
  make_listen,
  count_locks,
  helper_reply,
  run_confined = 64,
  job_ended,
  terminate,
  abort,
  start,
  proxy_socket_ready,
};

struct Configure {
  static constexpr Kind kKind = Kind::configure;
  bool probe = false;  // test every layer, report, exit
  std::vector<ScriptHost> hosts;
  std::vector<std::string> allow_missing;
  std::uint32_t uid_base = 0, uid_count = 0;
  std::vector<std::pair<std::string, ContextId>> initial_zygotes;
  std::uint32_t max_zygote_runs = 0, max_zygote_age_ms = 0, max_prewarmed = 0, max_sandbox_runs = 1,
                max_warm_processes = 0, max_zygotes = 0, unkillable_ms = 0;
  std::string fail_step;
  std::vector<std::string> disabled_steps;
  std::vector<ContextFiles> files;
  std::vector<std::pair<ContextId, Volume>> volumes;               // volumes to check before the start
  std::vector<std::pair<ContextId, std::string>> written_folders;  // as in SandboxConfig
};
template <class Archive>
void fields(Archive& archive, Configure& message) {
  archive(message.probe), archive(message.hosts), archive(message.allow_missing), archive(message.uid_base),
      archive(message.uid_count), archive(message.initial_zygotes), archive(message.max_zygote_runs),
      archive(message.max_zygote_age_ms), archive(message.max_prewarmed), archive(message.max_sandbox_runs),
      archive(message.max_warm_processes), archive(message.max_zygotes), archive(message.unkillable_ms), archive(message.fail_step),
      archive(message.disabled_steps), archive(message.files), archive(message.volumes),
      archive(message.written_folders);
}

struct Launch {
  static constexpr Kind kKind = Kind::launch;
  RunSpec spec;
};
template <class Archive>
void fields(Archive& archive, Launch& message) {
  bool is_warm = message.spec.warm.runs > 0;
  archive(message.spec.run), archive(message.spec.host), archive(message.spec.context), archive(message.spec.limits),
      archive(message.spec.grants), archive(message.spec.learn), archive(message.spec.fence_boot_ms), archive(is_warm);
  if (is_warm) archive(message.spec.warm);
}

struct Kill {
  static constexpr Kind kKind = Kind::kill;
  std::uint64_t run = 0;
  KillReason reason = KillReason::cancelled;
  std::uint32_t grace_ms = 0;
};
template <class Archive>
void fields(Archive& archive, Kill& message) {
  archive(message.run), archive(message.reason), archive(message.grace_ms);
}

struct Fence {
  static constexpr Kind kKind = Kind::fence;
  std::uint64_t run = 0;
  std::uint64_t boot_ms = 0;
};
template <class Archive>
void fields(Archive& archive, Fence& message) {
  archive(message.run), archive(message.boot_ms);
}

// Discards the processes of this key of warm runs.
struct RetireWarmKey {
  static constexpr Kind kKind = Kind::retire_warm_key;
  std::string key;
};
template <class Archive>
void fields(Archive& archive, RetireWarmKey& message) {
  archive(message.key);
}

struct LauncherStarted {
  static constexpr Kind kKind = Kind::launcher_started;
  bool ok = false;
  std::string problem;  // the missing layer and the remedy
};
template <class Archive>
void fields(Archive& archive, LauncherStarted& message) {
  archive(message.ok), archive(message.problem);
}

struct LauncherRunEnded {
  static constexpr Kind kKind = Kind::launcher_run_ended;
  std::uint64_t run = 0;
  Outcome outcome;
};
template <class Archive>
void fields(Archive& archive, LauncherRunEnded& message) {
  Outcome& outcome = message.outcome;
  bool has_violation = outcome.violation.has_value();
  bool has_setup_error = outcome.setup_error.has_value();
  archive(message.run), archive(outcome.status), archive(outcome.never_started), archive(outcome.exit_code),
      archive(outcome.signal), archive(has_violation), archive(has_setup_error);
  if (has_violation) {
    if (!outcome.violation) outcome.violation.emplace();
    archive(outcome.violation->syscall), archive(outcome.violation->pid), archive(outcome.violation->comm);
    for (auto& arg : outcome.violation->args) archive(arg);
  }
  if (has_setup_error) {
    if (!outcome.setup_error) outcome.setup_error.emplace();
    archive(outcome.setup_error->step), archive(outcome.setup_error->error), archive(outcome.setup_error->remedy);
  }
  Usage& usage = outcome.usage;
  archive(usage.wall_us), archive(usage.user_us), archive(usage.system_us), archive(usage.memory_peak_bytes),
      archive(usage.pids_peak);
  bool is_reused = outcome.reused.has_value();
  archive(outcome.stragglers), archive(outcome.layers), archive(outcome.setup), archive(outcome.reason),
      archive(outcome.notes), archive(is_reused);
  if (is_reused) {
    if (!outcome.reused) outcome.reused.emplace();
    archive(*outcome.reused);
  }
}

// Number of prewarmed sandboxes; sent after a change.
struct PrewarmedCount {
  static constexpr Kind kKind = Kind::prewarmed_count;
  SandboxCounts counts;
};
template <class Archive>
void fields(Archive& archive, PrewarmedCount& message) {
  archive(message.counts.ready), archive(message.counts.starting), archive(message.counts.in_use),
      archive(message.counts.zygotes);
}

struct LogText {
  static constexpr Kind kKind = Kind::log_text;
  std::uint8_t level = 0;  // LogLevel
  std::string text;
};
template <class Archive>
void fields(Archive& archive, LogText& message) {
  archive(message.level), archive(message.text);
}

struct Layer {
  static constexpr Kind kKind = Kind::layer;
  std::string name;
  bool ok = false;
  std::string detail, remedy;
  bool is_optional = false;
};
template <class Archive>
void fields(Archive& archive, Layer& message) {
  archive(message.name), archive(message.ok), archive(message.detail), archive(message.remedy);
  archive(message.is_optional);
}

struct MapsWritten {
  static constexpr Kind kKind = Kind::maps_written;
};
template <class Archive>
void fields(Archive&, MapsWritten&) {}

// Sent once to a new zygote. Attached: the file with the seccomp programs, and a copy of SandboxConfig::alive_fd.
struct ZygoteSetup {
  static constexpr Kind kKind = Kind::zygote_setup;
  std::string fail_step;                    // for tests, a step that fails with EIO in every job
  std::vector<std::string> disabled_steps;  // for tests, steps to omit
  std::int32_t job_niceness = 0;            // the niceness of the agent
};
template <class Archive>
void fields(Archive& archive, ZygoteSetup& message) {
  archive(message.fail_step), archive(message.disabled_steps), archive(message.job_niceness);
}

// Request to set up a child. Its run is sent with Start, immediately or later.
struct ForkRequest {
  static constexpr Kind kKind = Kind::fork;
  std::uint64_t run = 0;  // SandboxRun::id
  std::uint32_t uid = 0;  // in the zygote's user namespace; also the group id
  Limits limits;
  Grants grants;
  bool has_own_filter = false;       // a filter is attached; otherwise one of the zygote's filters is used
  bool has_own_uid = false;          // each run has an id of its own, apart from has_fixed_uid
  bool has_fixed_uid = false;        // the uid is that of the context's files (ContextFiles::has_fixed_uid)
  bool needs_memory_rlimit = false;  // set RLIMIT_DATA, since there is no memory cgroup
  bool is_canary = false;            // attack the sandbox instead of running a job
  bool learn = false;                // the filter reports calls that would otherwise be refused
  std::uint32_t max_runs = 1;        // maximum number of runs, if each leaves nothing behind
  bool is_warm = false;              // the process may serve further runs: it stops itself at the end of a run
};
template <class Archive>
void fields(Archive& archive, ForkRequest& message) {
  archive(message.run), archive(message.uid), archive(message.limits), archive(message.grants),
      archive(message.has_own_filter), archive(message.has_own_uid), archive(message.has_fixed_uid),
      archive(message.needs_memory_rlimit), archive(message.is_canary), archive(message.learn),
      archive(message.max_runs), archive(message.is_warm);
}

struct SetupStepFailed {
  static constexpr Kind kKind = Kind::setup_step_failed;
  std::string step;
  std::int32_t error = 0;
  bool are_limits_set = false;  // the resource limits of the run were in force
};
template <class Archive>
void fields(Archive& archive, SetupStepFailed& message) {
  archive(message.step), archive(message.error), archive(message.are_limits_set);
}

// Files that a zygote has loaded (sandbox/launcher/zygotes.h). Sent once, before Ready.
struct LoadedFiles {
  static constexpr Kind kKind = Kind::loaded_files;
  std::vector<std::string> files;
};
template <class Archive>
void fields(Archive& archive, LoadedFiles& message) {
  archive(message.files);
}

// Request to open the granted folders of a run. Reply: FolderOpened for each, in the order fs.read, fs.write, volumes,
// packages, or RequestRefused.
struct OpenFolders {
  static constexpr Kind kKind = Kind::open_folders;
  Grants grants;
  bool exec = false;
  FileOwner job;         // ids of the job on the host
  FileOwner file_owner;  // owner of files that the job creates below fs.write
};
template <class Archive>
void fields(Archive& archive, OpenFolders& message) {
  archive(message.grants), archive(message.exec), archive(message.job), archive(message.file_owner);
}

// Request to call listen(2) on a descriptor of a process. The pidfd of the process is attached.
struct MakeListen {
  static constexpr Kind kKind = Kind::make_listen;
  std::int32_t pid = -1, fd = -1, backlog = 0;
};
template <class Archive>
void fields(Archive& archive, MakeListen& message) {
  archive(message.pid), archive(message.fd), archive(message.backlog);
}

// Request to count the file locks of a process and its descendants.
struct CountLocks {
  static constexpr Kind kKind = Kind::count_locks;
  std::int32_t init = -1;
};
template <class Archive>
void fields(Archive& archive, CountLocks& message) {
  archive(message.init);
}

// Reply to MakeListen and CountLocks.
struct HelperReply {
  static constexpr Kind kKind = Kind::helper_reply;
  std::int32_t error = 0;   // errno of listen(2), or 0
  std::uint32_t locks = 0;  // number of held locks
};
template <class Archive>
void fields(Archive& archive, HelperReply& message) {
  archive(message.error), archive(message.locks);
}

// Reply with the next of the requested folders. The mount is attached.
struct FolderOpened {
  static constexpr Kind kKind = Kind::folder_opened;
};
template <class Archive>
void fields(Archive&, FolderOpened&) {}

struct Ready {
  static constexpr Kind kKind = Kind::ready;
};
template <class Archive>
void fields(Archive&, Ready&) {}

struct RequestRefused {
  static constexpr Kind kKind = Kind::request_refused;
  std::string reason;
  bool host_lacks_resource = false;  // `reason` names a resource that the host lacks
  bool cannot_map = false;           // the owner of a folder cannot be mapped
};
template <class Archive>
void fields(Archive& archive, RequestRefused& message) {
  archive(message.reason), archive(message.host_lacks_resource), archive(message.cannot_map);
}

struct RunForked {
  static constexpr Kind kKind = Kind::run_forked;
  std::uint64_t run = 0;
  std::int32_t error = 0;  // errno of fork(2); if it is 0, the pidfd of init is attached
};
template <class Archive>
void fields(Archive& archive, RunForked& message) {
  archive(message.run), archive(message.error);
}

struct InitReaped {
  static constexpr Kind kKind = Kind::init_reaped;
  std::uint64_t run = 0;
  std::int32_t wait_status = 0;
  std::uint64_t user_us = 0, system_us = 0;  // CPU time of the whole process tree
};
template <class Archive>
void fields(Archive& archive, InitReaped& message) {
  archive(message.run), archive(message.wait_status), archive(message.user_us), archive(message.system_us);
}

struct RunConfined {
  static constexpr Kind kKind = Kind::run_confined;
  std::int32_t landlock_abi = 0;  // 0 if Landlock is not supported
  std::vector<StepTime> setup;
};
template <class Archive>
void fields(Archive& archive, RunConfined& message) {
  archive(message.landlock_abi), archive(message.setup);
}

// Sent for runs with an allow-list. Attached: the socket in the run's network on which the proxy accepts.
struct ProxySocketReady {
  static constexpr Kind kKind = Kind::proxy_socket_ready;
};
template <class Archive>
void fields(Archive&, ProxySocketReady&) {}

struct JobEnded {
  static constexpr Kind kKind = Kind::job_ended;
  std::int32_t wait_status = 0;
  std::uint32_t stragglers = 0;
  bool is_fenced = false;      // init's own clock passed the fence
  bool can_run_again = false;  // the run left nothing behind and init accepts another one; false: init exits
  // A warm process has ended its run and stopped itself. `can_run_again`: its folders are empty. Init waits for the
  // next run, or for the message of the launcher that ends the sandbox.
  bool is_stopped = false;
  bool are_all_reaped = false;                               // every process was reaped: the times include all of them
  std::uint64_t user_us = 0, system_us = 0;                  // of the reaped processes
  std::uint64_t sandbox_user_us = 0, sandbox_system_us = 0;  // of init and all processes of all its runs
  std::uint32_t run_index = 0;  // number of the ended run; for a stopped process, of its last run
};
template <class Archive>
void fields(Archive& archive, JobEnded& message) {
  archive(message.wait_status), archive(message.stragglers), archive(message.is_fenced), archive(message.can_run_again),
      archive(message.is_stopped), archive(message.are_all_reaped), archive(message.user_us),
      archive(message.system_us), archive(message.sandbox_user_us), archive(message.sandbox_system_us),
      archive(message.run_index);
}

struct Terminate {
  static constexpr Kind kKind = Kind::terminate;
  std::uint32_t run_index = 0;  // number of ended runs when this was sent
};
template <class Archive>
void fields(Archive& archive, Terminate& message) {
  archive(message.run_index);
}

struct Abort {
  static constexpr Kind kKind = Kind::abort;
};
template <class Archive>
void fields(Archive&, Abort&) {}

struct Start {
  static constexpr Kind kKind = Kind::start;
};
template <class Archive>
void fields(Archive&, Start&) {}

}  // namespace mycojobs::sandbox
