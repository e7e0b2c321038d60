// pid 1 of the job's namespace. It reaps, keeps the fence and ends the namespace; it runs nothing of the job's.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>

#include "sandbox/init_steps.h"

namespace mycojobs::sandbox {
namespace {

constexpr int kGone = 1;
constexpr int kTermAgainMs = 5;

[[noreturn]] void give_up(const ChildRun& run, const char* step, int error) {
  send_message(run.status, StepFailed{step, error});
  ::_exit(kGone);
}

void set_fence(int timer, std::uint64_t boot_ms) {
  itimerspec at{};  // all zero: off
  at.it_value.tv_sec = static_cast<time_t>(boot_ms / 1000);
  at.it_value.tv_nsec = static_cast<long>(boot_ms % 1000) * 1000000;
  ::timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, nullptr);
}

struct InitState {
  const ChildRun& run;
  pid_t job;
  int children, fence;
  bool main_ended = false;
  bool term_wanted = false;
  int main_status = 0;
};

void reap_ended(InitState& state) {
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid != state.job) continue;
    state.main_ended = true;
    state.main_status = status;
  }
}

// Kills what is left, counts it, tells, leaves. It waits for the dead itself, for the kernel would not add up their
// CPU; but not for long: it buries whatever is left of a namespace before the end of its init is seen.
[[noreturn]] void finish(InitState& state, bool fenced) {
  constexpr std::uint64_t kPatienceUs = 200000;
  reap_ended(state);  // what has died by itself is no straggler
  const std::uint64_t start = monotonic_us();
  std::uint32_t stragglers = 0;
  for (bool waiting = true; waiting && ::kill(-1, SIGKILL) == 0;) {
    pollfd children{state.children, POLLIN, 0};
    ::poll(&children, 1, 10);
    signalfd_siginfo info{};
    (void)!::read(state.children, &info, sizeof info);
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (pid == state.job) {
        state.main_status = status;
      } else {
        ++stragglers;
      }
    }
    waiting = monotonic_us() - start < kPatienceUs;
  }
  send_message(state.run.status, MainEnded{state.main_status, stragglers, fenced}, {}, MSG_DONTWAIT);
  ::_exit(0);
}

// The launcher speaks: TERM or KILL for the whole tree, or a new fence. Its end is ours too: a job without its
// supervisor would have its notifications answered by nobody.
void obey(InitState& state) {
  RawFrame frame;
  switch (receive_raw(state.run.status, frame, MSG_DONTWAIT)) {
    case Received::frame:
      break;
    case Received::nothing:
      return;
    default:
      ::_exit(kGone);
  }
  Terminate terminate;
  Abort abort;
  Fence fence;
  if (decode(frame, abort)) {
    finish(state, false);
  } else if (decode(frame, terminate)) {
    state.term_wanted = true;
  } else if (decode(frame, fence)) {
    set_fence(state.fence, fence.boot_ms);
  }
}

[[noreturn]] void keep_watch(InitState& state) {
  pollfd sources[] = {{state.children, POLLIN, 0}, {state.fence, POLLIN, 0}, {state.run.status, POLLIN, 0}};
  for (;;) {
    // Refused while the job still has the rights of its set-up: then again, or the request would be lost.
    if (state.term_wanted) state.term_wanted = ::kill(-1, SIGTERM) != 0 && errno == EPERM;
    if (::poll(sources, 3, state.term_wanted ? kTermAgainMs : -1) < 0 && errno != EINTR) ::_exit(kGone);
    if (sources[0].revents != 0) {
      signalfd_siginfo info{};
      (void)!::read(state.children, &info, sizeof info);
      reap_ended(state);
      if (state.main_ended) finish(state, false);
    }
    if (sources[1].revents != 0) finish(state, true);
    if (sources[2].revents != 0) obey(state);
  }
}

// Init needs no right either: what the job might talk it into must lead nowhere. Same uid as the job, so that it may
// kill its processes.
void confine_init(const ChildRun& run) {
  if (int error = drop_privileges(run); error != 0) give_up(run, "init_rights", error);
  if (::prctl(PR_SET_DUMPABLE, 0) != 0 || ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
    give_up(run, "init_rights", errno);
  if (int error = load_filter((*run.filters)[FilterKind::init]); error != 0) give_up(run, "init_seccomp", error);
}

}  // namespace

std::uint64_t monotonic_us() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

bool left_out(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void take_steps(ChildRun& run, std::span<const Step> steps) {
  run.times.reserve(24);
  std::uint64_t before = monotonic_us();
  for (const Step& step : steps) {
    if (left_out(run.leave_out, step.name)) continue;
    int error = step.run(run);
    if (run.fail_step == step.name) error = EIO;
    if (error != 0) give_up(run, step.name, error);
    const std::uint64_t after = monotonic_us();
    run.times.push_back({step.name, static_cast<std::uint32_t>(after - before)});
    before = after;
  }
}

void run_init(ChildRun& run) {
  ::prctl(PR_SET_NAME, "init");
  take_steps(run, init_steps());
  sigset_t children;
  ::sigemptyset(&children);
  ::sigaddset(&children, SIGCHLD);
  const pid_t job = ::fork();
  if (job < 0) give_up(run, "fork_job", errno);
  if (job == 0) {
    ::prctl(PR_SET_NAME, run.host->name);
    run_job(run);
  }
  // Our copies would keep the job's pipes open after its end.
  ::close_range(0, kChannelFd, 0);
  InitState state{run, job, ::signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK),
                  ::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC)};
  if (state.children < 0 || state.fence < 0) give_up(run, "init_clock", errno);
  confine_init(run);
  keep_watch(state);
}

}  // namespace mycojobs::sandbox
