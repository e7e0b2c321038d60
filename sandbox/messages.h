// Every message of the sandbox, with its fields. Who says what to whom:
//
//   agent    -> launcher  Configure + {[alive]} (first), Launch + {stdout, stderr, channel, requests}, Kill, Fence,
//                         Forget
//   launcher -> agent     Started (answer to Configure), Ended, Kept, LogText, Layer (probe only)
//   launcher -> zygote    MapsWritten, Programs + {memfd, [alive]},
//                         Fork + {status, start, fence, [filter], mounts..., cgroups...}
//   zygote   -> launcher  StepFailed (before exec), LoadedFiles, Ready, Refused, Forked + {pidfd}, Reaped
//   launcher -> a child of its own that touches folders of the host  LoadedFiles, OpenFolders
//   that child -> launcher  FolderOpened + {mount}, Refused, Ready, LoadedFiles
//   launcher -> a child of its own that works on a job's calls  MakeListen + {pidfd}, CountLocks
//   that child -> launcher  CallHelped
//   init     -> launcher  [Listening + {listener}], StepFailed | Confined + {seccomp listener}, then MainEnded for each
//                         run that it serves
//   launcher -> init      Terminate, Abort; the fence is a timerfd that both hold (Run::fence_clock)
//   launcher -> job       Start + {stdout, stderr, channel, requests}, once, when there is a run for it; to a warm
//                         process for each
//
// Ended with status unkillable is not the end of its run, which comes later. alive: SandboxConfig::alive_fd; it stays
// open while it is in a message that nobody has read yet.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "mycojobs/outcome.h"
#include "mycojobs/sandbox.h"
#include "sandbox/frames.h"

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
  a(m.path), a(m.place);
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
  call_helped,
  confined = 64,
  main_ended,
  terminate,
  abort,
  start,
  listening,
};

