// One run as the launcher sees it, and what becomes of it.
//
//   waiting --fork()--> forking --Forked--> alive --Reaped--> ended
//      \  \                \                   \--zygote dies-/
//       \  \                `-- any failure: setup_error --->/
//        \  `- adopt(): an idle sandbox, forked before, serves this run
//         `- any failure: setup_error ----------------------->/
//
// alive is a sandbox: an init with its namespaces, groups, ids and filter, and a job below it that waits or runs. It is
// idle while it has no run: prewarmed ahead of its first one, or reused. For a run that leaves nothing behind is
// reported, and its sandbox serves a later run that is like it (Runs::turn_over()).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "sandbox/cgroup.h"
#include "sandbox/counted_calls.h"
#include "sandbox/learning.h"
#include "sandbox/loop.h"
#include "sandbox/messages.h"

namespace mycojobs::sandbox {

struct Run {
  std::uint64_t id = 0;  // the launcher's own name for it, never used twice: what zygotes know
  RunSpec spec;          // of an idle sandbox: what it has been set up for
  bool canary = false;
  bool idle = false;            // without a run, prewarmed or left by one: nobody waits for its end
  std::uint32_t runs = 1;       // that it may serve
  std::uint32_t turn = 0;       // runs that it has served
  bool main_ended = false;      // of this turn
  bool usage_complete = false;  // init has counted all processes of this turn
  std::uint64_t sandbox_user_us = 0, sandbox_system_us = 0;  // CPU of the sandbox when the turn began
  std::uint64_t zygote = 0;                                  // which one has it; 0: none yet
  Fd out, err, channel;                                      // the job's ends; closed here once the zygote has them
  Fd status, start, listener, pidfd;
  Fd canary_answer;
  Loop::Watch status_watch = 0, listener_watch = 0;
  Loop::Timer wall, cpu, fence, grace, killing, listening;
  std::optional<std::uint32_t> uid;
  bool has_group = false;
  bool forked = false;
  bool kill_wanted = false;  // KILL as soon as there is something to kill
  std::uint64_t made_us = 0, started_us = 0;
  int landlock_abi = 0;
  bool confined = false;
  bool stuck = false;    // has been reported as unkillable
  bool decided = false;  // the first recorded reason wins: outcome.status is final
  Learning learning;     // of a run that learns
  CountedCalls counted;  // of this turn
  Outcome outcome;
};

// Bytes of the name of a step, which a child says.
inline constexpr std::size_t kMostStepName = 64;

// Each does nothing if a reason is recorded already.
void decide(Run&, RunStatus, std::string reason);
void decide_setup_error(Run&, std::string step, int error, std::string remedy = {});
void decide_by_wait_status(Run&, int wait_status);
void decide_killed(Run&, KillReason);

// What the run's group counted. If the main process ended by itself, or init did, memory has the last word, since the
// kernel's kill looks like any other, and that of a child may look like nothing at all.
void judge_usage(Run&, const RunUsage&);

}  // namespace mycojobs::sandbox
