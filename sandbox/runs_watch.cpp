// Runs that have been forked: what their init, their filter and their clocks say, and how they are ended.
#include <fmt/core.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "sandbox/pidfd.h"
#include "sandbox/proc_text.h"
#include "sandbox/runs.h"
#include "sandbox/survivors.h"
#include "sandbox/tree_cpu.h"
#include "sandbox/violation.h"

namespace mycojobs::sandbox {
namespace {

constexpr std::uint64_t kInitPatienceMs = 300, kZygotePatienceMs = 5000;

// Whether the pidfd is of a child of this zygote, or of a process that has been reaped already (its number reads -1, or
// vanishes while we look). Anything else might make us kill a stranger.
bool is_child_of(pid_t zygote, int pidfd) {
  const auto pid = pid_of(pidfd);
  if (!pid || *pid == 0) return false;
  if (*pid < 0) return true;
  if (number_after(fmt::format("/proc/{}/status", *pid), "PPid:").value_or(zygote) == zygote) return true;
  return pid_of(pidfd).value_or(0) < 0;  // it was being reaped while we looked: then its parent reads 0
}

// What a process says of its own set-up is passed on, in one frame with all the rest: no more of it than can be true.
constexpr std::size_t kMostSteps = 64;
std::vector<StepTime> believable(std::vector<StepTime> setup) {
  if (setup.size() > kMostSteps) setup.resize(kMostSteps);
  for (auto& step : setup) step.step = step.step.substr(0, kMostStepName);
  return setup;
}

}  // namespace

bool Runs::forked(Run& run, const Forked& message, Fd pidfd, pid_t zygote) {
  if (!run.forked || run.pidfd) return false;  // nobody asked, or it has answered before
  if (message.error != 0) {
    decide_setup_error(run, "fork", message.error);
    end(run);
    return true;
  }
  if (!pidfd || !is_child_of(zygote, pidfd.get())) return false;
  run.pidfd = std::move(pidfd);
  loop_.cancel(run.killing);
  if (run.kill_wanted) send_kill(run);
  return true;
}

void Runs::read_status(Run& run) {
  for (;;) {
    RawFrame frame;
    const Received received = receive_raw(run.status.get(), frame, MSG_DONTWAIT);
    if (received == Received::nothing) return;
    StepFailed step;
    sandbox::Confined confined;
    Listening listening;
    MainEnded ended;
    if (received == Received::frame && decode(frame, step)) {
      decide_setup_error(run, step.step.substr(0, kMostStepName), step.error);
    } else if (received == Received::frame && decode(frame, confined) && frame.fds.size() == 1 && !run.confined) {
      run.confined = true;
      run.landlock_abi = confined.landlock_abi;
      run.outcome.setup = believable(std::move(confined.setup));
      run.listener = std::move(frame.fds[0]);
      watch_listener(run);
      if (run.listener_watch == 0) {
        decide_setup_error(run, "seccomp", EBADF);
        return send_kill(run);
      }
      if (confined_) confined_(run);
    } else if (received == Received::frame && decode(frame, listening) && frame.fds.size() == 1 &&
               run.spec.grants.network == Network::allow_list) {
      const std::string problem = listening_ ? listening_(run, frame.fds[0]) : "there is no proxy";
      if (problem.empty()) continue;
      decide_setup_error(run, "egress", EIO, problem);
      send_kill(run);
    } else if (received == Received::frame && decode(frame, ended)) {
      main_ended(run, ended);
    } else {
      // Init has ended, or does not speak as it should.
      loop_.unwatch(run.status_watch, run.status.get());
      if (received != Received::closed) return send_kill(run);
      return kill_init_at(run, boot_ms() + kInitPatienceMs);  // it waits in the kernel until its namespace is empty
    }
  }
}

// The first of a turn counts: a slot that is given back tells of the job that has waited there.
void Runs::main_ended(Run& run, const MainEnded& ended) {
  cgroups_.sample();  // while init is still in the group
  if (!std::exchange(run.main_ended, true)) {
    run.outcome.stragglers = ended.stragglers;
    run.outcome.usage.user_us = ended.user_us;
    run.outcome.usage.system_us = ended.system_us;
    run.usage_told = ended.all;
    if (ended.fenced) decide_killed(run, KillReason::fenced);
    decide_by_wait_status(run, ended.wait_status);
    // Of children that nobody has waited for only the group knows. What the waiting job has used so far is in it too.
    const std::uint64_t told_us = ended.slot_user_us + ended.slot_system_us;
    const std::uint64_t counted_us = ended.again && run.spec.limits.exec ? cgroups_.cpu_us(run.id) : 0;
    if (ended.again && turn_over(run)) {
      run.slot_user_us = ended.slot_user_us;
      run.slot_system_us = ended.slot_system_us + std::max(counted_us, told_us) - told_us;
      return;
    }
  }
  if (ended.again) return send_kill(run);
  kill_init_at(run, boot_ms() + kInitPatienceMs);  // it has killed all the others
}

// What init and its runs had used before is not this run's.
// The group and the processes themselves agree on the sum alone: for a process shorter than a tick, what was user's
// and what was the system's time is a guess, and each guesses in its own way.
RunUsage Runs::usage_of_turn(const Run& run, RunUsage usage) {
  const std::uint64_t all = usage.user_us + usage.system_us, before = run.slot_user_us + run.slot_system_us;
  const std::uint64_t own = all - std::min(all, before);
  usage.user_us = std::min(usage.user_us, own);
  usage.system_us = own - usage.user_us;
  return usage;
}

void Runs::read_listener(Run& run, std::uint32_t events) {
  if ((events & EPOLLIN) == 0) return loop_.unwatch(run.listener_watch, run.listener.get());  // nobody is left under it
  if (run.spec.learn) {
    run.learning.answer(run.listener.get());
    return;
  }
  const auto call = receive_call(run.listener.get());
  if (CountedCalls::may_be_made(run.spec)) {
    // Without it, it was taken back before we looked, and nothing has come of it.
    if (!call) return;
    if (CountedCalls::is_one(*call)) return answer_counted(run, *call);
  }
  const Violation violation = describe_call(run.listener.get(), call);
  if (!run.decided) run.outcome.violation = violation;
  decide(run, RunStatus::violation, describe(violation));
  loop_.unwatch(run.listener_watch, run.listener.get());
  send_kill(run);
}

// One who calls without end is answered a while later, so that the launcher has time for the others.
void Runs::answer_counted(Run& run, const seccomp_notif& call) {
  const pid_t init = run.pidfd ? static_cast<pid_t>(pid_of(run.pidfd.get()).value_or(-1)) : -1;
  run.counted.answer(run.listener.get(), call, init);
  const std::uint64_t later = run.counted.next_boot_ms(boot_ms());
  if (later == 0) return;
  loop_.unwatch(run.listener_watch, run.listener.get());
  run.listening = loop_.at(later, [this, &run] { watch_listener(run); });
}

void Runs::watch_listener(Run& run) {
  run.listening = {};
  run.listener_watch =
      loop_.watch(run.listener.get(), [this, &run](std::uint32_t events) { read_listener(run, events); });
}

// The whole tree. Init is asked first, since only it can add up what its tree has used; a moment later it is killed,
// and the kernel ends the namespace with it.
void Runs::send_kill(Run& run) {
  run.kill_wanted = true;
  if (run.killing.first != 0) return;
  if (!run.pidfd) {
    // A zygote that does not say whom it forked is no use to any run; with it go all that it has.
    run.killing = loop_.at(boot_ms() + kZygotePatienceMs, [this, &run] {
      run.killing = {};
      if (!run.pidfd && silent_) silent_(run);
    });
    return;
  }
  const int error = send_message(run.status.get(), Abort{}, {}, MSG_DONTWAIT);
  kill_init_at(run, boot_ms() + (error == 0 ? kInitPatienceMs : 0));
}

// The first call of a run counts. Init may be on its way out already: then the signal changes nothing.
void Runs::kill_init_at(Run& run, std::uint64_t when) {
  if (run.killing.first != 0) return;
  run.killing = loop_.at(when, [this, &run] {
    if (run.pidfd) ::pidfd_send_signal(run.pidfd.get(), SIGKILL, nullptr, 0);
    run.killing = loop_.at(boot_ms() + settings_.unkillable_ms, [this, &run] { judge_survivor(run); });
  });
}

// Either its init is gone and the zygote cannot say so, since it is dying and another of its runs holds it; or a
// process of the run does not end.
void Runs::judge_survivor(Run& run) {
  pollfd gone{run.pidfd.get(), POLLIN, 0};
  if (run.pidfd && ::poll(&gone, 1, 0) == 1) return end(run);
  run.killing = loop_.at(boot_ms() + settings_.unkillable_ms, [this, &run] { judge_survivor(run); });
  if (std::exchange(run.stuck, true)) return;
  Outcome outcome = run.outcome;
  outcome.status = RunStatus::unkillable;
  const pid_t init = run.pidfd ? static_cast<pid_t>(pid_of(run.pidfd.get()).value_or(-1)) : -1;
  outcome.reason = fmt::format("KILL has had no effect for {} ms on {}", settings_.unkillable_ms,
                               init > 0 ? describe_survivors(init) : "its init");
  if (!run.outcome.reason.empty()) outcome.reason += "; first reason: " + run.outcome.reason;
  stuck_(run, std::move(outcome));
}

void Runs::kill(Run& run, KillReason reason, std::uint32_t grace_ms) {
  decide_killed(run, reason);
  if (!run.forked) return end(run);  // still waiting for its zygote
  if (grace_ms == 0) return send_kill(run);
  send_message(run.status.get(), Terminate{run.turn}, {}, MSG_DONTWAIT);
  if (run.grace.first == 0) {
    run.grace = loop_.at(boot_ms() + grace_ms, [this, &run] { send_kill(run); });
  }
}

void Runs::fence(Run& run, std::uint64_t boot_ms) {
  run.spec.fence_boot_ms = boot_ms;
  if (!run.forked) return;
  send_message(run.status.get(), Fence{run.id, boot_ms, run.turn}, {}, MSG_DONTWAIT);
  set_fence(run, boot_ms);
}

void Runs::set_fence(Run& run, std::uint64_t boot_ms) {
  loop_.cancel(run.fence);
  if (boot_ms == 0) return;
  run.fence = loop_.at(boot_ms, [this, &run] {
    decide_killed(run, KillReason::fenced);
    send_kill(run);
  });
}

// The next look is when it could be over at the earliest, on all CPUs; near the end every hundredth of the limit.
void Runs::watch_cpu(Run& run) {
  const std::uint64_t limit_us = run.spec.limits.cpu_ms * 1000;
  const RunUsage counted = usage_of_turn(run, cgroups_.usage(run.id));
  std::uint64_t used_us = counted.user_us + counted.system_us;
  if (used_us == 0 && run.pidfd) {
    const std::uint64_t all_us = tree_cpu_us(static_cast<pid_t>(pid_of(run.pidfd.get()).value_or(-1)));
    used_us = all_us - std::min(all_us, run.slot_user_us + run.slot_system_us);
  }
  if (used_us >= limit_us) {
    decide(run, RunStatus::timeout_cpu, fmt::format("over the limit of {} ms of CPU: killed", run.spec.limits.cpu_ms));
    return send_kill(run);
  }
  watch_cpu_in(run, limit_us - used_us);
}

void Runs::watch_cpu_in(Run& run, std::uint64_t left_us) {
  static const auto cpus = static_cast<std::uint64_t>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  const std::uint64_t at_once = std::min<std::uint64_t>(cpus, run.spec.limits.pids);
  const std::uint64_t wait_ms = std::max({left_us / at_once / 1000, run.spec.limits.cpu_ms / 100, std::uint64_t{2}});
  run.cpu = loop_.at(boot_ms() + wait_ms, [this, &run] { watch_cpu(run); });
}

bool Runs::reaped(Run& run, const Reaped& reaped) {
  pollfd gone{run.pidfd.get(), POLLIN, 0};
  if (!run.pidfd || ::poll(&gone, 1, 0) != 1) return false;  // its id and its group would be free, and it would not
  if (run.status_watch != 0) read_status(run);               // what init said before it left
  if (!run.usage_told) {
    RunUsage whole;
    whole.user_us = reaped.user_us;
    whole.system_us = reaped.system_us;
    const RunUsage own = usage_of_turn(run, whole);
    run.outcome.usage.user_us = std::max(run.outcome.usage.user_us, own.user_us);
    run.outcome.usage.system_us = std::max(run.outcome.usage.system_us, own.system_us);
  }
  if (!run.decided && WIFSIGNALED(reaped.wait_status)) decide_by_wait_status(run, reaped.wait_status);
  end(run);
  return true;
}

}  // namespace mycojobs::sandbox