struct Configure {
  static constexpr Kind kKind = Kind::configure;
  bool probe = false;  // try every layer, report, leave
  std::vector<ScriptHost> hosts;
  std::vector<std::string> allow_missing;
  std::uint32_t uid_base = 0, uid_count = 0;
  std::vector<std::pair<std::string, Id>> warm;
  std::uint32_t zygote_runs = 0, zygote_age_ms = 0, prewarmed = 0, sandbox_runs = 1, warm_processes = 0,
                unkillable_ms = 0;
  std::string fail_step;
  std::vector<std::string> leave_out;
};
template <class A>
void fields(A& a, Configure& m) {
  a(m.probe), a(m.hosts), a(m.allow_missing), a(m.uid_base), a(m.uid_count), a(m.warm), a(m.zygote_runs),
      a(m.zygote_age_ms), a(m.prewarmed), a(m.sandbox_runs), a(m.warm_processes), a(m.unkillable_ms), a(m.fail_step),
      a(m.leave_out);
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

// No process of this key of warm runs serves another one.
struct Forget {
  static constexpr Kind kKind = Kind::forget;
  std::string key;
};
template <class A>
void fields(A& a, Forget& m) {
  a(m.key);
}

struct Started {
  static constexpr Kind kKind = Kind::started;
  bool ok = false;
  std::string problem;  // a layer is missing, and what to do
};
template <class A>
void fields(A& a, Started& m) {
  a(m.ok), a(m.problem);
}

struct Ended {
  static constexpr Kind kKind = Kind::ended;
  std::uint64_t run = 0;
  Outcome outcome;
};
template <class A>
void fields(A& a, Ended& m) {
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

// What is kept ready, when it has changed.
struct Kept {
  static constexpr Kind kKind = Kind::kept;
  SandboxCounts counts;
};
template <class A>
void fields(A& a, Kept& m) {
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
  std::string fail_step;               // tests: this step fails with EIO in every job
  std::vector<std::string> leave_out;  // tests: these steps are not taken
  std::int32_t rank = 0;               // niceness of jobs: that of the agent
};
template <class A>
void fields(A& a, Programs& m) {
  a(m.fail_step), a(m.leave_out), a(m.rank);
}

// Sets a child up; what it is to run comes with Start, at once or later.
struct Fork {
  static constexpr Kind kKind = Kind::fork;
  std::uint64_t run = 0;  // Run::id
  std::uint32_t uid = 0;  // in the zygote's user namespace; also the group
  Limits limits;
  Grants grants;
  bool own_filter = false;     // else the zygote's own, with or without exec
  bool own_uid = false;        // the uid is this run's alone
  bool memory_rlimit = false;  // no memory cgroup: RLIMIT_DATA stands in
  bool canary = false;         // attack the sandbox instead of serving a job
  bool learn = false;          // the filter notifies what else would be refused
  std::uint32_t runs = 1;      // how many it may serve, one after the other, if each leaves nothing behind
  bool warm = false;           // its process may stay for the next one: it stops itself at the end of a run
};
template <class A>
void fields(A& a, Fork& m) {
  a(m.run), a(m.uid), a(m.limits), a(m.grants), a(m.own_filter), a(m.own_uid), a(m.memory_rlimit), a(m.canary),
      a(m.learn), a(m.runs), a(m.warm);
}

struct StepFailed {
  static constexpr Kind kKind = Kind::step_failed;
  std::string step;
  std::int32_t error = 0;
  bool limited = false;  // the resource limits of the run were in force
};
template <class A>
void fields(A& a, StepFailed& m) {
  a(m.step), a(m.error), a(m.limited);
}

// What it is made of (zygotes.h). Once, before Ready.
struct LoadedFiles {
  static constexpr Kind kKind = Kind::loaded_files;
  std::vector<std::string> files;
};
template <class A>
void fields(A& a, LoadedFiles& m) {
  a(m.files);
}

// Of a run's grants: a FolderOpened for each, those to read first, or Refused.
struct OpenFolders {
  static constexpr Kind kKind = Kind::open_folders;
  Grants grants;
  bool exec = false;
};
template <class A>
void fields(A& a, OpenFolders& m) {
  a(m.grants), a(m.exec);
}

// listen(2) on a descriptor of that process, with a pidfd of it.
struct MakeListen {
  static constexpr Kind kKind = Kind::make_listen;
  std::int32_t pid = -1, fd = -1, backlog = 0;
};
template <class A>
void fields(A& a, MakeListen& m) {
  a(m.pid), a(m.fd), a(m.backlog);
}

// Of the process and all below it.
struct CountLocks {
  static constexpr Kind kKind = Kind::count_locks;
  std::int32_t init = -1;
};
template <class A>
void fields(A& a, CountLocks& m) {
  a(m.init);
}

// The answer to either.
struct CallHelped {
  static constexpr Kind kKind = Kind::call_helped;
  std::int32_t error = 0;   // of listen; 0: none
  std::uint32_t locks = 0;  // that are held
};
template <class A>
void fields(A& a, CallHelped& m) {
  a(m.error), a(m.locks);
}

// The next of the folders that were to be opened.
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

struct Refused {
  static constexpr Kind kKind = Kind::refused;
  std::string why;
  bool host_short = false;  // the host was out of what `why` names
};
template <class A>
void fields(A& a, Refused& m) {
  a(m.why), a(m.host_short);
}

struct Forked {
  static constexpr Kind kKind = Kind::forked;
  std::uint64_t run = 0;
  std::int32_t error = 0;  // else one descriptor comes along: a pidfd of init
};
template <class A>
void fields(A& a, Forked& m) {
  a(m.run), a(m.error);
}

struct Reaped {
  static constexpr Kind kKind = Kind::reaped;
  std::uint64_t run = 0;
  std::int32_t wait_status = 0;
  std::uint64_t user_us = 0, system_us = 0;  // of the whole tree
};
template <class A>
void fields(A& a, Reaped& m) {
  a(m.run), a(m.wait_status), a(m.user_us), a(m.system_us);
}

struct Confined {
  static constexpr Kind kKind = Kind::confined;
  std::int32_t landlock_abi = 0;  // 0: the kernel has none
  std::vector<StepTime> setup;
};
template <class A>
void fields(A& a, Confined& m) {
  a(m.landlock_abi), a(m.setup);
}

// Of a run with an allow-list: the socket in its own network on which the proxy is to accept.
struct Listening {
  static constexpr Kind kKind = Kind::listening;
};
template <class A>
void fields(A&, Listening&) {}

struct MainEnded {
  static constexpr Kind kKind = Kind::main_ended;
  std::int32_t wait_status = 0;
  std::uint32_t stragglers = 0;
  bool fenced = false;  // init's own clock passed the fence
  bool again = false;   // nothing is left of the run, and the next may come; else init leaves
  // The run of a warm process has ended, and the process has stopped itself. `again`: its folders are empty. Init
  // waits: for the next run, or for the launcher's word that all of it is to end.
  bool stopped = false;
  bool all = false;                          // every process has been waited for: the times are those of all
  std::uint64_t user_us = 0, system_us = 0;  // of those that have been waited for
  std::uint64_t sandbox_user_us = 0, sandbox_system_us = 0;  // of init, and of all processes of all its runs
  std::uint32_t turn = 0;  // which run has ended; of a process that rested the last one that it had
};
template <class A>
void fields(A& a, MainEnded& m) {
  a(m.wait_status), a(m.stragglers), a(m.fenced), a(m.again), a(m.stopped), a(m.all), a(m.user_us), a(m.system_us),
      a(m.sandbox_user_us), a(m.sandbox_system_us), a(m.turn);
}

struct Terminate {
  static constexpr Kind kKind = Kind::terminate;
  std::uint32_t turn = 0;  // how many of its runs had ended when this was sent
};
template <class A>
void fields(A& a, Terminate& m) {
  a(m.turn);
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
