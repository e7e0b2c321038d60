// pid 1 of the job's namespace. It reaps, keeps the fence and ends the namespace; it runs nothing of the job's.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

#include "sandbox/init_steps.h"

namespace mycojobs::sandbox {
namespace {

constexpr int kGone = 1;

std::uint64_t monotonic_us() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1000000 + static_cast<std::uint64_t>(now.tv_nsec) / 1000;
}

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

// Tells how it ended and leaves. The kernel kills and reaps whatever is left of the namespace before our own end is
// seen.
[[noreturn]] void finish(const InitState& state, std::uint32_t stragglers, bool fenced) {
  send_message(state.run.status, MainEnded{state.main_status, stragglers, fenced}, {}, MSG_DONTWAIT);
  ::_exit(0);
}

[[noreturn]] void finish_after_main(InitState& state) {
  reap_ended(state);  // what has died by itself is no straggler
  std::uint32_t stragglers = 0;
  if (::kill(-1, SIGKILL) == 0) {
    while (::waitpid(-1, nullptr, 0) > 0) ++stragglers;
  }
  finish(state, stragglers, false);
}

// The launcher speaks: TERM for the whole tree, or a new fence. Its end is ours too: a job without its supervisor would
// have its notifications answered by nobody.
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
  Fence fence;
  if (decode(frame, terminate)) {
    ::kill(-1, SIGTERM);
  } else if (decode(frame, fence)) {
    set_fence(state.fence, fence.boot_ms);
  }
}

[[noreturn]] void keep_watch(InitState& state) {
  pollfd sources[] = {{state.children, POLLIN, 0}, {state.fence, POLLIN, 0}, {state.run.status, POLLIN, 0}};
  for (;;) {
    if (::poll(sources, 3, -1) < 0 && errno != EINTR) ::_exit(kGone);
    if (sources[0].revents != 0) {
      signalfd_siginfo info{};
      (void)!::read(state.children, &info, sizeof info);
      reap_ended(state);
      if (state.main_ended) finish_after_main(state);
    }
    if (sources[1].revents != 0) finish(state, 0, true);
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

void take_steps(ChildRun& run, std::span<const Step> steps) {
  run.times.reserve(24);
  std::uint64_t before = monotonic_us();
  for (const Step& step : steps) {
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
  InitState state{run, job, ::signalfd(-1, &children, SFD_CLOEXEC), ::timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC)};
  if (state.children < 0 || state.fence < 0) give_up(run, "init_clock", errno);
  set_fence(state.fence, run.request.fence_boot_ms);
  confine_init(run);
  keep_watch(state);
}

}  // namespace mycojobs::sandbox
