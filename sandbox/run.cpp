#include "sandbox/run.h"

#include <fmt/core.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "base/errno_text.h"
#include "sandbox/remedy.h"

namespace mycojobs::sandbox {

void decide(Run& run, RunStatus status, std::string reason) {
  if (run.decided) return;
  run.decided = true;
  run.outcome.status = status;
  run.outcome.reason = std::move(reason);
}

void decide_setup_error(Run& run, std::string step, int error, std::string remedy) {
  if (run.decided) return;
  if (remedy.empty()) remedy = remedy_for_step(step, error);
  decide(run, RunStatus::setup_error,
         fmt::format("the sandbox could not be set up: {}: {}: {}", step, errno_text(error), remedy));
  run.outcome.setup_error = SetupError{std::move(step), error, std::move(remedy)};
}

void decide_by_wait_status(Run& run, int wait_status) {
  if (run.decided) return;
  if (WIFEXITED(wait_status)) {
    run.outcome.exit_code = WEXITSTATUS(wait_status);
    const bool ok = run.outcome.exit_code == 0;
    decide(run, ok ? RunStatus::ok : RunStatus::exit, ok ? "" : fmt::format("exit code {}", run.outcome.exit_code));
    return;
  }
  const int number = WTERMSIG(wait_status);
  run.outcome.signal = number;
  if (number == SIGXFSZ) {
    return decide(
        run, RunStatus::file_limit,
        fmt::format("over the limit of {} KiB for one file: ended by the kernel", run.spec.limits.file_bytes >> 10));
  }
  const char* name = ::sigabbrev_np(number);
  decide(run, RunStatus::signal, fmt::format("ended by signal {} ({})", number, name != nullptr ? name : "?"));
}

void decide_killed(Run& run, KillReason reason) {
  switch (reason) {
    case KillReason::output_limit:
      return decide(run, RunStatus::output_limit, "over the limit of output: killed");
    case KillReason::fenced:
      return decide(run, RunStatus::lost, "the lease of this run has ended: killed");
    case KillReason::cancelled:
      break;
  }
  decide(run, RunStatus::cancelled, "cancelled: killed");
}

void judge_usage(Run& run, const RunUsage& usage) {
  Usage& total = run.outcome.usage;
  total.memory_peak_bytes = usage.memory_peak;
  total.pids_peak = usage.pids_peak;
  if (!run.usage_complete) {  // the kernel's own kill loses what init would have added up
    total.user_us = std::max(total.user_us, usage.user_us);
    total.system_us = std::max(total.system_us, usage.system_us);
  }
  const RunStatus status = run.outcome.status;
  const bool by_itself = status == RunStatus::signal || status == RunStatus::exit || status == RunStatus::ok;
  if (run.decided && !by_itself) return;
  if (usage.oom_kills == 0 && usage.pids_max_hits > 0 && run.decided && status != RunStatus::ok) {
    run.decided = false;
    return decide(run, RunStatus::pids_limit,
                  fmt::format("over the limit of {} processes and threads, which refused it {}; then: {}",
                              run.spec.limits.pids, usage.pids_max_hits, run.outcome.reason));
  }
  if (usage.oom_kills == 0) return;
  // Version 2 kills the whole group; version 1 one process, and the others may have gone on without it.
  const bool went_on = run.decided && status != RunStatus::signal;
  run.decided = false;
  run.outcome.exit_code = run.outcome.signal = 0;
  decide(run, RunStatus::oom,
         fmt::format("over the memory limit of {} MiB: {}killed by the kernel", run.spec.limits.memory_bytes >> 20,
                     went_on ? "a process of the job was " : ""));
}

}  // namespace mycojobs::sandbox
